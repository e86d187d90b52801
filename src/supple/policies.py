"""Policies: pure functions that decide which point answers. None of them sees a label.

Fixed: one point for a request. Confident: each sample stops at the first exit that is sure enough. Budgeted: a whole
set shares one budget, and the surest stop first. Anytime: whatever is finished when the time is up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from supple.confidence import MEASURES, confidence
from supple.errors import CheckpointError, PointError
from supple.ladder import Ladder
from supple.point import FULL, Point

# --- fixed ------------------------------------------------------------------------------------------------------------


def choose_point(
    ladder: Ladder,
    *,
    asked: Point | None = None,
    deadline_ms: float | None = None,
    budget_macs: float | None = None,
    **key: object,
) -> tuple[Point, str]:
    """The point for a request, and the reason: `asked`, `deadline`, `budget` or `full`.

    When nothing fits, the cheapest point (for a deadline, the quickest) answers: late is better than never. `key`
    narrows the timed rows.
    """
    if asked is not None:
        return asked, "asked"
    if deadline_ms is None and budget_macs is None:
        return FULL, "full"
    reason = "deadline" if deadline_ms is not None else "budget"
    rows = ladder.where(**key)
    try:
        return ladder.best_under(ms=deadline_ms, macs=budget_macs, **key), reason
    except PointError:
        if deadline_ms is None:
            return rows.cheapest(), reason
        timed = [row for row in rows if row.p95_ms is not None]
        if not timed:
            raise
        return Point.parse(min(timed, key=lambda row: row.p95_ms or 0).point), reason


# --- confident --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Confident:
    """Stop at the first of these points whose confidence reaches its threshold; the last one answers what is left.

    A threshold of 0 stops everybody, infinity nobody. Points that are not named here are not looked at, so that their
    heads do not run.
    """

    points: tuple[Point, ...]  # in execution order
    thresholds: tuple[float, ...]  # of all points but the last
    temperatures: tuple[float, ...]  # of all points
    measure: str = "max_probability"

    def __post_init__(self) -> None:
        assert len(self.points) == len(self.temperatures) == len(self.thresholds) + 1
        assert self.measure in MEASURES

    def sure(self, place: int, logits: Tensor) -> Tensor:
        """Which samples stop at the point in this place, given its logits: a mask over the batch."""
        if place == len(self.thresholds):
            return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        # Compared as doubles: rounded to a float, a threshold between two near confidences could fall on either.
        return confidence(logits, self.measure, self.temperatures[place]).double() >= self.thresholds[place]

    def to_json(self) -> dict[str, Any]:
        return {
            "measure": self.measure,
            "points": [str(point) for point in self.points],
            "thresholds": [None if math.isinf(threshold) else threshold for threshold in self.thresholds],
            "temperatures": list(self.temperatures),
        }

    @classmethod
    def from_json(cls, document: Any) -> "Confident":
        try:
            points = tuple(Point.parse(text) for text in document["points"])
            thresholds = tuple(math.inf if t is None else _number(t) for t in document["thresholds"])
            temperatures = tuple(_number(t) for t in document["temperatures"])
            if document["measure"] not in MEASURES:
                raise ValueError(f"measure {document['measure']!r}")
            if not len(points) == len(temperatures) == len(thresholds) + 1:
                raise ValueError(f"{len(points)} points, {len(thresholds)} thresholds")
            if min(temperatures) <= 0:
                raise ValueError(f"temperature {min(temperatures)}")
            return cls(points, thresholds, temperatures, document["measure"])
        except (TypeError, LookupError, AttributeError, ValueError, PointError) as error:
            what = error.cause if isinstance(error, PointError) else str(error)
            raise CheckpointError(f"this is no policy ({what}).", "Calibrate again: supple calibrate RUN.") from None


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def sure_above(points: Sequence[Point], least: float) -> Confident:
    """One threshold on the largest probability at every point, as the logits give it: nothing is calibrated."""
    return Confident(tuple(points), (least,) * (len(points) - 1), (1.0,) * len(points))


def first_sure(confidences: Tensor, thresholds: Sequence[float]) -> Tensor:
    """For every sample the first exit whose confidence reaches its threshold, counted from 0; else the last exit.

    confidences: (samples, exits but the last).
    """
    enough = confidences.double() >= torch.tensor([*thresholds], dtype=torch.float64)
    enough = torch.cat([enough, torch.ones(len(enough), 1, dtype=torch.bool)], 1)
    return enough.int().argmax(1)  # the first of equals


# --- budgeted ---------------------------------------------------------------------------------------------------------


def share_budget(confidences: Tensor, costs: Sequence[float], budget: float) -> Tensor:
    """Assigns an exit, counted from 0, to every sample of a set, so that the set costs at most `budget` in all.

    Budgeted batch classification as in MSDNet (Huang et al. 2018): the share of the set that stops at exit k goes with
    q ** k, and the surest stop first; q is as large as the budget allows, so that as many as possible go deep. It needs
    neither labels nor calibration. confidences: (samples, exits but the last); costs: of stopping at each exit.
    """
    count, exits = len(confidences), len(costs)
    if count * costs[0] > budget:
        raise PointError(
            f"a budget of {budget:g} is too small for {count} samples.", f"The least is {count * costs[0]:g}."
        )
    low, high = -30.0, 30.0  # log q: from all at the first exit to all at the last
    best = torch.zeros(count, dtype=torch.long)
    for _ in range(50):
        middle = (low + high) / 2
        shares = torch.softmax(middle * torch.arange(exits, dtype=torch.float64), 0)
        assigned = _surest_first(confidences, (shares * count).tolist())
        if sum(costs[k] for k in assigned.tolist()) <= budget:
            low, best = middle, assigned
        else:
            high = middle
    return best


def _surest_first(confidences: Tensor, wanted: Sequence[float]) -> Tensor:
    """At each exit the surest of those still there stop, as many as wanted (fractions are carried on)."""
    exits = torch.full((len(confidences),), confidences.shape[1])
    left, quota, taken = torch.arange(len(confidences)), 0.0, 0
    for k in range(confidences.shape[1]):
        quota += wanted[k]
        stop = min(len(left), round(quota) - taken)
        order = left[confidences[left, k].argsort(descending=True, stable=True)]
        exits[order[:stop]] = k
        left, taken = order[stop:].sort().values, taken + stop
    return exits


# --- anytime ----------------------------------------------------------------------------------------------------------


def last_finished(costs: Sequence[float], budget: float) -> int | None:
    """The last exit, counted from 0, that is finished within a budget; None: not even the first.

    costs: of everything up to each exit, never falling.
    """
    finished = sum(cost <= budget for cost in costs)
    return finished - 1 if finished else None


def worth_going_on(spent: float, costs: Sequence[float], place: int, budget: float) -> bool:
    """Between stages: whether the exit after `place` can still be finished, given what has really been spent."""
    return place + 1 < len(costs) and spent + (costs[place + 1] - costs[place]) <= budget


def random_budgets(right: Tensor, costs: Sequence[float], rng: torch.Generator) -> tuple[float, float]:
    """Mean score and mean cost when every sample is stopped at an exit drawn uniformly from all: SL-ViT, Table 13.

    right: (samples, exits), a score each; costs: of each exit alone. As in the paper, only the exit that answers is
    paid for, not the branches passed on the way.
    """
    drawn = torch.randint(right.shape[1], (len(right),), generator=rng)
    score = right.double().gather(1, drawn[:, None]).mean()
    return float(score), float(torch.tensor([*costs], dtype=torch.float64)[drawn].mean())
