"""From what every point said of some images to a policy that stops early. No model is needed, only outputs.

The images come in two halves: the first decides (temperatures, which exits are looked at, thresholds), the second only
says what came of it.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from supple.confidence import fit_temperature
from supple.judge import Fitted, Floats, Half, find_dominated, standard_error
from supple.point import Point
from supple.policies import Confident, first_sure
from supple.thresholds import Found, search

CHOOSING = 1000  # samples that decide which exits are looked at
TRYING = 2000  # samples whose confidences thresholds are tried on where many have to be; all labels check them
TRIES = 8  # how often the margin is widened
BISECTIONS = 6  # of what thresholds are predicted to lose
WORTH = 1e-3  # an exit is looked at for a gain of so much accuracy, or for so much of the cost
SPARE = 0.5  # standard errors of the mean cost that a budget must have to spare
MARGIN = 2.0  # standard errors that an accuracy must have to spare; one let one promise in thirty be broken
HAIR = 1e-9

Choice = tuple[tuple[int, ...], tuple[float, ...], list[float]]  # exits, their thresholds, their costs
Costs = Callable[[tuple[Point, ...]], list[float]]  # of stopping at each of these points when only these are looked at


@dataclass(frozen=True)
class Aim:
    """A mean cost (`budget`), or an accuracy at most `drop` below the full model's."""

    budget: float | None = None
    drop: float | None = None

    def loss(self, found: Found) -> float:
        """What is to be small, among policies that keep the limit."""
        return -found.accuracy if self.budget is not None else found.cost


def fit(
    half: Half,
    aim: Aim,
    costs: Costs,
    *,
    measure: str = "max_probability",
    keep_dominated: bool = False,
    choosing: tuple[Aim, Costs] | None = None,
) -> Fitted:
    """The policy that reaches an aim on this half with something to spare: SPARE standard errors of the mean cost for
    a budget, MARGIN of the sample by sample difference from the full model for an accuracy. Where no thresholds do, a
    single point answers everything: the best that the budget allows, or the full model.

    Thresholds are compared by how many answers the calibrated probabilities foretell to be right, not by how many of
    these samples happen to be: the best of thousands of thresholds owes too much to luck. Whether the best keeps the
    accuracy is then checked on the labels.

    `choosing`: aim and costs that decide which exits are looked at, where these are costly to measure.
    """
    points = half.points
    temperatures = [fit_temperature(logits, half.labels) for logits in half.logits]
    table = _Table(
        points,
        half.confidences(measure, temperatures).numpy(),
        half.confidences("max_probability", temperatures).numpy(),
        half.right().numpy(),
    )
    dominated = find_dominated(points, table.right.mean(0).tolist())
    last = len(points) - 1
    used = tuple(i for i in range(last + 1) if i == last or keep_dominated or points[i] not in dominated)
    used = _choose(table.thinned(CHOOSING), used, *(choosing or (aim, costs)))
    chosen = _within(table, used, aim, costs) if aim.budget is not None else _close_enough(table, used, aim, costs)
    if chosen is None or (aim.budget is not None and _is_worse(table, chosen, aim.budget, costs)):
        chosen = _single(table, aim, costs)
    used, thresholds, price = chosen
    if 0.0 in thresholds:  # nobody gets any further
        end = thresholds.index(0.0)
        used, thresholds, price = used[: end + 1], thresholds[:end], price[: end + 1]
    policy = Confident(table.named(used), thresholds, tuple(temperatures[i] for i in used), measure)
    return Fitted(policy, price, temperatures, dominated)


# --- the steps of a fit -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    points: tuple[Point, ...]
    sure: Floats  # (samples, points)
    chance: Floats  # of being right, as the calibrated probabilities have it
    right: Floats

    def named(self, used: tuple[int, ...]) -> tuple[Point, ...]:
        return tuple(self.points[i] for i in used)

    def most_expensive(self, costs: Costs) -> float:
        return costs(self.points[-1:])[0]

    def thinned(self, count: int) -> "_Table":
        rows = np.unique(np.linspace(0, len(self.right) - 1, count).round().astype(np.intp))
        return replace(self, sure=self.sure[rows], chance=self.chance[rows], right=self.right[rows])

    def search(
        self,
        used: tuple[int, ...],
        price: Sequence[float],
        aim: Aim,
        start: Sequence[float] | None = None,
        rough: bool = True,
    ) -> Found | None:
        accuracy = None if aim.drop is None else float(self.chance[:, -1].mean()) - aim.drop
        sure, chance = self.sure[:, used[:-1]], self.chance[:, used]
        return search(sure, chance, price, budget=aim.budget, accuracy=accuracy, start=start, rough=rough)

    def stops(self, used: tuple[int, ...], thresholds: Sequence[float]) -> NDArray[np.intp]:
        """Where each sample stops, a place in `used`."""
        exits: NDArray[np.intp] = first_sure(torch.from_numpy(self.sure[:, used[:-1]]), thresholds).numpy()
        return exits

    def lost(self, used: tuple[int, ...], thresholds: Sequence[float]) -> Floats:
        """1 where the full model is right and the policy is not, -1 where it is the other way round."""
        chosen = np.asarray(used)[self.stops(used, thresholds)]
        difference: Floats = self.right[:, -1] - self.right[np.arange(len(chosen)), chosen]
        return difference


def _choose(table: _Table, used: tuple[int, ...], aim: Aim, costs: Costs) -> tuple[int, ...]:
    """The exits to look at. A head must be paid for even by those who go on, so that fewer exits can be better.

    From all of them the one that is missed least is left out, again and again; the fewest that are worth as much as
    the best of these sets win, and so does any pair of exits that is worth more.
    """

    def tried(chosen: tuple[int, ...], start: tuple[float, ...] | None = None) -> Found | None:
        return table.search(chosen, costs(table.named(chosen)), aim, start, rough=start is None)

    found = tried(used)
    sets: list[tuple[float, tuple[int, ...]]] = []
    left = used
    while found is not None:
        sets.append((aim.loss(found), left))
        fewer = []
        for place in range(len(left) - 1):
            start = found.thresholds[:place] + found.thresholds[place + 1 :]
            without = left[:place] + left[place + 1 :]
            fewer.append((tried(without, start), without))
        possible = [(aim.loss(other), without, other) for other, without in fewer if other is not None]
        _, left, found = min(possible, key=lambda option: option[0], default=(0.0, (), None))
    for pair in itertools.combinations(used, 2):
        found = tried(pair)
        if found is not None:
            sets.append((aim.loss(found), pair))
    if not sets:
        return used
    worth = WORTH * (1.0 if aim.budget is not None else table.most_expensive(costs))
    least = min(loss for loss, _ in sets) + worth
    return min((len(chosen), loss, chosen) for loss, chosen in sets if loss <= least)[2]


def _within(table: _Table, used: tuple[int, ...], aim: Aim, costs: Costs) -> Choice | None:
    """The best thresholds within a budget, with SPARE standard errors of the mean cost to spare."""
    assert aim.budget is not None
    slack, start, price = 0.0, None, costs(table.named(used))
    for _ in range(TRIES):
        found = table.search(used, price, Aim(budget=aim.budget - slack), start, rough=start is None)
        if found is None:
            return None
        fewer, thresholds = _live(used, found.thresholds)
        if fewer != used:  # where nobody stops, no head need run, and the others may go deeper for it
            used, start, price = fewer, thresholds, costs(table.named(fewer))
            continue
        error = SPARE * standard_error(np.asarray(price)[table.stops(used, thresholds)])
        if found.cost + error <= aim.budget * (1 + HAIR):
            return used, thresholds, price
        slack, start = max(error, 1.1 * slack), thresholds
    return None


def _close_enough(table: _Table, used: tuple[int, ...], aim: Aim, costs: Costs) -> Choice | None:
    """The cheapest thresholds that lose little enough against the full model, for these exits or fewer of them."""
    assert aim.drop is not None
    found: list[tuple[float, Choice]] = []
    full = costs(table.named(used[-1:]))[0]
    while len(used) > 1:
        passed, thresholds = _loosest(table, used, costs(table.named(used)), aim.drop)
        if passed:
            live, levels = _live(used, thresholds)
            price = costs(table.named(live))
            mean = float(np.asarray(price)[table.stops(live, levels)].mean())
            if mean < full:
                found.append((mean, (live, levels, price)))
        counts = np.bincount(table.stops(used, thresholds), minlength=len(used))
        place = int(counts[:-1].argmin())
        used = used[:place] + used[place + 1 :]
    return min(found)[1] if found else None


def _loosest(
    table: _Table, used: tuple[int, ...], price: Sequence[float], drop: float
) -> tuple[bool, tuple[float, ...]]:
    """Whether any thresholds pass, and the cheapest that do: what they are predicted to lose is narrowed down until the
    labels agree that it is at most `drop`, with MARGIN standard errors to spare.
    """

    def passes(found: Found) -> bool:
        lost = table.lost(used, found.thresholds)
        error = math.hypot(standard_error(lost), 1 / len(lost))  # if no sample differs, the next one still may
        return float(lost.mean()) + MARGIN * error <= drop + HAIR

    few = table.thinned(TRYING)
    best = few.search(used, price, Aim(budget=math.inf))  # as accurate as can be predicted
    assert best is not None
    tight, loose = float(few.chance[:, -1].mean()) - best.accuracy, 2 * drop
    found = few.search(used, price, Aim(drop=loose), best.thresholds)
    if found is not None and passes(found):
        return True, found.thresholds
    if not passes(best):
        return False, best.thresholds
    for _ in range(BISECTIONS):
        level = (tight + loose) / 2
        found = few.search(used, price, Aim(drop=level), best.thresholds, rough=False)
        if found is not None and passes(found):
            tight, best = level, found
        else:
            loose = level
    return True, best.thresholds


def _live(used: tuple[int, ...], thresholds: tuple[float, ...]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Without the exits where nobody stops."""
    kept = [(i, level) for i, level in zip(used, thresholds) if not math.isinf(level)]
    return (*(i for i, _ in kept), used[-1]), tuple(level for _, level in kept)


def _is_worse(table: _Table, chosen: Choice, budget: float, costs: Costs) -> bool:
    """Whether the labels say that one point within the budget is better, by more than a standard error."""
    lost = table.lost(*chosen[:2])
    for place, point in enumerate(table.points):
        behind = lost - table.lost((place,), ())
        if float(behind.mean()) > standard_error(behind) and costs((point,))[0] <= budget:
            return True
    return False


def _single(table: _Table, aim: Aim, costs: Costs) -> Choice:
    """One point for everything: the full model, or the most accurate one within the budget."""
    last = len(table.points) - 1
    if aim.budget is None:
        return (last,), (), costs(table.named((last,)))
    prices = {i: costs(table.named((i,))) for i in range(last + 1)}
    fits = [i for i, price in prices.items() if price[0] <= aim.budget] or [min(prices, key=lambda i: prices[i])]
    best = max(fits, key=lambda i: (table.right[:, i].mean(), -prices[i][0]))
    return (best,), (), prices[best]
