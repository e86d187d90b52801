"""Scores of all points in one pass over the data."""

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from supple.data.loaders import as_batches
from supple.model import FlexibleModel, Output
from supple.point import AnyPoint, Group, Point
from supple.tasks import get_task

OnProgress = Callable[[int], None]  # is told how many more samples, or graphs, are done
Beside = Callable[[Any, Any, dict[str, Output]], None]


@dataclass(frozen=True)
class Score:
    """How well one point, or one group of points, did."""

    name: str
    metric: str
    score: float
    loss: float
    n: int
    higher_is_better: bool = True
    deviation: float | None = None
    draws: int | None = None
    macs: float | None = None  # mean, where the cost depends on the sample
    extra_metrics: dict[str, float] | None = None  # further figures of the task
    error: float | None = None  # standard error of the score

    def facts(self) -> dict[str, Any]:
        """The part that goes into a ladder row."""
        names = ("metric", "score", "n", "higher_is_better", "deviation", "draws", "extra_metrics")
        facts = {name: getattr(self, name) for name in names}
        facts["score_error"] = self.error
        return facts if self.macs is None else facts | {"macs": round(self.macs)}


@torch.inference_mode()
def evaluate(
    model: FlexibleModel,
    data: Any,
    points: Iterable[AnyPoint] | None = None,
    *,
    batch_size: int = 256,
    channels_last: bool = False,
    on_progress: Callable[[int], None] | None = None,
    beside: Beside | None = None,
) -> list[Score]:
    """One score per point (default: all that the model has), from one pass over `data` in eval mode.

    Scored as the model's task says. `data` is a `Dataset`, a torch data set or a loader (see `data/loaders.py`). Data
    of large samples say how many go together (`at_once`). `on_progress` is called after every batch with the number of
    its samples, `beside` with its inputs, its targets and the outputs of every point.
    """
    task = get_task(model.task)
    asked = model.order(points if points is not None else (*model.points, *model.settled))
    device = next(model.parameters()).device
    meters = {point: task.meter(model) for point in asked}
    spent: dict[Point, float] = {}
    was_training, n = model.training, 0
    model.eval()
    try:
        for *batch, samples in as_batches(data).in_order(batch_size):
            x, y = to_device(tuple(batch), device)
            n += samples
            if channels_last and isinstance(x, Tensor):
                x = x.contiguous(memory_format=torch.channels_last)
            outputs: dict[str, Output] = {}
            for output in model.run(x, asked):
                meters[output.point].add(output, y)
                outputs |= {} if beside is None else {str(output.point): output}
                if output.cost is not None:
                    spent[output.point] = spent.get(output.point, 0.0) + float(output.cost.cpu().double().sum())
            if beside is not None:
                beside(x, y, outputs)
            if on_progress is not None:
                on_progress(samples)
    finally:
        model.train(was_training)
    found = {point: meter.result() for point, meter in meters.items()}
    return [
        Score(
            str(point),
            task.metric,
            result.score,
            result.loss,
            n,
            task.higher_is_better,
            macs=spent[point] / n if spent else None,
            extra_metrics=result.extra_metrics or None,
            error=result.error,
        )
        for point, result in found.items()
    ]


def evaluate_group(
    model: FlexibleModel, data: Any, group: Group, draws: int = 5, seed: int = 0, **settings: Any
) -> Score:
    """Mean and deviation of the score over points drawn from a group, all in one pass over the data."""
    drawn = [str(point) for point in draw(model, group, draws, seed)]
    found = {score.name: score for score in evaluate(model, data, map(Point.parse, drawn), **settings)}
    scores = [found[name] for name in drawn]
    return replace(
        scores[0],
        name=group.name,
        score=statistics.fmean(score.score for score in scores),
        loss=statistics.fmean(score.loss for score in scores),
        deviation=statistics.pstdev(score.score for score in scores),
        draws=draws,
        error=None,
    )


def draw(model: FlexibleModel, group: Group, draws: int, seed: int) -> list[Point]:
    """The same points of a group for the same seed; other groups draw their own."""
    rng = random.Random(f"{seed}/{group.name}")
    return [model.check(group.sample(rng)) for _ in range(draws)]


def mean_score(scores: Sequence[Score]) -> float:
    """The mean over the points, signed so that more is always better."""
    sign = 1 if scores[0].higher_is_better else -1
    return sign * statistics.fmean(score.score for score in scores)


def mean_loss(scores: Sequence[Score]) -> float:
    return statistics.fmean(score.loss for score in scores)


def to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(part, device) for part in value))
    if isinstance(value, (tuple, list)):
        return tuple(to_device(part, device) for part in value)
    return value.to(device) if isinstance(value, Tensor) else value
