"""Which class: cross-entropy, accuracy, the five most likely classes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from supple.errors import DataError
from supple.policy.policy import probabilities
from supple.tasks.task import Answer, Array, Metric, Task

if TYPE_CHECKING:
    from torch import Tensor

    from supple.model import Output


TOP_K = 5  # classes that an answer lists, where nothing else is asked for


def losses(output: "Output", target: "Tensor") -> "Tensor":
    from torch.nn.functional import cross_entropy

    return cross_entropy(output.logits.float(), target, reduction="none")


def right(output: "Output", target: "Tensor") -> "Tensor":
    return (output.logits.argmax(1) == target).float()


def answer(logits: Array, classes: Sequence[str], top_k: int = TOP_K) -> list[Answer]:
    p = probabilities(logits)
    best = np.argsort(-p, kind="stable")[:, :top_k]
    ranked = zip(best.tolist(), np.take_along_axis(p, best, 1).tolist())
    return [
        Answer(classes[places[0]], {classes[i]: score for i, score in zip(places, scores)}, {})
        for places, scores in ranked
    ]


def check_targets(targets: Any, classes: tuple[str, ...]) -> None:
    """Refuses what is not one class number per sample."""
    import torch
    from torch import Tensor

    if not isinstance(targets, Tensor) or targets.dtype != torch.int64 or targets.dim() != 1:
        given = f"{targets.dtype} {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets).__name__
        raise DataError(f"labels are {given}.", "Give int64 labels of shape (count,), or name another task.")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= len(classes):
        cure = f"Labels count from 0 to {len(classes) - 1}."
        raise DataError(f"labels lie in {low}..{high} with {len(classes)} classes.", cure)


CLASSES = Task(
    "classes",
    (Metric("accuracy", "top-1", "%", each=right),),
    losses,
    answer,
    objectives=("distill",),
    top_k=TOP_K,
    confidence=True,
    mean_logits=True,
    check_targets=check_targets,
)
