"""Early exits: stop after any block that has a classifier of its own."""

import copy
from collections.abc import Generator, Iterable
from typing import Any, cast

from torch import Tensor, nn

from supple.errors import PointError, RecipeError
from supple.model import FlexibleModel, Output, Stage, is_empty, select
from supple.point import FULL, Point


class Exits(FlexibleModel):
    """Points `exit=1` ... `full` over a backbone that has `blocks` (state -> state) and `heads` (state -> logits).

    A run stopped at exit k executes the blocks up to k and only the heads that were asked for.
    """

    backbone: nn.Module

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        blocks, heads = getattr(backbone, "blocks", None), getattr(backbone, "heads", None)
        if not isinstance(blocks, nn.ModuleList) or not isinstance(heads, nn.ModuleList) or len(blocks) != len(heads):
            raise RecipeError(
                f"method exits cannot hold the backbone {type(backbone).__name__}: it has no blocks with a head each.",
                "Use a backbone with exits, such as msdnet.",
            )
        self.backbone = backbone
        self.points = (*(Point(exit=k) for k in range(1, len(blocks))), FULL)

    def canonical(self, point: Point) -> Point:
        return FULL if point == Point(exit=len(self.points)) else point

    def check(self, point: Point) -> Point:
        if point.exit is not None and point.exit > len(self.points):
            raise PointError(
                f"this model cannot run {point!r}: it has {len(self.points)} exits.",
                f"Use exit=1 to exit={len(self.points)} (the last one is full).",
            )
        return super().check(point)

    def stages(self) -> list[nn.Module]:
        return [Stage(block, head) for block, head in zip(self._blocks, self._heads)]

    def run(self, x: Any, points: Iterable[Point]) -> Generator[Output, Tensor | None, None]:
        wanted = {self._place(point): point for point in self.order(points)}
        state, last = x, max(wanted, default=0)
        for place, (block, head) in enumerate(zip(self._blocks, self._heads), 1):
            if place > last:
                return
            state = block(state)
            if place in wanted:
                keep = yield Output(wanted[place], head(state))
                if keep is not None:
                    if is_empty(keep):
                        return
                    state = select(state, keep)

    def plain(self, point: Point) -> nn.Module:
        place = self._place(point)
        return copy.deepcopy(nn.Sequential(*self._blocks[:place], self._heads[place - 1]))

    def branch(self, point: Point) -> nn.Module | None:
        return self._heads[self._place(point) - 1]

    @property
    def _blocks(self) -> nn.ModuleList:
        return cast(nn.ModuleList, self.backbone.blocks)

    @property
    def _heads(self) -> nn.ModuleList:
        return cast(nn.ModuleList, self.backbone.heads)

    def _place(self, point: Point) -> int:
        return point.exit or len(self.points)
