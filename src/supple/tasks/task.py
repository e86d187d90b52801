"""What a task declares: how its answers are scored, put into words and drawn, and what else may be done with them.

Importing a task does not import torch: exported folders answer without it. Functions that work on tensors import what
they need when they are called.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from supple.model import FlexibleModel, Output

Array = np.ndarray[Any, Any]
Each = Callable[["Output", Any], "Tensor"]  # a figure of every sample, from an output and its targets


@dataclass(frozen=True)
class Metric:
    """One figure of how good answers are."""

    name: str  # in ladders and JSON
    label: str = ""  # in tables and reports; empty: the name
    unit: Literal["", "%"] = ""  # %: a share of 1, shown times 100
    higher_is_better: bool = True
    each: Each | None = None  # None: only a whole data set has it, and a meter reads it

    @property
    def called(self) -> str:
        return self.label or self.name

    @property
    def title(self) -> str:
        """With its unit: the head of a column."""
        return f"{self.called} {self.unit}".rstrip()

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown."""
        return 100.0 if self.unit == "%" else 1.0


class Result(NamedTuple):
    """What a meter reads."""

    score: float
    loss: float  # what validation watches: less is better
    extra_metrics: dict[str, float]  # by name
    error: float | None = None  # standard error of the score, where it is a mean over samples


class Meter(Protocol):
    """Takes outputs batch by batch and reads their score at the end."""

    def add(self, output: "Output", target: Any) -> None: ...
    def result(self) -> Result: ...


class Answer(NamedTuple):
    """The answer for one sample."""

    label: str  # in a few words
    scores: dict[str, float]  # of the most likely classes, best first; empty: it has none
    details: dict[str, Any]  # what else a program would want to know, as JSON


@dataclass(frozen=True)
class Task:
    """`answer(logits, classes)` puts the logits of a batch into words, in numpy; `draw(picture, logits, aux, classes)`
    draws the answer for one sample on its picture, uint8 (height, width, 3); `aux` is that of its `Output`. A task with
    `min_score` takes it as a keyword in both, one with `top_k` in `answer`.
    """

    name: str
    metrics: tuple[Metric, ...]  # the score first
    losses: Each  # of every sample, or their mean
    answer: Callable[..., list[Answer]]
    objectives: tuple[str, ...]  # of losses.OBJECTIVES: those that train it
    meter_of: "Callable[[FlexibleModel], Meter] | None" = None  # where a metric is more than a mean over samples
    draw: "Callable[..., Image.Image] | None" = None
    min_score: float | None = None  # what scores less is left out of an answer, unless another limit is asked for
    top_k: int | None = None  # classes that an answer lists, best first, unless another number is asked for
    output: str = "logits"  # what exported graphs call what they give
    exportable: bool = True  # whether graphs can answer it: as many outputs for every sample
    confidence: bool = False  # whether softmax of the logits says how sure an answer is: policies may stop on it
    mean_logits: bool = False  # whether the mean logits of several models are an answer, scored by top-1 and top-5
    check_targets: Callable[[Any, tuple[str, ...]], None] | None = None  # refuses a set's targets for these classes

    @property
    def metric(self) -> str:
        """The name of the score."""
        return self.metrics[0].name

    @property
    def higher_is_better(self) -> bool:
        return self.metrics[0].higher_is_better

    @property
    def each(self) -> Mapping[str, Each]:
        """The metrics that every sample has, by name."""
        return {metric.name: metric.each for metric in self.metrics if metric.each is not None}

    def meter(self, model: "FlexibleModel") -> Meter:
        return Means(self) if self.meter_of is None else self.meter_of(model)


class Means:
    """Means over the samples."""

    def __init__(self, task: Task) -> None:
        from torch import float64, zeros

        self.task = task
        self.sums = zeros(1 + len(task.each), dtype=float64)
        self.samples, self.squares = 0, 0.0

    def add(self, output: "Output", target: Any) -> None:
        from torch import stack

        figures = [self.task.losses(output, target), *(each(output, target) for each in self.task.each.values())]
        self.sums += stack([figure.sum() for figure in figures]).cpu().double()  # Apple's GPUs have no double
        self.samples += len(figures[0])
        self.squares += float(figures[1].cpu().double().square().sum())

    def result(self) -> Result:
        count = max(1, self.samples)
        loss, score, *rest = (self.sums / count).tolist()
        error = math.sqrt(max(0.0, self.squares / count - score**2) / count)
        return Result(score, loss, dict(zip(list(self.task.each)[1:], rest)), error)
