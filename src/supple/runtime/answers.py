"""The answer for a sample, how sure it is, and the rule that stops on it; on numpy arrays, without torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from supple.runtime.engine import Array
from supple.tasks import Task
from supple.tasks.classes import probabilities


@dataclass(frozen=True)
class Prediction:
    """The answer for one sample, whoever gave it: a run, or an engine with an exported folder."""

    label: str
    scores: dict[str, float]  # the five most likely classes; empty: the task has none
    point: str
    reason: str  # asked, deadline, budget, confident, full, largest (where full is not there), cancelled, not finite
    elapsed_ms: float  # decoding included
    in_time: bool | None = None  # whether the deadline was met, where there was one
    within_budget: bool | None = None  # whether the point keeps the budget, where there was one
    details: dict[str, Any] = field(default_factory=dict)  # what else the task says: a count, objects
    file: str | None = None  # where it is known
    logits: Array = field(repr=False, compare=False, default_factory=lambda: np.zeros(0))

    @property
    def late(self) -> bool:
        return self.in_time is False

    @property
    def best_score(self) -> float | None:
        """Of the most likely class."""
        return max(self.scores.values(), default=None)

    def to_json(self) -> dict[str, Any]:
        """The details stand beside the other keys."""
        facts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("logits", "details")}
        scores = [{"label": label, "score": score} for label, score in self.scores.items()]
        return {**facts, "scores": scores, **self.details}

    def why(self) -> str:
        """The reason, for people: with a word where the limit could not be kept."""
        if self.within_budget is False:
            return "nothing fits; used the cheapest"
        return f"{self.reason}, late" if self.late else self.reason


@dataclass(frozen=True)
class Rule:
    """When a sample stops: at the first of these points that is sure enough. The last one answers what is left."""

    thresholds: dict[str, float]  # by point, in execution order; of the last, 0
    temperatures: dict[str, float]
    measure: str = "max_probability"
    budgeted: bool = True  # whether it ends where it does because of a budget

    def sure(self, point: str, logits: Array) -> Array:
        """Which samples stop at a point; at one that is not named, nobody does."""
        if point not in self.thresholds:
            return np.zeros(len(logits), bool)
        sure: Array = confidence(logits, self.measure, self.temperatures[point]) >= self.thresholds[point]
        return sure

    def last(self, point: str) -> bool:
        return point == list(self.thresholds)[-1]

    @classmethod
    def above(cls, least: float, points: Sequence[str]) -> "Rule":
        """One threshold on the largest probability: nothing is calibrated."""
        return cls({**dict.fromkeys(points[:-1], least), points[-1]: 0.0}, dict.fromkeys(points, 1.0), budgeted=False)

    @classmethod
    def from_json(cls, policy: dict[str, Any] | None) -> "Rule | None":
        """What `Confident.to_json` writes, already checked when it was loaded."""
        if policy is None:
            return None
        thresholds = [math.inf if value is None else float(value) for value in policy["thresholds"]]
        points = policy["points"]
        return cls(dict(zip(points, [*thresholds, 0.0])), dict(zip(points, policy["temperatures"])), policy["measure"])


Reached = tuple[str, Array, str]  # of a sample: the point that answered, its logits, and why it was that one


def predictions(
    task: Task,
    classes: Sequence[str],
    reached: Sequence[Reached],
    temperatures: Mapping[str, float],
    options: Mapping[str, Any],
    **facts: Any,
) -> list[Prediction]:
    """Each sample's answer as its task says it, at the temperature of its point (1 where none is known). options: of
    the task's `answer`; facts: of the predictions, the same for all.
    """
    made: dict[int, Prediction] = {}
    for point in dict.fromkeys(where for where, _, _ in reached):  # one point's answers have one shape
        rows = [row for row, (where, _, _) in enumerate(reached) if where == point]
        logits = np.stack([reached[row][1] for row in rows]) / np.float32(temperatures.get(point, 1.0))
        for row, (label, scores, details) in zip(rows, task.answer(logits, classes, **options)):
            _, own, reason = reached[row]
            made[row] = Prediction(label, scores, point, reason, details=details, logits=own, **facts)
    return [made[row] for row in range(len(reached))]


def confidence(logits: Array, measure: str = "max_probability", temperature: float = 1.0) -> Array:
    """One number in 0..1 for each sample; the same as `supple.confidence` gives for tensors."""
    p = probabilities(logits / temperature)
    if p.shape[-1] == 1:
        sure = p[..., 0]
    elif measure == "margin":
        first = np.sort(p, -1)[..., -2:]
        sure = first[..., 1] - first[..., 0]
    elif measure == "entropy":
        with np.errstate(divide="ignore", invalid="ignore"):
            sure = 1 + np.where(p > 0, p * np.log(p), 0).sum(-1) / math.log(p.shape[-1])
    else:
        sure = p.max(-1)
    result: Array = np.clip(np.nan_to_num(sure, nan=0.0), 0, 1)
    return result
