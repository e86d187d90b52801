"""Mixup and cutmix: images of a batch blended with one another, and their labels with them."""

from typing import Any

import torch
from torch import Tensor

from supple.errors import RecipeError
from supple.recipe import Train


def mixed(settings: Train, x: Any, y: Any, num_classes: int) -> tuple[Any, Any]:
    """A batch as the settings say: the images, and for each a row of shares of the classes. With both, each batch takes
    one of them by chance. Draws from torch's generator, which the loop seeds for every step.
    """
    if not settings.mixup and not settings.cutmix:
        return x, y
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or y.dtype != torch.int64 or y.dim() != 1:
        cause = "train.mixup and train.cutmix blend images that have one class each; these data are others."
        raise RecipeError(cause, "Leave them out.")
    from torchvision.transforms import v2

    kinds = {v2.MixUp: settings.mixup, v2.CutMix: settings.cutmix}
    ways = [kind(alpha=alpha, num_classes=num_classes) for kind, alpha in kinds.items() if alpha]
    found: tuple[Tensor, Tensor] = v2.RandomChoice(ways)(x, y)
    return found
