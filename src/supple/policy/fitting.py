"""From what every point said of some samples to a policy that stops early. No model is needed, only outputs.

The family of policies is MSDNet's (Huang et al. 2018, budgeted batch classification): the share of the samples that
stop at the k-th exit looked at goes with q ** k, the surest of those still there stop first, and one number, q, decides
how deep the samples go. Thresholds are what parts the samples at these shares. On three trained networks this was as
accurate at equal cost as a search over all thresholds (docs/benchmarks.md).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from supple.errors import RecipeError
from supple.point import Point
from supple.policy.policy import Array, Policy, confidence, first_sure, probabilities

COLDEST, HOTTEST = 0.02, 50.0  # temperatures that a fit may give
SHALLOWEST, DEEPEST, DEPTHS = -12.0, 12.0, 193  # ln q: from all at the first exit to all at the last, in steps
SPARE = 0.5  # standard errors of the mean cost that a budget must have to spare
MARGIN = 2.0  # standard errors that an accuracy must have to spare; one let one promise in thirty be broken

Floats = NDArray[np.float64]
Costs = Callable[[tuple[Point, ...]], list[float]]  # of stopping at each of these points when only these are looked at


@dataclass(frozen=True)
class Target:
    """What is asked for: a mean cost, or an accuracy at most so far below the full model's."""

    kind: str  # budget_macs, budget_ms or max_drop
    value: float
    relative: bool = False  # a share of the full model's cost
    given: str = ""  # as it was written

    @property
    def unit(self) -> str:
        return "ms" if self.kind == "budget_ms" else "macs"

    @classmethod
    def parse(cls, kind: str, text: str) -> "Target":
        """Reads `2e6`, `0.5x` of the full model, or `0.01` of accuracy."""
        option = "--" + kind.replace("_", "-")
        number = text.strip()
        relative = kind != "max_drop" and number.endswith("x")
        try:
            value = float(number.removesuffix("x") if relative else number)
        except ValueError:
            value = math.nan
        if kind == "max_drop":
            if not 0 <= value < 1:
                raise RecipeError(f'{option} is "{text}".', "Give a share below 1: 0.01 is one percentage point.")
        elif not 0 < value < math.inf:
            example = "4" if kind == "budget_ms" else "2e6"
            raise RecipeError(f'{option} is "{text}".', f"Give {example}, or 0.5x for half of the full model's cost.")
        elif kind == "budget_macs" and not relative and value < 1:
            cure = f"Give a share of the full model, {number}x, or a number of MACs, such as 2e6."
            raise RecipeError(f'{option} is "{text}", less than one MAC.', cure)
        return cls(kind, value, relative, number)


@dataclass(frozen=True)
class LogitSet:
    """What every point said of some samples."""

    points: tuple[Point, ...]  # in execution order, the full model last
    logits: Sequence[Array]  # of each point (samples, classes)
    labels: Array

    def pick(self, rows: Array) -> "LogitSet":
        """Of these samples only."""
        return LogitSet(self.points, [logits[rows] for logits in self.logits], self.labels[rows])

    def right(self) -> Floats:
        """(samples, points), 1 where the answer is right."""
        return np.stack([(logits.argmax(1) == self.labels).astype(np.float64) for logits in self.logits], 1)

    def confidences(self, measure: str, temperatures: Sequence[float]) -> Floats:
        """(samples, points)"""
        found = [confidence(logits, measure, t).astype(np.float64) for logits, t in zip(self.logits, temperatures)]
        return np.stack(found, 1)


@dataclass(frozen=True)
class Fitted:
    """A policy, what its points cost, and what was found on the way."""

    policy: Policy
    costs: list[float]  # of stopping at each of the policy's points
    temperatures: list[float]  # of all points
    dominated: dict[Point, Point]  # a point that an earlier one is at least as accurate as, and that one


@dataclass(frozen=True)
class Outcome:
    """What a policy did on a set of samples."""

    n: int
    cost: float  # mean
    cost_error: float  # one standard error of it
    accuracy: float
    full_accuracy: float
    drop_error: float  # one standard error of full_accuracy - accuracy, sample by sample
    predicted_drop: float  # the same as the calibrated probabilities have it
    exits: Array  # where each sample stopped, a place in the policy's points


def fit(
    samples: LogitSet,
    costs: Costs,
    *,
    budget: float | None = None,
    drop: float | None = None,
    among: Sequence[Point] = (),
    measure: str = "max_probability",
    keep_dominated: bool = False,
) -> Fitted:
    """The policy that keeps a mean cost (`budget`), or an accuracy at most `drop` below the full model's, on these
    samples with something to spare: SPARE standard errors of the mean cost, or MARGIN of the sample by sample
    difference from the full model.

    For a budget, as many samples go deep as it allows; for an accuracy, as few as it allows. Where a single point is
    as good as that, it answers everything: the most accurate one within the budget, or the cheapest that keeps the
    accuracy. Exits that an earlier one is at least as accurate as are not looked at, unless `keep_dominated`. Points
    that are not `among` some are not looked at either; none: all may be.
    """
    points = samples.points
    allowed = [i for i, point in enumerate(points) if not among or point in among]
    temperatures = [fit_temperature(logits, samples.labels) for logits in samples.logits]
    scores = _Scores.of(samples, measure, temperatures)
    dominated = find_dominated(points, scores.right.mean(0).tolist())
    used = [i for i in allowed if i == allowed[-1] or keep_dominated or points[i] not in dominated]

    def judged(places: Sequence[int], depth: float = 0.0) -> Judged:
        """The policy of the family that looks at these points, and what it does."""
        thresholds = thresholds_for(scores.sure[:, places[:-1]], geometric(depth, len(places)))
        policy = Policy(tuple(points[i] for i in places), thresholds, tuple(temperatures[i] for i in places), measure)
        policy = _shortened(policy)
        fitted = Fitted(policy, costs(policy.points), temperatures, dominated)
        return fitted, _outcome(fitted, scores)

    singles = [judged((i,)) for i in used]
    chain = (lambda depth: judged(used, depth)) if len(used) > 1 else None
    if budget is not None:
        fitted, outcome = _deepest(chain, singles, budget)
    else:
        fitted, outcome = _cheapest(chain, singles, drop or 0.0)
    shares = np.bincount(outcome.exits, minlength=len(fitted.policy.points)) / outcome.n
    return replace(fitted, policy=replace(fitted.policy, shares=tuple(shares.tolist())))


Judged = tuple[Fitted, Outcome]
Chain = Callable[[float], Judged]  # the policy of the family for a depth


def _deepest(chain: Chain | None, singles: list[Judged], budget: float) -> Judged:
    """As deep as a budget allows, or a single point that is no less accurate; the cheapest, where nothing fits."""

    def within(one: Judged) -> bool:
        return one[1].cost + SPARE * one[1].cost_error <= budget * (1 + 1e-9)

    fits = sorted(filter(within, singles), key=lambda one: (-one[1].accuracy, one[1].cost))[:1]
    if chain is not None and within(chain(SHALLOWEST)):
        low, high = SHALLOWEST, DEEPEST
        for _ in range(20):  # the deeper, the costlier
            middle = (low + high) / 2
            low, high = (middle, high) if within(chain(middle)) else (low, middle)
        fits.append(chain(low))
    if not fits:
        return min(singles, key=lambda one: one[1].cost)
    return max(fits, key=lambda one: one[1].accuracy)  # of equals the first


def _cheapest(chain: Chain | None, singles: list[Judged], drop: float) -> Judged:
    """The cheapest that keeps the accuracy, by the labels and by the calibrated probabilities: alone, each may do so by
    luck. Of the family, one that all deeper ones keep it with. The full model always does, if it may answer.
    """

    def keeps(one: Judged) -> bool:
        lost = one[1].full_accuracy - one[1].accuracy + MARGIN * one[1].drop_error
        return max(lost, one[1].predicted_drop) <= drop

    family = map(chain, np.linspace(DEEPEST, SHALLOWEST, DEPTHS)) if chain is not None else ()
    kept = [*itertools.takewhile(keeps, family), *filter(keeps, singles)]
    if not kept:
        cause = f"these points are not as accurate as that: within {100 * drop:g} percentage points of the full model."
        raise RecipeError(cause, "Name full among them, or allow a larger drop.")
    return min(kept, key=lambda one: one[1].cost)


def _shortened(policy: Policy) -> Policy:
    """Without the points behind one that stops everybody."""
    return policy.only(range(policy.thresholds.index(0.0) + 1)) if 0.0 in policy.thresholds else policy


def geometric(depth: float, count: int) -> list[float]:
    """Shares that go with exp(depth) ** k and sum to 1: even at 0, all at the last for large depths."""
    powers = np.exp(depth * np.arange(count) - max(0.0, depth * (count - 1)))
    return [float(share) for share in powers / powers.sum()]


def thresholds_for(confidences: Floats, shares: Sequence[float]) -> tuple[float, ...]:
    """Thresholds at which these shares of the samples stop at each exit but the last, the surest first.

    confidences: (samples, exits but the last). Samples that are equally sure stop together. Infinity where nobody is to
    stop; 0 where everybody left is.
    """
    there = np.ones(len(confidences), bool)
    wanted, stopped, levels = 0.0, 0, []
    for exit, share in enumerate(shares[:-1]):
        wanted += share * len(confidences)
        count, left = round(wanted) - stopped, np.sort(confidences[there, exit])[::-1]
        if count <= 0:
            level = math.inf
        elif count >= len(left):
            level = 0.0
        else:  # halfway between the least sure sample that stops and the surest that goes on
            level = float(left[count - 1] + left[count]) / 2
            level = level if level > left[count] else float(left[count - 1])
        levels.append(level)
        stop = there & (confidences[:, exit] >= level)
        there, stopped = there & ~stop, stopped + int(stop.sum())
    return tuple(levels)


def fit_temperature(logits: Array, labels: Array) -> float:
    """The temperature with the least negative log-likelihood, between COLDEST and HOTTEST.

    In b = 1/T the likelihood is concave (a log-sum-exp minus a line), so the sign of its slope, mean logit under the
    softmax minus the target's, is enough for a bisection that cannot miss. Samples with infinite logits are left out;
    without any sample the temperature is 1.
    """
    sound = np.isfinite(logits).all(-1)
    logits, labels = logits[sound].astype(np.float64), labels[sound]
    if len(logits) == 0:
        return 1.0
    logits = logits - logits.max(-1, keepdims=True)
    wanted = logits[np.arange(len(labels)), labels].mean()
    low, high = math.log(1 / HOTTEST), math.log(1 / COLDEST)
    for _ in range(24):  # halves a range of 8 until a millionth is left
        middle = (low + high) / 2
        expected = (probabilities(logits, math.exp(-middle)) * logits).sum(-1).mean()
        low, high = (low, middle) if expected > wanted else (middle, high)
    return math.exp(-(low + high) / 2)


def find_dominated(points: Sequence[Point], accuracies: Sequence[float]) -> dict[Point, Point]:
    """The points that an earlier one, itself not dominated, is at least as accurate as; and that one."""
    dominated: dict[Point, Point] = {}
    best = 0
    for place in range(1, len(points)):
        if accuracies[place] <= accuracies[best]:
            dominated[points[place]] = points[best]
        else:
            best = place
    return dominated


def evaluate_policy(fitted: Fitted, samples: LogitSet) -> Outcome:
    """What a policy does to samples: decided without a look at the labels, which only score it."""
    return _outcome(fitted, _Scores.of(samples, fitted.policy.measure, fitted.temperatures))


@dataclass(frozen=True)
class _Scores:
    """Of every sample (rows) at every point (columns)."""

    points: tuple[Point, ...]
    sure: Floats
    probability: Floats  # of being right, as the calibrated probabilities have it
    right: Floats

    @classmethod
    def of(cls, samples: LogitSet, measure: str, temperatures: Sequence[float]) -> "_Scores":
        sure = samples.confidences(measure, temperatures)
        probability = sure if measure == "max_probability" else samples.confidences("max_probability", temperatures)
        return cls(samples.points, sure, probability, samples.right())


def _outcome(fitted: Fitted, scores: _Scores) -> Outcome:
    places = np.array([scores.points.index(point) for point in fitted.policy.points])
    exits = first_sure(scores.sure[:, places[:-1]], fitted.policy.thresholds)
    rows, answered = np.arange(len(exits)), places[exits]
    lost = scores.right[:, -1] - scores.right[rows, answered]
    spent = np.array(fitted.costs, np.float64)[exits]
    return Outcome(
        len(exits),
        float(spent.mean()),
        standard_error(spent),
        float(scores.right[rows, answered].mean()),
        float(scores.right[:, -1].mean()),
        standard_error(lost),
        float((scores.probability[:, -1] - scores.probability[rows, answered]).mean()),
        exits,
    )


def standard_error(values: Floats) -> float:
    return float(values.std() / math.sqrt(len(values)))
