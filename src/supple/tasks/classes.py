"""Which class: cross-entropy, accuracy, the five most likely classes."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from supple.errors import DataError
from supple.model import FlexibleModel, Output
from supple.tasks.task import Task, Told


def losses(output: Output, target: Tensor) -> Tensor:
    return F.cross_entropy(output.logits.float(), target, reduction="none")


def right(output: Output, target: Tensor) -> Tensor:
    return (output.logits.argmax(1) == target).float()


def tell(model: FlexibleModel, output: Output) -> Told:
    best = output.logits.softmax(1)[0].topk(min(5, len(model.classes)))
    scores = {model.classes[i]: p for i, p in zip(best.indices.tolist(), best.values.tolist())}
    return Told(next(iter(scores)), scores, {})


def check_targets(targets: Any, classes: tuple[str, ...]) -> None:
    """Refuses what is not one class number per sample."""
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64 or targets.dim() != 1:
        given = f"{targets.dtype} {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets).__name__
        raise DataError(f"labels are {given}.", "Give int64 labels of shape (count,).")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= len(classes):
        cure = f"Labels count from 0 to {len(classes) - 1}."
        raise DataError(f"labels lie in {low}..{high} with {len(classes)} classes.", cure)


CLASSES = Task("accuracy", True, losses, tell, {"accuracy": right}, check_targets=check_targets)
