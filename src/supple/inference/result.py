"""The answer for a sample, as every path gives it. Without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from supple.inference.engines import Array
from supple.inference.walk import Reached
from supple.tasks import Task


@dataclass(frozen=True)
class Prediction:
    """The answer for one sample, whoever gave it: a run, or an engine with an exported folder."""

    label: str
    scores: dict[str, float]  # the most likely classes, best first; empty: the task has none
    point: str
    reason: str  # asked, deadline, budget, confident, full, largest (where full is not there), cancelled, not finite
    elapsed_ms: float  # decoding included
    in_time: bool | None = None  # whether the deadline was met, where there was one
    within_budget: bool | None = None  # whether the point keeps the budget, where there was one
    details: dict[str, Any] = field(default_factory=dict)  # what else the task says: a count, objects
    file: str | None = None  # where it is known
    logits: Array = field(repr=False, compare=False, default_factory=lambda: np.zeros(0))
    aux: dict[str, Any] = field(repr=False, compare=False, default_factory=dict)  # what drawing needs beside them

    @property
    def late(self) -> bool:
        return self.in_time is False

    @property
    def best_score(self) -> float | None:
        """Of the most likely class, if the label names it."""
        return next((score for name, score in self.scores.items() if name in self.label), None)

    def to_json(self) -> dict[str, Any]:
        """The details stand beside the other keys."""
        facts = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("logits", "aux", "details")
        }
        scores = [{"label": label, "score": score} for label, score in self.scores.items()]
        return {**facts, "scores": scores, **self.details}

    def why(self) -> str:
        """The reason, for people: with a word where the limit could not be kept."""
        if self.within_budget is False:
            return "nothing fits; used the cheapest"
        return f"{self.reason}, late" if self.late else self.reason


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
    for shape in dict.fromkeys(logits.shape for _, logits, _ in reached):  # of most tasks, the same at every point
        rows = [row for row, (_, logits, _) in enumerate(reached) if logits.shape == shape]
        scales = np.array([temperatures.get(reached[row].point, 1.0) for row in rows], np.float32)
        logits = np.array([reached[row].logits for row in rows]) / scales.reshape(-1, *(1 for _ in shape))
        for row, (label, scores, details) in zip(rows, task.answer(logits, classes, **options)):
            point, own, reason = reached[row]
            made[row] = Prediction(label, scores, point, reason, details=details, logits=own, **facts)
    return [made[row] for row in range(len(reached))]
