"""A policy names points in execution order and says how sure each must be for a sample to stop there."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from supple.errors import CheckpointError, PointError, import_cure
from supple.files import read_json
from supple.point import Point

Array = np.ndarray[Any, Any]
POLICY = "policy.json"  # of a run

# --- confidence -------------------------------------------------------------------------------------------------------


def probabilities(logits: Array, temperature: float | Array = 1.0) -> Array:
    """The softmax over the last axis, in float32."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = logits.astype(np.float32) / np.asarray(temperature, np.float32)
        powers = np.exp(scaled - scaled.max(-1, keepdims=True))
        result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def max_probability(p: Array) -> Array:
    result: Array = p.max(-1)
    return result


def margin(p: Array) -> Array:
    """How far the likeliest class is ahead of the next one."""
    if p.shape[-1] == 1:
        return p[..., 0]
    first_two = np.partition(p, -2, -1)[..., -2:]
    result: Array = first_two[..., 1] - first_two[..., 0]
    return result


def entropy(p: Array) -> Array:
    """1 - H / ln c: 1 for a single class, 0 for c equally likely ones."""
    if p.shape[-1] == 1:
        return p[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Array = 1 + np.where(p == 0, 0, p * np.log(p)).sum(-1) / math.log(p.shape[-1])
    return result


MEASURES: dict[str, Callable[[Array], Array]] = {
    "max_probability": max_probability,
    "margin": margin,
    "entropy": entropy,
}


def confidence(logits: Array, measure: str = "max_probability", temperature: float = 1.0) -> Array:
    """How sure each answer is, from its logits alone: 0 not at all (or not a number), 1 certain."""
    sure = MEASURES[measure](probabilities(logits, temperature))
    result: Array = np.minimum(np.fmax(sure, 0), 1)
    return result


# --- the policy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """Stop at the first of these points whose confidence reaches its threshold; the last one answers what is left.

    A threshold of 0 stops everybody, infinity nobody. Points that are not named here are not looked at, so that their
    heads need not run.
    """

    points: tuple[Point, ...]  # in execution order
    thresholds: tuple[float, ...]  # of all points but the last
    temperatures: tuple[float, ...]  # of all points
    measure: str = "max_probability"
    shares: tuple[float, ...] = ()  # of the samples that each point is expected to answer; none: not known
    facts: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what its calibration has found

    def __post_init__(self) -> None:
        assert len(self.points) == len(self.temperatures) == len(self.thresholds) + 1
        assert self.measure in MEASURES
        assert len(self.shares) in (0, len(self.points))

    @property
    def calibrated(self) -> bool:
        """Whether data have decided, so that a last point before the full model is there to keep a budget."""
        return bool(self.shares)

    def stops(self, place: int, logits: Array) -> Array:
        """Which samples stop at the point in this place, given its logits: a mask over the batch."""
        if place == len(self.thresholds):
            return np.ones(len(logits), bool)
        # Compared as doubles: rounded to a float, a threshold between two near confidences could fall on either.
        sure = confidence(logits, self.measure, self.temperatures[place]).astype(np.float64)
        result: Array = sure >= self.thresholds[place]
        return result

    def only(self, places: Sequence[int]) -> "Policy":
        """With some of its points. Whoever is expected to stop at another one stops at the next of these; the last one
        answers all that is left."""
        until = [0.0, *np.cumsum(self.shares)[[*places[:-1]]].tolist(), 1.0] if self.shares else []
        return replace(
            self,
            points=tuple(self.points[place] for place in places),
            thresholds=tuple(self.thresholds[place] for place in places[:-1]),
            temperatures=tuple(self.temperatures[place] for place in places),
            shares=tuple(until[k + 1] - until[k] for k in range(len(until) - 1)),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "measure": self.measure,
            "points": [str(point) for point in self.points],
            "thresholds": [None if math.isinf(threshold) else threshold for threshold in self.thresholds],
            "temperatures": list(self.temperatures),
            "shares": list(self.shares),
        }

    @classmethod
    def from_json(cls, document: Any) -> "Policy":
        try:
            points = tuple(Point.parse(text) for text in document["points"])
            thresholds = tuple(math.inf if t is None else _number(t) for t in document["thresholds"])
            temperatures = tuple(_number(t) for t in document["temperatures"])
            shares = tuple(_number(share) for share in document["shares"])
            if document["measure"] not in MEASURES:
                raise ValueError(f"measure {document['measure']!r}")
            if not len(points) == len(temperatures) == len(thresholds) + 1 or len(shares) not in (0, len(points)):
                raise ValueError(f"{len(points)} points, {len(thresholds)} thresholds, {len(shares)} shares")
            if min(temperatures) <= 0:
                raise ValueError(f"temperature {min(temperatures)}")
            return cls(points, thresholds, temperatures, document["measure"], shares)
        except (TypeError, LookupError, AttributeError, ValueError) as error:
            cure = "Calibrate again: supple calibrate RUN."
            raise CheckpointError(f"this is not a valid policy ({error}).", cure) from None


def read_policy(folder: Path, manifest: Mapping[str, Any] | None = None) -> tuple[Policy, dict[str, Any]] | None:
    """The policy of a run, and the document that it is kept in, which names its `weights`; None: there is none."""
    path = folder / POLICY
    if not path.is_file():
        return None
    cure = f"Delete it and calibrate again: supple calibrate {folder} --budget-macs 0.5x."
    document = read_json(path, cure)
    try:
        policy = Policy.from_json(document)
    except PointError as error:
        raise CheckpointError(f"{path}: {error.cause}", f"{import_cure(manifest)} If not, d{cure[1:]}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.cause}", cure) from None
    own = {"weights", *policy.to_json()}
    return replace(policy, facts={key: value for key, value in document.items() if key not in own}), document


def run_policy(folder: Path, manifest: Mapping[str, Any]) -> Policy | None:
    """The same, if it was calibrated for the weights that the manifest of the run names."""
    found = read_policy(folder, manifest)
    weights = manifest["files"].get("model.safetensors")
    return None if found is None or found[1].get("weights") != weights else found[0]


def stop_above(points: Sequence[Point], least: float) -> Policy:
    """One threshold on the largest probability at every point, as the logits give it: nothing is calibrated."""
    return Policy(tuple(points), (least,) * (len(points) - 1), (1.0,) * len(points))


def first_sure(confidences: Array, thresholds: Sequence[float]) -> Array:
    """For every sample the first exit whose confidence reaches its threshold, counted from 0; else the last exit.

    confidences: (samples, exits but the last).
    """
    enough = confidences.astype(np.float64) >= np.array([*thresholds], np.float64)
    result: Array = np.concatenate([enough, np.ones((len(enough), 1), bool)], 1).argmax(1)  # the first of equals
    return result


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
