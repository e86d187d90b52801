"""A network as it is: one point. What exits, widths and depths are compared with, and what they start from."""

import copy
from collections.abc import Generator, Iterable
from typing import Any, Literal

from torch import Tensor, nn

from supple.backbones.top import classifier_of
from supple.errors import RecipeError
from supple.model import FlexibleModel, Output, said
from supple.point import FULL, Point

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


class Whole(FlexibleModel):
    """The one point `full`. For the transfer stage of SL-ViT, section 4.2, only norms and top may learn."""

    backbone: nn.Module

    def __init__(self, backbone: nn.Module, *, learn: Literal["all", "norms", "top"] = "all") -> None:
        super().__init__()
        if isinstance(getattr(backbone, "heads", None), nn.ModuleList):
            raise RecipeError(
                f"method whole wants a network with one top; {type(backbone).__name__} has exits of its own.",
                "Use method exits; train.sample=full trains its last exit alone.",
            )
        self.backbone, self.points, self.learn = backbone, (FULL,), learn
        if learn != "all":
            path = classifier_of(backbone)
            if path is None:
                raise RecipeError(
                    f"method.learn is {learn}, but {type(backbone).__name__} does not say which layer is its top.",
                    "Use learn=all.",
                )
            backbone.requires_grad_(False)
            backbone.get_submodule(path).requires_grad_(True)
            for part in backbone.modules():
                if learn == "norms" and isinstance(part, NORMS):
                    part.requires_grad_(True)

    def run(self, x: Any, points: Iterable[Point]) -> Generator[Output, Tensor | None, None]:
        for point in self.order(points):
            yield said(point, self.backbone(x))

    def plain(self, point: Point) -> nn.Module:
        return copy.deepcopy(self.backbone)

    def train(self, mode: bool = True) -> "Whole":
        super().train(mode)
        if self.learn == "top":
            self.backbone.eval()
        return self
