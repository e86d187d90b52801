"""Thresholds as cuts: what samples that stop at the first sure exit score and cost, for many thresholds at once.

Only the order of the samples by confidence matters, so a threshold is a *cut*: how many of the n samples, surest first,
it would let stop (0: nobody, n: everybody; never between two equal confidences).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
Cuts = tuple[int, ...]


@dataclass(frozen=True)
class Exit:
    """One exit's order of the samples, and everything else in that order."""

    values: Floats  # confidences, falling
    ranks: list[Places]  # of each exit: the samples' places in its own order
    right: Floats  # (exits, n)
    cuts: Places  # those that do not part equals


@dataclass(frozen=True)
class Samples:
    confidences: Floats  # (n, exits - 1), in 0..1
    right: Floats  # (n, exits)
    costs: Floats  # of stopping at each exit
    exits: list[Exit] = field(init=False)  # all but the last

    def __post_init__(self) -> None:
        orders = np.argsort(-self.confidences, axis=0, kind="stable")
        ranks = np.argsort(orders, axis=0, kind="stable")
        exits = []
        for order, values in zip(orders.T, self.confidences.T):
            values = values[order]
            cuts = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [len(values)]])
            places = [np.ascontiguousarray(rank[order]) for rank in ranks.T]
            exits.append(Exit(values, places, np.ascontiguousarray(self.right[order].T), cuts))
        object.__setattr__(self, "exits", exits)

    def totals(self, cuts: Cuts) -> tuple[float, float]:
        """Right answers and cost of all samples together."""
        if not cuts:
            return float(self.right.sum()), float(self.costs[0]) * len(self.right)
        first = self.exits[0]
        there = np.ones(len(first.values), bool)
        right = cost = 0.0
        for exit in range(len(self.costs)):
            stop = there & (first.ranks[exit] < cuts[exit]) if exit < len(cuts) else there
            right += float(first.right[exit][stop].sum())
            cost += float(self.costs[exit]) * int(stop.sum())
            there = there & ~stop
        return right, cost

    def cuts_at(self, thresholds: Sequence[float]) -> Cuts:
        return tuple(int((exit.values >= level).sum()) for exit, level in zip(self.exits, thresholds))

    def nearby(self, cuts: Sequence[int]) -> Cuts:
        """The possible cuts next to these: equals stop together."""
        places = [int(np.searchsorted(exit.cuts, cut)) for exit, cut in zip(self.exits, cuts)]
        return tuple(int(exit.cuts[min(place, len(exit.cuts) - 1)]) for exit, place in zip(self.exits, places))

    def thresholds(self, cuts: Cuts) -> tuple[float, ...]:
        """Halfway between the least sure sample that stops and the surest that goes on, among those who get that far;
        0 where all of these stop, infinity where none does.
        """
        there = np.ones(len(self.right), bool)
        levels = []
        for exit, cut in enumerate(cuts):
            values = self.confidences[:, exit]
            stop = there & (values >= (self.exits[exit].values[cut - 1] if cut else math.inf))
            there = there & ~stop
            if not stop.any():
                levels.append(math.inf)
            elif not there.any():
                levels.append(0.0)
            else:
                least, most = float(values[stop].min()), float(values[there].max())
                middle = (least + most) / 2
                levels.append(middle if middle > most else least)
        return tuple(levels)


@dataclass(frozen=True)
class Pair:
    """What two exits decide between them while the cuts of all others stand.

    A sample's worth depends on whether the outer exit would stop it and whether the inner one would: four numbers. The
    total over all samples, for an outer cut u and an inner cut v, is then
        base[u] + sum over the inner exit's first v samples of (fixed + crossed where its outer rank is below u).
    Everything comes twice: right answers, and cost.
    """

    cuts: Places  # of the inner exit: the possible ones, as far as its samples tell them apart
    ends: Places  # how many of the samples below come before each of them
    ranks: Places  # outer ranks of the samples that the inner exit decides about, in the inner exit's order
    base: list[Floats]
    fixed: list[Floats]
    crossed: list[Floats]

    @classmethod
    def of(cls, samples: Samples, cuts: Cuts, outer: int | None, inner: int) -> "Pair":
        """`outer` None: the inner exit alone is free."""
        here = samples.exits[inner]
        ranks = here.ranks[inner if outer is None else outer]

        def worth(outer_stops: bool, inner_stops: bool) -> list[Floats]:
            right, cost = here.right[-1], np.full(len(ranks), samples.costs[-1])
            for exit in reversed(range(len(cuts))):
                stop = here.ranks[exit] < cuts[exit]
                if exit in (outer, inner):
                    stop = np.full_like(stop, outer_stops if exit == outer else inner_stops)
                right, cost = np.where(stop, here.right[exit], right), np.where(stop, samples.costs[exit], cost)
            return [right, cost]

        neither, only_inner = worth(False, False), worth(False, True)
        only_outer, both = worth(True, False), worth(True, True)
        base = [none.sum() + _sums_before(ranks, out - none) for none, out in zip(neither, only_outer)]
        fixed = [one - none for none, one in zip(neither, only_inner)]
        crossed = [two - out - gain for two, out, gain in zip(both, only_outer, fixed)]
        decided = np.flatnonzero(np.any([*fixed, *crossed], axis=0))
        values = here.values[decided]
        ends = np.flatnonzero(np.diff(values, append=-1.0)) + 1  # confidences are never negative
        allowed = here.cuts[np.searchsorted(here.cuts, decided[ends - 1] + 1)]
        return cls(
            np.concatenate([[0], allowed]),
            np.concatenate([[0], ends]),
            ranks[decided],
            base,
            [gain[decided] for gain in fixed],
            [gain[decided] for gain in crossed],
        )

    def table(self, tries: Places) -> tuple[Floats, Floats]:
        """Right answers and cost in all, for each candidate of the outer exit (rows) and each cut of the inner one."""
        stopped = self.ranks < tries[:, None]
        found = []
        for base, fixed, crossed in zip(self.base, self.fixed, self.crossed):
            sums = np.empty((len(tries), len(fixed) + 1))
            sums[:, 0] = base[tries]
            np.multiply(stopped, crossed, out=sums[:, 1:])
            sums[:, 1:] += fixed
            np.cumsum(sums, axis=1, out=sums)
            found.append(sums if len(self.ends) == sums.shape[1] else sums[:, self.ends])
        return found[0], found[1]


def _sums_before(ranks: Places, weights: Floats) -> Floats:
    """Sums over the samples ranked before 0, 1, ... n."""
    sums = np.zeros(len(ranks) + 1)
    sums[ranks + 1] = weights
    return np.cumsum(sums)
