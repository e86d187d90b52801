"""What each layer of weighted dense connections reads (Dynamic Transformer paper, figures 1 to 4)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from supple.analysis.finding import OnProgress
from supple.analysis.images import BATCH, answering, batch
from supple.data.samples import Dataset
from supple.methods.dense import Dense
from supple.point import FULL


@dataclass(frozen=True)
class Dependencies:
    """Mean weights (layers, activations): row j says what layer j + 1 reads; activation 0 is the patch encoding."""

    weights: Tensor
    count: int  # of images


def dependencies(
    model: Dense, data: Dataset, indices: Tensor, on_progress: OnProgress | None = None
) -> dict[str, Dependencies | None]:
    """Of all images, and of those classified rightly and wrongly; None where there is no such image."""
    weights, right = [], []
    with answering(model):
        for some in torch.split(indices, BATCH):
            x, y = batch(model, data, some)
            (output,) = model.run(x, (FULL,))
            weights.append(output.aux["weights"].cpu())
            right.append((output.logits.argmax(1) == y).cpu())
            if on_progress is not None:
                on_progress(len(some))
    each, correct = torch.cat(weights), torch.cat(right)
    return {
        "all": _mean(each),
        "right": _mean(each[correct]),
        "wrong": _mean(each[~correct]),
    }


def _mean(weights: Tensor) -> Dependencies | None:
    return Dependencies(weights.double().mean(0), len(weights)) if len(weights) else None
