"""Scores and costs of points that were not measured, guessed from those that were."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from supple.model import FlexibleModel
from supple.point import Point

Array = np.ndarray[Any, Any]
STRENGTHS = np.logspace(-3, 3, 13)  # of the ridge; leaving out one point after the other decides


def axes(model: FlexibleModel, points: Sequence[Point]) -> list[Array]:
    """A column of numbers for each axis, and one for how many layers a point runs, where points differ in that."""
    columns = [_numbers([getattr(point, name) for point in points]) for name in model.axes if name != "layers"]
    counts = [len(model.layers_run(point)) for point in points]
    return [*columns, np.log(counts)] if all(counts) else columns


def features(model: FlexibleModel, points: Sequence[Point]) -> list[Array]:
    """The axes, their squares and products, and for each layer whether a point runs it."""
    numbers, runs = axes(model, points), [{*model.layers_run(point)} for point in points]
    pairs = [first * second for place, first in enumerate(numbers) for second in numbers[place:]]
    which = [np.array([float(layer in layers) for layers in runs]) for layer in sorted(set().union(*runs))]
    return [*numbers, *pairs, *which]


def _numbers(values: Sequence[Any]) -> Array:
    """The values of an axis; None, which is the full model, stands behind the largest."""
    given = [value for value in values if value is not None]
    return np.array([max(given, default=0) + 1 if value is None else value for value in values], dtype=float)


def guess_scores(model: FlexibleModel, points: Sequence[Point], known: Mapping[Point, float]) -> Array:
    """A score for each point: as it is known, or as the axes and layers of those that are known tell."""
    return _filled(features(model, points), _values(points, known))


def guess_macs(model: FlexibleModel, points: Sequence[Point], known: Mapping[Point, float]) -> Array:
    """The same for MACs, which multiply where scores add."""
    return np.exp(_filled(features(model, points), np.log(_values(points, known))))


def guess_ms(
    model: FlexibleModel, points: Sequence[Point], known: Mapping[Point, float], macs: Mapping[Point, float]
) -> Array:
    """The same for times, of which few are known: from the MACs, known for more, and from the axes."""
    table = [np.log(guess_macs(model, points, macs)), *axes(model, points)]
    return np.exp(_filled(table, np.log(_values(points, known))))


def _values(points: Sequence[Point], known: Mapping[Point, float]) -> Array:
    return np.array([known.get(point, np.nan) for point in points], dtype=float)


def _filled(columns: Sequence[Array], values: Array) -> Array:
    """The values; for those that are not known, what a ridge regression on the others says."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    unknown = np.isnan(values)
    if not unknown.any():
        return values
    table, filled = np.stack(columns, axis=1), values.copy()
    fitted = make_pipeline(StandardScaler(), RidgeCV(STRENGTHS)).fit(table[~unknown], values[~unknown])
    filled[unknown] = fitted.predict(table[unknown])
    return filled
