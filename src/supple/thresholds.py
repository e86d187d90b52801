"""The search for thresholds: a sample stops at the first exit whose confidence reaches that exit's threshold.

With all other thresholds fixed, the best one of an exit is found exactly, among all that tell two samples apart, by
prefix sums (see threshold_pairs.py). Two are changed at a time: each candidate for the one is tried with the exact best
of the other, which lets budget move between exits where changing one at a time gets stuck. Where there are few enough
combinations, all are tried, and the result is exact.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from supple.threshold_pairs import Cuts, Floats, Pair, Places, Samples

EXACT = 20_000_000  # combinations up to which all are tried: three exits and 4,000 samples, or four and 270
CANDIDATES = 48  # tried at once where there are more; then finer around the best
CELLS = 2_000_000  # of a table of pairs held at once
THINNED = 1500  # samples that the first, rough searches look at
NEAR = 3  # exits this far apart are tried as pairs
ENOUGH = 1e-5  # the relative gain of a round that is not worth another
HAIR = 1e-9  # what sums of rounded numbers may be off


@dataclass(frozen=True)
class Found:
    """Thresholds (0: everybody stops, infinity: nobody), and what they give on the samples they were found on."""

    thresholds: tuple[float, ...]
    accuracy: float
    cost: float  # mean per sample


def search(
    confidences: ArrayLike,
    right: ArrayLike,
    costs: Sequence[float],
    *,
    budget: float | None = None,
    accuracy: float | None = None,
    start: Sequence[float] | None = None,
    rough: bool = True,
) -> Found | None:
    """The thresholds with the highest accuracy at a mean cost of at most `budget`, or with the lowest mean cost at an
    accuracy of at least `accuracy`; None if no thresholds can do that.

    confidences: (samples, exits but the last), in 0..1. right: (samples, exits), 1 where an exit's answer is right, or
    the chance that it is. costs: of stopping at each exit. `start`: thresholds to begin from as well; rough=False: only
    from these.
    """
    samples = Samples(np.asarray(confidences, np.float64), np.asarray(right, np.float64), np.asarray(costs, np.float64))
    count = len(samples.right)
    goal: _Goal
    if budget is not None:
        goal = _Within(count * budget * (1 + HAIR))
    else:
        assert accuracy is not None
        goal = _AtLeast(count * accuracy - HAIR)
    if len(samples.costs) == 1:
        cuts: Cuts = ()
    elif math.prod(len(exit.cuts) for exit in samples.exits) <= EXACT:
        cuts = _exhaust(samples, goal)
    else:
        given = [] if start is None else [samples.cuts_at(start)]
        cuts = _climb(samples, goal, [*given, *(_rough(samples, goal) if rough or not given else ())])
    total_right, total_cost = samples.totals(cuts)
    if not goal.met(total_right, total_cost):
        return None
    return Found(samples.thresholds(cuts), total_right / count, total_cost / count)


# --- what is wanted ---------------------------------------------------------------------------------------------------

Key = tuple[float, float, float]


@dataclass(frozen=True)
class _Within:
    """Most right answers within a total cost."""

    limit: float

    def met(self, right: float, cost: float) -> bool:
        return cost <= self.limit

    def key(self, right: float, cost: float) -> Key:
        """Larger is better; what breaks the limit comes below all else, the less the better."""
        return (0.0, right, -cost) if cost <= self.limit else (self.limit - cost, 0.0, 0.0)

    def best(self, right: Floats, cost: Floats) -> tuple[int, int]:
        """The place with the largest key in two tables."""
        return _largest(right, -cost, cost <= self.limit, -cost)

    def shrunk(self, share: float) -> "_Within":
        return _Within(share * self.limit)


@dataclass(frozen=True)
class _AtLeast:
    """Least cost with at least so many right answers."""

    limit: float

    def met(self, right: float, cost: float) -> bool:
        return right >= self.limit

    def key(self, right: float, cost: float) -> Key:
        return (0.0, -cost, right) if right >= self.limit else (right - self.limit, 0.0, 0.0)

    def best(self, right: Floats, cost: Floats) -> tuple[int, int]:
        return _largest(-cost, right, right >= self.limit, right)

    def shrunk(self, share: float) -> "_AtLeast":
        return _AtLeast(share * self.limit)


_Goal = _Within | _AtLeast


def _largest(first: Floats, second: Floats, allowed: np.ndarray, otherwise: Floats) -> tuple[int, int]:
    """Where `first` is largest among what is allowed (of equals, where `second` is); if nothing is, `otherwise`."""
    if not allowed.any():
        flat = int(otherwise.argmax())
    else:
        merit = np.where(allowed, first, -np.inf)
        equal = np.flatnonzero(merit == merit.max())
        flat = int(equal[second.reshape(-1)[equal].argmax()])
    return flat // first.shape[1], flat % first.shape[1]


# --- from cut to cut --------------------------------------------------------------------------------------------------


def _exhaust(samples: Samples, goal: _Goal) -> Cuts:
    """The best cuts of all: every combination of the first ones, with the best last two."""
    *first, inner = range(len(samples.exits))
    outer = first.pop() if first else None
    tries = np.array([0]) if outer is None else samples.exits[outer].cuts
    rest = (0,) * (len(samples.exits) - len(first))
    combinations = itertools.product(*(samples.exits[exit].cuts.tolist() for exit in first))
    found = (_improve(samples, goal, (*cuts, *rest), outer, inner, tries) for cuts in combinations)
    return max(found, key=lambda cuts: goal.key(*samples.totals(cuts)))


def _rough(samples: Samples, goal: _Goal) -> list[Cuts]:
    """Cuts to begin from: one threshold for all exits, one share for all exits, and everybody at the first exit, each
    improved on a thinned set.
    """
    count, stops = samples.confidences.shape
    thin = samples
    if count > THINNED:
        picked = np.linspace(0, count - 1, THINNED).astype(np.intp)
        thin = Samples(samples.confidences[picked], samples.right[picked], samples.costs)
        goal = goal.shrunk(len(picked) / count)
    few = len(thin.right)
    levels = np.quantile(thin.confidences, np.linspace(0, 1, CANDIDATES))
    alike = [thin.cuts_at([level] * stops) for level in levels]
    even = [thin.nearby([round(few * share)] * stops) for share in np.linspace(0, 1, CANDIDATES)]
    starts = [max(group, key=lambda cuts: goal.key(*thin.totals(cuts))) for group in (alike, even)]
    starts.append((few, *[0] * (stops - 1)))
    found = {_climb(thin, goal, [start]) for start in dict.fromkeys(starts)}
    return [samples.nearby([round(cut * count / few) for cut in cuts]) for cuts in found]


def _climb(samples: Samples, goal: _Goal, starts: Sequence[Cuts]) -> Cuts:
    """Improves the best of the starts, pair by pair, until a round over all pairs gains nothing to speak of."""
    best, cuts = max((goal.key(*samples.totals(cuts)), cuts) for cuts in starts)
    pairs = [pair for pair in itertools.permutations(range(len(cuts)), 2) if abs(pair[0] - pair[1]) <= NEAR]
    while True:
        before = best
        for outer, inner in pairs:
            tried, choices = cuts, samples.exits[outer].cuts
            reach = len(choices)
            while True:  # candidates coarse to fine, down to those next to the best
                candidates = _around(choices, tried[outer], reach)
                tried = _improve(samples, goal, tried, outer, inner, candidates)
                if 2 * reach < CANDIDATES:
                    break
                reach = max(1, 4 * reach // CANDIDATES)
            best, cuts = max((best, cuts), (goal.key(*samples.totals(tried)), tried))
        if best[0] == before[0] and best[1] - before[1] <= ENOUGH * abs(before[1]):
            return cuts


def _around(choices: Places, present: int, reach: int) -> Places:
    """The present cut and evenly spaced ones to both sides of it."""
    place = int(np.searchsorted(choices, present))
    low, high = max(0, place - reach), min(len(choices) - 1, place + reach)
    spread = np.linspace(low, high, min(CANDIDATES, high - low + 1)).round().astype(np.intp)
    return np.unique(np.append(choices[spread], present))


def _improve(samples: Samples, goal: _Goal, cuts: Cuts, outer: int | None, inner: int, candidates: Places) -> Cuts:
    """The best cuts when exit `outer` may have each of the candidates and exit `inner` any cut at all."""
    pair = Pair.of(samples, cuts, outer, inner)
    step = max(1, CELLS // max(1, len(pair.ranks)))
    found = []
    for tries in np.split(candidates, range(step, len(candidates), step)):
        right, cost = pair.table(tries)
        row, column = goal.best(right, cost)
        new = list(cuts)
        new[inner] = int(pair.cuts[column])
        if outer is not None:
            new[outer] = int(tries[row])
        found.append((goal.key(right[row, column], cost[row, column]), tuple(new)))
    return max(found)[1]
