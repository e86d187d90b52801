"""Which layers samples run when they may skip some (Dynamic Transformer paper, section 2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from supple.analysis.finding import OnProgress
from supple.analysis.images import BATCH, answering, batch
from supple.data.samples import Dataset
from supple.methods.skip import Skip
from supple.point import Point


@dataclass(frozen=True)
class LayersRun:
    """What one point did to every image."""

    point: Point
    ran: Tensor  # (images, layers)
    labels: Tensor
    right: Tensor  # whether the answer was
    macs: Tensor

    def by_class(self, classes: int) -> Tensor:
        """Share of a class's images that ran a layer (classes, layers); not a number for a class without images."""
        return torch.stack([self.ran[self.labels == label].double().mean(0) for label in range(classes)])

    def histogram(self) -> Tensor:
        """How many images ran 0, 1, 2, ... layers."""
        return torch.bincount(self.ran.sum(1), minlength=self.ran.shape[1] + 1)


def layers_run(
    model: Skip, data: Dataset, indices: Tensor, points: Sequence[Point], on_progress: OnProgress | None = None
) -> list[LayersRun]:
    """One for each point, in execution order."""
    asked = model.order(points)
    found: dict[Point, list[tuple[Tensor, ...]]] = {point: [] for point in asked}
    with answering(model):
        for some in torch.split(indices, BATCH):
            x, y = batch(model, data, some)
            for output in model.run(x, asked):
                everything = torch.ones(len(y), len(model.trunk.blocks), dtype=torch.bool)  # full asks no gate
                ran = output.aux.get("ran", everything)
                assert output.cost is not None
                answer = ran, y, output.logits.argmax(1) == y, output.cost
                found[output.point].append(tuple(part.cpu() for part in answer))
            if on_progress is not None:
                on_progress(len(some))
    return [LayersRun(point, *(torch.cat(parts) for parts in zip(*found[point]))) for point in asked]
