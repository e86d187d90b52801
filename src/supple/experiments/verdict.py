"""The rule of verdicts as arithmetic (docs/claims.md): a difference over seeds, its interval, and what follows.

NumPy and SciPy only. Figures are percentage points, or in the unit that a claim names.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Expect = Literal["above", "below", "within", "at_least"]
SEEDS = 3  # the fewest that a verdict takes
LEVEL = 0.95


@dataclass(frozen=True)
class Sample:
    """A figure of one seed: a constant, and for each set of images a value per image, whose means are added to it."""

    each: Mapping[str, Array]  # points of every image, by the name of the set of images
    constant: float = 0.0

    @property
    def mean(self) -> float:
        return self.constant + sum(float(values.mean()) for values in self.each.values())


@dataclass(frozen=True)
class Effect:
    """A difference, and the half-width of its interval; None: too few seeds."""

    points: float
    half: float | None
    seeds: int

    def __str__(self) -> str:
        return f"{self.points:+.2f}" + ("" if self.half is None else f" ± {self.half:.2f}")


def combine(terms: Sequence[tuple[float, Sample]], constant: float = 0.0) -> Sample:
    """A weighted sum of the figures of one seed, image by image: what arms share on an image cancels."""
    each: dict[str, Array] = {}
    for weight, sample in terms:
        constant += weight * sample.constant
        for images, values in sample.each.items():
            each[images] = each.get(images, 0.0) + weight * values.astype(float)
    return Sample(each, constant)


def effect(seeds: Sequence[Sample]) -> Effect:
    """The mean over seeds, with t * sqrt(s^2 / n + v): s^2 over the seeds, v over the images."""
    means = [sample.mean for sample in seeds]
    points, n = statistics.fmean(means), len(means)
    if n < SEEDS:
        return Effect(points, None, n)
    spread = statistics.variance(means) / n
    images = {name for sample in seeds for name in sample.each}
    over_images = 0.0
    for name in images:  # seeds that share images share their luck; a seed's own images count for its part of the mean
        shared = [sample.each[name] for sample in seeds if name in sample.each]
        over_images += image_variance(np.sum(shared, axis=0) / n)
    return Effect(points, t_value(n) * math.sqrt(spread + over_images), n)


def image_variance(each: Array) -> float:
    """The variance of a mean when its images are drawn again, with replacement: the bootstrap.

    For a mean, endless resampling gives just this, so nothing is drawn: the same results give the same page.
    """
    return float(np.var(each)) / len(each)


def t_value(n: int) -> float:
    """Student's t for so many seeds, two-sided."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, n - 1))


def judge(found: Effect | None, expect: Expect, margin: float) -> str:
    """`holds`, `fails` or `undecided`.

    above, below: the whole interval lies on that side of 0, or on the other. within: it lies within the margin around
    0, or wholly outside. at_least: it lies above minus the margin, or wholly below.
    """
    if found is None or found.half is None:
        return "undecided"
    low, high = found.points - found.half, found.points + found.half
    holds, fails = {
        "above": (low > 0, high < 0),
        "below": (high < 0, low > 0),
        "within": (-margin <= low and high <= margin, low > margin or high < -margin),
        "at_least": (low >= -margin, high < -margin),
    }[expect]
    return "holds" if holds else "fails" if fails else "undecided"
