"""Slimmable networks: run with the first share of every layer's channels (Yu et al. 2019; IPKD-TA, section II-C).

Every width has batch norms of its own (affine and statistics); all other weights are shared. A width that was not
trained gets its norms from `settle`: affine values from the next larger trained width, statistics from data.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from supple.errors import PointError, RecipeError
from supple.methods.narrow import SAME, Same, SlimBatchNorm2d, SlimConv2d, SlimLinear, check_chain
from supple.model import Batches, FlexibleModel, Output, Outputs, is_empty, select
from supple.point import AnyPoint, Point, as_point


class Slim(FlexibleModel):
    """Points `width=0.25` ... `full` over a sequential convolutional backbone."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        widths: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0),  # trained widths, the last one 1
        divisor: int = 8,  # kept channels are a multiple of this, where the layer has as many
    ) -> None:
        super().__init__()
        if list(widths) != sorted(set(widths)) or not widths or widths[0] <= 0 or widths[-1] != 1:
            raise RecipeError(f"method.widths is {list(widths)}: they must rise, above 0, to 1.", "For example 0.5, 1.")
        if divisor < 1:
            raise RecipeError(f"method.divisor is {divisor}.", "Use 1 or more; 8 suits most processors.")
        if not isinstance(backbone, nn.Sequential):
            raise RecipeError(
                f"method slim cannot hold the backbone {type(backbone).__name__}: it is not one chain of layers.",
                "Use a sequential convolutional backbone, such as mobilenet_v1.",
            )
        self.widths = tuple(map(float, widths))  # 1 and 1.0 are one width, with one norm
        self.divisor = divisor
        self.points = tuple(Point(width=width) for width in self.widths)
        last = len(backbone) - 1
        check_chain(backbone)
        self.layers = nn.ModuleList(self._slim(layer, i == last) for i, layer in enumerate(backbone))

    def _slim(self, layer: nn.Module, last: bool) -> nn.Module:
        if isinstance(layer, nn.Conv2d):
            return SlimConv2d(layer, self.divisor)
        if isinstance(layer, nn.BatchNorm2d):
            return SlimBatchNorm2d(layer, self.widths, self.divisor)
        if isinstance(layer, nn.Linear):
            return SlimLinear(layer, self.divisor, last)
        if isinstance(layer, SAME):
            return Same(layer)
        raise RecipeError(
            f"method slim cannot narrow a {type(layer).__name__}.", "Use convolution, batch norm, linear."
        )

    def validate(self, point: Point) -> None:
        if point in (*self.points, *self.settled):
            return
        trained = ", ".join(f"{width:g}" for width in self.widths)
        more = "".join(f", {settled.width:g} (settled)" for settled in self.settled)
        if point.width < self.widths[0]:
            cure = f"Use one of these; only widths from {self.widths[0]:g} can be settled."
        else:
            cure = (
                f"Use one of these, or settle it first: supple train --settle {point} RUN (needs the training images)."
            )
        raise PointError(f"this model cannot run {point!r}: it was trained at widths {trained}{more}.", cure)

    def rank(self, point: Point) -> float:
        return point.width

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        for point in self.order(points):
            keep = yield Output(point, self._logits(x, point.width))
            if keep is not None:
                if is_empty(keep):
                    return
                x = select(x, keep)

    def _logits(self, x: Tensor, width: float) -> Tensor:
        for layer in self.layers:
            x = layer(x, width)
        return x

    def plain(self, point: Point) -> nn.Module:
        layers: list[nn.Module] = []
        channels = next(layer for layer in self.layers if isinstance(layer, SlimConv2d)).conv.in_channels
        for layer in self.layers:
            narrow, channels = layer.narrow(channels, point.width)  # type: ignore[operator]
            layers.append(narrow)
        return nn.Sequential(*layers)

    def add_points(self, points: Iterable[AnyPoint]) -> None:
        for point in map(as_point, points):
            if point in (*self.points, *self.settled):
                continue
            if point != Point(width=point.width) or point.width < self.widths[0]:
                self.check(point)
            source = next(width for width in self.widths if width > point.width)
            for layer in self.layers:
                if isinstance(layer, SlimBatchNorm2d):
                    layer.add(point.width, layer.at(source))
            self.settled = tuple(sorted((*self.settled, point), key=self.rank))

    @torch.no_grad()
    def settle(self, loader: Batches, points: Iterable[AnyPoint] = ()) -> None:
        """Adds more widths and takes their norm statistics as the plain mean over the loader's batches."""
        more = [point for point in map(as_point, points) if point not in self.points]
        self.add_points(more)
        norms = [layer.at(p.width) for p in more for layer in self.layers if isinstance(layer, SlimBatchNorm2d)]
        momenta = [norm.momentum for norm in norms]
        was_training = self.training
        self.train()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # None: a cumulative average
        try:
            for x, _ in loader:
                for point in more:
                    self._logits(x, point.width)
        finally:
            for norm, momentum in zip(norms, momenta):
                norm.momentum = momentum
            self.train(was_training)
