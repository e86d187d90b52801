"""From logits to an answer, on numpy arrays: chances, confidence, the five likeliest classes."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from supple.runtime.engine import Array


@dataclass(frozen=True)
class Prediction:
    """The answer for one sample."""

    label: str
    scores: dict[str, float]  # the five most likely classes
    point: str
    reason: str  # asked, deadline, budget, confident, full, largest (where full is not there), cancelled, not finite
    elapsed_ms: float  # decoding included
    late: bool = False  # whether a deadline was missed
    logits: Array = field(repr=False, compare=False, default_factory=lambda: np.zeros(0))
    also: dict[str, Any] = field(default_factory=dict)  # what else the task tells: a count

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        del facts["logits"], facts["also"]
        scores = [{"label": label, "score": score} for label, score in self.scores.items()]
        return {**facts, "scores": scores, **self.also}


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


def told(
    task: str, classes: tuple[str, ...], reached: Sequence[Reached], elapsed: float, late: bool, rule: Rule | None
) -> list[Prediction]:
    """The answer for each sample, in words."""
    if task == "count":
        counted = [(point, logits, reason, float(logits.sum())) for point, logits, reason in reached]
        noun = classes[0] if classes else "people"
        return [
            Prediction(f"{number:.1f} {noun}", {}, point, reason, elapsed, late, logits, {"count": number})
            for point, logits, reason, number in counted
        ]
    temperatures = [[1.0 if rule is None else rule.temperatures.get(point, 1.0)] for point, _, _ in reached]
    p = chances(np.stack([logits for _, logits, _ in reached]), np.array(temperatures, np.float32))
    best = np.argsort(-p, kind="stable")[:, : min(5, len(classes))]
    ranked = zip(reached, best.tolist(), np.take_along_axis(p, best, 1).tolist())
    return [
        Prediction(
            classes[first[0]], dict(zip(map(classes.__getitem__, first), scores)), point, reason, elapsed, late, logits
        )
        for (point, logits, reason), first, scores in ranked
    ]


def chances(logits: Array, temperature: float | Array = 1.0) -> Array:
    scaled = logits.astype(np.float32) / temperature
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def confidence(logits: Array, measure: str = "max_probability", temperature: float = 1.0) -> Array:
    """One number in 0..1 for each sample; the same as `supple.confidence` gives for tensors."""
    p = chances(logits, temperature)
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
