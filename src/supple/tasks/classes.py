"""Which class: cross-entropy, accuracy, the five most likely classes."""

from torch import Tensor
from torch.nn import functional as F

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


CLASSES = Task("accuracy", True, losses, tell, {"accuracy": right})
