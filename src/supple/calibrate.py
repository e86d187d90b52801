"""Calibration: thresholds for a budget or for an accuracy, from held-out images that are split in two.

The first half decides (temperatures, which exits are looked at, thresholds); the second only says what came of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supple.confidence import confidence, fit_temperature
from supple.errors import RecipeError
from supple.policies import Confident, first_sure
from supple.point import Point
from supple.thresholds import Found, search

CHOSEN_ON = 2000  # samples that decide which exits are looked at; thresholds are then found on all
Costs = Callable[[tuple[Point, ...]], list[float]]  # of stopping at each of these points, when only these are looked at


@dataclass(frozen=True)
class Goal:
    """What is asked for: a mean cost, or an accuracy at most so far below the full model's."""

    kind: str  # budget_macs, budget_ms or accuracy_drop
    value: float
    relative: bool = False  # a share of the full model's cost
    given: str = ""

    @property
    def unit(self) -> str:
        return "ms" if self.kind == "budget_ms" else "macs"

    @classmethod
    def parse(cls, kind: str, text: str) -> "Goal":
        option = "--" + kind.replace("_", "-")
        relative = kind != "accuracy_drop" and text.strip().endswith("x")
        try:
            value = float(text.strip().removesuffix("x")) if relative else float(text)
        except ValueError:
            value = math.nan
        if kind == "accuracy_drop":
            if not 0 <= value < 1:
                raise RecipeError(f'{option} is "{text}".', "Give a share from 0 to 1: 0.01 is one percentage point.")
        elif not 0 < value < math.inf:
            cure = f"Give {'4 (ms)' if kind == 'budget_ms' else '2e6'}, or 0.5x for half of the full model's cost."
            raise RecipeError(f'{option} is "{text}".', cure)
        return cls(kind, value, relative, text.strip())


@dataclass(frozen=True)
class Half:
    """What every point said of one half of the held-out images."""

    logits: Sequence[Tensor]  # per point (samples, classes)
    labels: Tensor

    def right(self) -> np.ndarray:
        """(samples, points)"""
        return np.stack([(logits.argmax(1) == self.labels).double().numpy() for logits in self.logits], 1)

    def confidences(self, measure: str, temperatures: Sequence[float]) -> np.ndarray:
        """(samples, points)"""
        found = [confidence(logits, measure, t) for logits, t in zip(self.logits, temperatures)]
        return torch.stack(found, 1).double().numpy()


@dataclass(frozen=True)
class Fitted:
    """A policy and the exits it came from."""

    policy: Confident
    costs: list[float]  # of stopping at each of the policy's points
    dominated: dict[Point, Point]  # a point that is no better than an earlier one, and that one
    temperatures: list[float]  # of all points
    accuracies: list[float]  # of all points on the first half
    only_full: bool = False  # an accuracy that nothing but the full model keeps


def fit(
    first: Half,
    points: Sequence[Point],
    costs: Costs,
    *,
    budget: float | None = None,
    drop: float | None = None,
    measure: str = "max_probability",
    keep_dominated: bool = False,
    timed: Costs | None = None,
) -> Fitted:
    """The policy for a mean cost, or for an accuracy at most `drop` below the full model's, from the first half alone.

    A budget is kept with one standard error of the mean cost to spare, and a drop with one of the paired difference
    from the full model: what was chosen among thousands of thresholds looks better than it is.

    `timed`: the costs that the budget is meant in, where `costs` (counted, and so without noise) only decide which
    exits are looked at.
    """
    temperatures = [fit_temperature(logits, first.labels) for logits in first.logits]
    right = first.right()
    sure = first.confidences(measure, temperatures)
    accuracies = right.mean(0).tolist()
    dominated = find_dominated(points, accuracies)
    used = tuple(i for i in range(len(points)) if keep_dominated or points[i] not in dominated or i == len(points) - 1)

    def solve(chosen: tuple[int, ...], price: Costs, rows: Any, **settings: Any) -> Found | None:
        table = right[rows][:, chosen]
        limit = {"accuracy": right[rows][:, -1].mean() - drop} if drop is not None else {"budget": settings.pop("limit")}
        settings.pop("limit", None)
        return search(sure[rows][:, chosen[:-1]], table, price(_pick(points, chosen)), **limit, **settings)
    raise NotImplementedError
