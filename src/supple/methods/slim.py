"""Slimmable networks: run with the first share of every layer's channels (Yu et al. 2019; IPKD-TA, section II-C).

Every width has batch norms of its own (affine and statistics); all other weights are shared. A width that was not
trained gets its norms from `settle`: affine values from the next larger trained width, statistics from data.
"""

import copy
from collections.abc import Generator, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.errors import PointError, RecipeError
from supple.model import Batches, FlexibleModel, Output, is_empty, select
from supple.point import Point


class SlimConv2d(nn.Module):
    """A convolution that keeps the first `kept(width)` outputs and as many inputs as it is given."""

    def __init__(self, conv: nn.Conv2d, divisor: int) -> None:
        super().__init__()
        self.depthwise = conv.groups == conv.in_channels and conv.groups > 1
        if (conv.groups != 1 and not self.depthwise) or conv.padding_mode != "zeros":
            raise RecipeError(f"method slim cannot narrow {conv}.", "Use plain or depthwise convolutions.")
        self.conv = conv
        self.divisor = divisor

    def forward(self, x: Tensor, width: float) -> Tensor:
        conv, inputs = self.conv, x.shape[1]
        outputs = inputs if self.depthwise else kept(conv.out_channels, width, self.divisor)
        weight, bias = conv.weight, conv.bias
        if width < 1:
            weight = weight[:outputs, : 1 if self.depthwise else inputs]
            bias = None if bias is None else bias[:outputs]
        groups = inputs if self.depthwise else 1
        padding = cast(tuple[int, int], conv.padding)
        return F.conv2d(x, weight, bias, conv.stride, padding, conv.dilation, groups)

    def narrow(self, inputs: int, width: float) -> tuple[nn.Module, int]:
        old = self.conv
        outputs = inputs if self.depthwise else kept(old.out_channels, width, self.divisor)
        new = nn.Conv2d(
            inputs,
            outputs,
            cast(tuple[int, int], old.kernel_size),
            stride=cast(tuple[int, int], old.stride),
            padding=cast(tuple[int, int], old.padding),
            dilation=cast(tuple[int, int], old.dilation),
            groups=inputs if self.depthwise else 1,
            bias=old.bias is not None,
            device=old.weight.device,
            dtype=old.weight.dtype,
        )
        _copy(new, old, outputs, 1 if self.depthwise else inputs)
        return new, outputs


class SlimLinear(nn.Module):
    """A linear layer that reads as many inputs as it is given; the last one keeps all its outputs."""

    def __init__(self, linear: nn.Linear, divisor: int, last: bool) -> None:
        super().__init__()
        self.linear = linear
        self.divisor = divisor
        self.last = last

    def _outputs(self, width: float) -> int:
        full = self.linear.out_features
        return full if self.last else kept(full, width, self.divisor)

    def forward(self, x: Tensor, width: float) -> Tensor:
        outputs = self._outputs(width)
        bias = self.linear.bias
        return F.linear(x, self.linear.weight[:outputs, : x.shape[1]], None if bias is None else bias[:outputs])

    def narrow(self, inputs: int, width: float) -> tuple[nn.Module, int]:
        old, outputs = self.linear, self._outputs(width)
        new = nn.Linear(inputs, outputs, old.bias is not None, device=old.weight.device, dtype=old.weight.dtype)
        _copy(new, old, outputs, inputs)
        return new, outputs


class SlimBatchNorm2d(nn.Module):
    """One private batch norm per width."""

    def __init__(self, norm: nn.BatchNorm2d, widths: Iterable[float], divisor: int) -> None:
        super().__init__()
        self.channels, self.eps, self.momentum = norm.num_features, norm.eps, norm.momentum
        self.divisor = divisor
        self.norms = nn.ModuleDict()
        for width in widths:
            self.add(width, norm)

    def add(self, width: float, source: nn.BatchNorm2d) -> None:
        channels = kept(self.channels, width, self.divisor)
        new = nn.BatchNorm2d(channels, self.eps, self.momentum, device=source.weight.device, dtype=source.weight.dtype)
        _copy(new, source, channels)
        self.norms[_key(width)] = new

    def at(self, width: float) -> nn.BatchNorm2d:
        return cast(nn.BatchNorm2d, self.norms[_key(width)])

    def forward(self, x: Tensor, width: float) -> Tensor:
        return cast(Tensor, self.norms[_key(width)](x))

    def narrow(self, inputs: int, width: float) -> tuple[nn.Module, int]:
        old = self.at(width)
        new = nn.BatchNorm2d(inputs, old.eps, old.momentum, device=old.weight.device, dtype=old.weight.dtype)
        new.load_state_dict(old.state_dict())
        return new, inputs


class Same(nn.Module):
    """A layer that works on any number of channels: activation, pooling, flatten."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, width: float) -> Tensor:
        return cast(Tensor, self.layer(x))

    def narrow(self, inputs: int, width: float) -> tuple[nn.Module, int]:
        return copy.deepcopy(self.layer), inputs


SAME: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.Identity, nn.Dropout),
    *(nn.Flatten, nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.MaxPool2d),
)


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
        self.widths = widths
        self.divisor = divisor
        self.points = tuple(Point(width=width) for width in widths)
        last = len(backbone) - 1
        _check_chain(backbone)
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

    def check(self, point: Point) -> Point:
        if point in self.points or point in self.settled:
            return point
        trained = ", ".join(f"{width:g}" for width in self.widths)
        more = "".join(f", {settled.width:g} (settled)" for settled in self.settled)
        cure = "Use one of these."
        if point == Point(width=point.width) and point.width < self.widths[0]:
            cure = f"Use one of these; only widths from {self.widths[0]:g} can be settled."
        elif point == Point(width=point.width):
            cure = (
                f"Use one of these, or settle it first: supple train --settle {point} RUN (needs the training images)."
            )
        raise PointError(f"this model cannot run {point!r}: it was trained at widths {trained}{more}.", cure)

    def rank(self, point: Point) -> float:
        return point.width

    def run(self, x: Any, points: Iterable[Point]) -> Generator[Output, Tensor | None, None]:
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

    def admit(self, points: Iterable[Point]) -> None:
        for point in points:
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
    def settle(self, loader: Batches, points: Iterable[Point] = ()) -> None:
        """Admits more widths and takes their norm statistics as the plain mean over the loader's batches."""
        points = [point for point in points if point not in self.points]
        self.admit(points)
        norms = [layer.at(p.width) for p in points for layer in self.layers if isinstance(layer, SlimBatchNorm2d)]
        momenta = [norm.momentum for norm in norms]
        was_training = self.training
        self.train()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # None: a cumulative average
        try:
            for x, _ in loader:
                for point in points:
                    self._logits(x, point.width)
        finally:
            for norm, momentum in zip(norms, momenta):
                norm.momentum = momentum
            self.train(was_training)


def _check_chain(layers: nn.Sequential) -> None:
    """Every layer reads what the one before gives: a linear layer the channels, not channels x pixels."""
    channels = None
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
        elif isinstance(layer, nn.BatchNorm2d) and not (layer.affine and layer.track_running_stats):
            raise RecipeError(f"method slim cannot narrow {layer}.", "Use batch norms with weights and statistics.")
        elif isinstance(layer, nn.Linear):
            if channels is not None and layer.in_features != channels:
                cause = (
                    f"method slim cannot narrow {layer}: it reads {layer.in_features} values of {channels} channels."
                )
                raise RecipeError(cause, "Pool to 1x1 before flattening.")
            channels = layer.out_features


def kept(channels: int, width: float, divisor: int) -> int:
    """How many of a layer's channels a width keeps: rounded to a multiple of `divisor`, never none, never more."""
    if width == 1:
        return channels
    return min(channels, max(divisor, int(channels * width / divisor + 0.5) * divisor))


def _key(width: float) -> str:
    return f"{width!r}".replace(".", "_")  # a module's name may not hold a dot


@torch.no_grad()
def _copy(new: nn.Module, old: nn.Module, outputs: int, inputs: int | None = None) -> None:
    """Copies the leading part of every parameter and buffer of `old` into `new`."""
    for (name, target), source in zip(new.state_dict().items(), old.state_dict().values()):
        if source.dim() > 1 and inputs is not None:
            source = source[:outputs, :inputs]
        elif source.dim() == 1:
            source = source[:outputs]
        assert target.shape == source.shape, name
        target.copy_(source)
