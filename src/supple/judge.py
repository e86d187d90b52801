"""What a policy does to images it has not been chosen on: only outputs are needed, no model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supple.confidence import confidence
from supple.point import Point
from supple.policies import Confident, first_sure

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Half:
    """What every point said of one half of the images."""

    points: tuple[Point, ...]  # in execution order, the full model last
    logits: Sequence[Tensor]  # of each point (samples, classes)
    labels: Tensor

    def right(self) -> Tensor:
        """(samples, points), 1 where the answer is right."""
        return torch.stack([(logits.argmax(1) == self.labels).double() for logits in self.logits], 1)

    def confidences(self, measure: str, temperatures: Sequence[float]) -> Tensor:
        """(samples, points)"""
        found = [confidence(logits, measure, t).double() for logits, t in zip(self.logits, temperatures)]
        return torch.stack(found, 1)


@dataclass(frozen=True)
class Fitted:
    """A policy, what its points cost, and what was found on the way."""

    policy: Confident
    costs: list[float]  # of stopping at each of the policy's points
    temperatures: list[float]  # of all points
    dominated: dict[Point, Point]  # a point that an earlier one is at least as accurate as, and that one


@dataclass(frozen=True)
class Outcome:
    """What a policy did on one half."""

    n: int
    cost: float  # mean
    cost_error: float  # one standard error of it
    accuracy: float
    full_accuracy: float
    drop_error: float  # one standard error of full_accuracy - accuracy, sample by sample
    exits: Tensor  # where each sample stopped, a place in the policy's points


def judge(fitted: Fitted, half: Half) -> Outcome:
    """What a policy does on a half: decided without a look at the labels, which only score it."""
    policy, n = fitted.policy, len(half.labels)
    places = [half.points.index(point) for point in policy.points]
    seen = replace(half, logits=[half.logits[place] for place in places], points=policy.points)
    exits = first_sure(seen.confidences(policy.measure, policy.temperatures)[:, :-1], policy.thresholds)
    right = seen.right().gather(1, exits[:, None]).squeeze(1)
    full = (half.logits[-1].argmax(1) == half.labels).double()
    spent = torch.tensor(fitted.costs, dtype=torch.float64)[exits]
    return Outcome(
        n,
        float(spent.mean()),
        standard_error(spent.numpy()),
        float(right.mean()),
        float(full.mean()),
        standard_error((full - right).numpy()),
        exits,
    )


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


def standard_error(values: Floats) -> float:
    return float(values.std() / math.sqrt(len(values)))
