"""How many: whatever a network gives (a density map, or one number) sums to the count."""

from typing import Any, NamedTuple

from torch import Tensor

from supple.model import FlexibleModel, Output
from supple.tasks.heat import draw
from supple.tasks.task import Task, Told


class Crowd(NamedTuple):
    """What is true of a batch of pictures."""

    heads: Tensor  # (batch,)
    density: Tensor  # (batch, 1, height, width); each map sums to the number of heads


def counted(output: Output) -> Tensor:
    return output.logits.float().flatten(1).sum(1)


def apart(output: Output, target: Any) -> Tensor:
    true = target.heads if isinstance(target, Crowd) else target
    return (counted(output) - true.flatten()).abs()


def squared(output: Output, target: Any) -> Tensor:
    return apart(output, target).square()


def tell(model: FlexibleModel, output: Output) -> Told:
    number = float(counted(output)[0])
    return Told(f"{number:.1f} {model.classes[0] if model.classes else 'people'}", {}, {"count": number})


COUNT = Task("mae", False, apart, tell, {"mae": apart, "mse": squared}, draw=draw)
