"""From logits to an answer, on numpy arrays: chances, confidence, the five likeliest classes."""

import math
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
    reason: str  # asked, deadline, confident, budget, full or cancelled
    elapsed_ms: float  # decoding included
    late: bool = False  # whether a deadline was missed
    logits: Array = field(repr=False, compare=False, default_factory=lambda: np.zeros(0))

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        del facts["logits"]
        return {**facts, "scores": [{"label": label, "score": score} for label, score in self.scores.items()]}


def chances(logits: Array, temperature: float = 1.0) -> Array:
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


def likeliest(row: Array, classes: tuple[str, ...], temperature: float = 1.0) -> dict[str, float]:
    p = chances(row, temperature)
    best = np.argsort(-p, kind="stable")[: min(5, len(classes))]
    return {classes[i]: float(p[i]) for i in best}
