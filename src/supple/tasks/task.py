"""What every task offers: losses to watch, scores of samples, and a meter that reads the score of a whole data set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from PIL import Image
from torch import Tensor

from supple.model import FlexibleModel, Output


class Result(NamedTuple):
    """What a meter reads."""

    score: float
    loss: float  # what validation watches: less is better
    also: dict[str, float]  # further figures, by name


class Meter(Protocol):
    """Takes outputs batch by batch and reads their score at the end."""

    def add(self, output: Output, target: Any) -> None: ...
    def result(self) -> Result: ...


class Told(NamedTuple):
    """The answer for one sample: in a word, with its chances, and whatever else a program would want to know."""

    label: str
    scores: dict[str, float]
    also: dict[str, Any]


Each = Callable[[Output, Any], Tensor]


@dataclass(frozen=True)
class Task:
    """`each` gives figures of every sample by name, the task's score first; a task whose score no single sample has
    (mean average precision) gives a `meter` instead.
    """

    metric: str
    higher_is_better: bool
    losses: Each  # of every sample, or their mean
    tell: Callable[[FlexibleModel, Output], Told]  # of an output for a batch of one
    each: Mapping[str, Each] = field(default_factory=dict)
    meter_of: Callable[[FlexibleModel], Meter] | None = None
    draw: Callable[[FlexibleModel, Output, Path], Image.Image] | None = None  # an answer on its picture
    above: Callable[[float], "Task"] | None = None  # the same task, telling only what is this sure
    check_targets: Callable[[Any, tuple[str, ...]], None] | None = None  # refuses a set's targets for these classes

    def meter(self, model: FlexibleModel) -> Meter:
        return Means(self) if self.meter_of is None else self.meter_of(model)


class Means:
    """Means over the samples."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.sums = torch.zeros(1 + len(task.each), dtype=torch.float64)
        self.samples = 0

    def add(self, output: Output, target: Any) -> None:
        figures = [self.task.losses(output, target), *(each(output, target) for each in self.task.each.values())]
        self.sums += torch.stack([figure.sum() for figure in figures]).double().cpu()
        self.samples += len(figures[0])

    def result(self) -> Result:
        loss, score, *rest = (self.sums / max(1, self.samples)).tolist()
        return Result(score, loss, dict(zip(list(self.task.each)[1:], rest)))
