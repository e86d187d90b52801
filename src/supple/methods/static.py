"""A network as it is: one point. What exits, widths and depths are compared with, and what they start from."""

import copy
from collections.abc import Iterable
from typing import Any, Literal

from torch import nn

from supple.backbones.protocols import as_exits, as_trunk, classifier_of
from supple.errors import RecipeError
from supple.methods._trunk import blocks_path
from supple.model import FlexibleModel, Outputs, as_output
from supple.point import FULL, AnyPoint, Point

Learn = Literal["all", "norms", "classifier"]
NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


class Static(FlexibleModel):
    """The one point `full`. For the transfer stage of SL-ViT, section 4.2, only norms and classifier may learn."""

    backbone: nn.Module

    def __init__(
        self,
        backbone: nn.Module,
        *,
        learn: Learn = "all",  # what learns; the rest is frozen
        freeze_random: bool = False,  # allow frozen parts whose weights are random
    ) -> None:
        super().__init__()
        if as_exits(backbone) is not None:
            raise RecipeError(
                f"method static needs a network with one classifier; {type(backbone).__name__} has exits of its own.",
                "Use method exits; train.sample=full trains its last exit alone.",
            )
        self.backbone, self.points, self.learn = backbone, (FULL,), learn
        if learn != "all":
            path = classifier_of(backbone)
            if path is None:
                cause = f"{type(backbone).__name__} does not say which layer is its classifier"
                raise RecipeError(f"method.learn is {learn}, but {cause}.", "Use learn=all.")
            backbone.requires_grad_(False)
            backbone.get_submodule(path).requires_grad_(True)
            for part in backbone.modules():
                if learn == "norms" and isinstance(part, NORMS):
                    part.requires_grad_(True)

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        for point in self.order(points):
            yield as_output(point, self.backbone(x))

    def plain(self, point: Point) -> nn.Module:
        return copy.deepcopy(self.backbone)

    def mergeable(self) -> tuple[str, ...]:
        trunk = as_trunk(self.backbone)
        return () if trunk is None else (blocks_path(self, trunk),)

    def train(self, mode: bool = True) -> "Static":
        super().train(mode)
        if self.learn == "classifier":
            self.backbone.eval()
        return self
