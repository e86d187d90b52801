"""Several runs that answer together: the mean of their logits (LayerShuffle paper, section 4.4, table 2)."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from supple.data.parts import Dataset
from supple.model import FlexibleModel
from supple.point import FULL, Point
from supple.scoring import OnProgress, to_device

ARBITRARY = "arbitrary"  # the group of method shuffle


@dataclass(frozen=True)
class Accuracy:
    """Shares of `n` images whose class comes first, and among the first five; deviations over the draws, if any."""

    order: str  # of the layers: sequential or arbitrary
    top1: float
    top5: float
    n: int
    top1_deviation: float | None = None
    top5_deviation: float | None = None
    draws: int | None = None

    def to_json(self) -> dict[str, Any]:
        point = ARBITRARY if self.order == ARBITRARY else str(FULL)
        return {"point": point, **asdict(self), "metric": "accuracy", "score": self.top1, "accuracy": self.top1}


def orders(model: FlexibleModel, rng: random.Random) -> dict[str, Point]:
    """The layers in sequence and, where the model can, in one random order."""
    group = model.groups.get(ARBITRARY)
    return {"sequential": FULL} | ({ARBITRARY: model.check(group.sample(rng))} if group else {})


def hits(logits: Tensor, target: Tensor) -> Tensor:
    """How many samples have their class first, and how many among the first five."""
    found = logits.topk(min(5, logits.shape[1])).indices == target[:, None]
    return torch.stack([found[:, 0].sum(), found.any(1).sum()]).cpu().double()


def answers(model: FlexibleModel, x: Any, ways: dict[str, Point]) -> dict[str, Tensor]:
    """The logits of every order of layers."""
    logits = {output.point: output.logits.float() for output in model.run(x, ways.values())}
    return {order: logits[point] for order, point in ways.items()}


@torch.inference_mode()
def score_ensemble(
    models: Sequence[FlexibleModel],
    data: Dataset,
    *,
    seed: int = 0,
    batch_size: int = 256,
    on_progress: OnProgress | None = None,
) -> list[Accuracy]:
    """Accuracy of the mean logits. In arbitrary order, which all models must know, each has one random order."""
    rng = random.Random(seed)
    ways = [orders(model.eval(), rng) for model in models]
    shared = [order for order in ways[0] if all(order in way for way in ways)]
    sums = {order: torch.zeros(2, dtype=torch.float64) for order in shared}
    device = next(models[0].parameters()).device
    for indices in torch.split(torch.arange(len(data)), batch_size):
        x, y = to_device(data.batch(indices), device)
        found = [answers(model, x, way) for model, way in zip(models, ways)]
        for order in shared:
            sums[order] += hits(torch.stack([logits[order] for logits in found]).mean(0), y)
        if on_progress is not None:
            on_progress(len(indices))
    n = len(data)
    return [Accuracy(order, float(first) / n, float(five) / n, n) for order, (first, five) in sums.items()]
