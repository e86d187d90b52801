"""Slimmable networks: run with the first share of every layer's channels (Yu et al. 2019; IPKD-TA, section II-C).

Every width has batch norms of its own (affine and statistics); all other weights are shared. A width that was not
trained gets its norms from `settle`: affine values from the next larger trained width, statistics from data. Layers
take their width as an argument of the call, and can be cut down to a plain narrow layer for good.
"""

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.errors import PointError, RecipeError
from supple.methods._trunk import in_turn
from supple.model import Batches, FlexibleModel, Output, Outputs
from supple.point import AnyPoint, Point, as_point

L = TypeVar("L", bound=nn.Module)


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
        yield from in_turn(self.order(points), x, lambda x, point: Output(point, self._logits(x, point.width)))

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


class Slices:
    """The leading part of a weight: a view where gradients flow, else a contiguous copy, kept while the weight stays.

    Small convolutions take up to a third longer with a strided weight. The copy is made anew when the weight changes.
    """

    def __init__(self) -> None:
        self.copies: dict[tuple[int, int], tuple[tuple[int, int], Tensor]] = {}

    def __call__(self, weight: Tensor, outputs: int, inputs: int) -> Tensor:
        if (weight.requires_grad and torch.is_grad_enabled()) or weight.is_inference():
            return weight[:outputs, :inputs]  # (a tensor made in inference mode does not tell when it changes)
        state = (weight.data_ptr(), weight._version)
        known = self.copies.get((outputs, inputs))
        if known is None or known[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                known = (state, weight[:outputs, :inputs].contiguous())
            self.copies[outputs, inputs] = known
        return known[1]

    def __deepcopy__(self, memo: object) -> "Slices":
        return Slices()


class SlimConv2d(nn.Module):
    """A convolution that keeps the first `kept(width)` outputs and as many inputs as it is given."""

    def __init__(self, conv: nn.Conv2d, divisor: int) -> None:
        super().__init__()
        self.depthwise = conv.groups == conv.in_channels and conv.groups > 1
        if (conv.groups != 1 and not self.depthwise) or conv.padding_mode != "zeros":
            raise RecipeError(f"method slim cannot narrow {conv}.", "Use plain or depthwise convolutions.")
        self.conv = conv
        self.divisor = divisor
        self.slices = Slices()

    def _outputs(self, inputs: int, width: float) -> int:
        return inputs if self.depthwise else kept(self.conv.out_channels, width, self.divisor)

    def forward(self, x: Tensor, width: float) -> Tensor:
        conv, inputs = self.conv, x.shape[1]
        outputs = self._outputs(inputs, width)
        weight, bias = conv.weight, conv.bias
        if width < 1:
            weight = self.slices(weight, outputs, 1 if self.depthwise else inputs)
            bias = None if bias is None else bias[:outputs]
        groups = inputs if self.depthwise else 1
        padding = cast(tuple[int, int], conv.padding)
        return F.conv2d(x, weight, bias, conv.stride, padding, conv.dilation, groups)

    def narrow(self, inputs: int, width: float) -> tuple[nn.Module, int]:
        outputs = self._outputs(inputs, width)
        sizes = {"in_channels": inputs, "out_channels": outputs, "groups": inputs if self.depthwise else 1}
        return _leading(self.conv, outputs, 1 if self.depthwise else inputs, **sizes), outputs


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
        outputs = self._outputs(width)
        return _leading(self.linear, outputs, inputs, in_features=inputs, out_features=outputs), outputs


class SlimBatchNorm2d(nn.Module):
    """One private batch norm per width."""

    def __init__(self, norm: nn.BatchNorm2d, widths: Iterable[float], divisor: int) -> None:
        super().__init__()
        self.channels, self.divisor = norm.num_features, divisor
        self.norms = nn.ModuleDict()
        for width in widths:
            self.add(width, norm)

    def add(self, width: float, source: nn.BatchNorm2d) -> None:
        channels = kept(self.channels, width, self.divisor)
        self.norms[_key(width)] = _leading(source, channels, num_features=channels)

    def at(self, width: float) -> nn.BatchNorm2d:
        return cast(nn.BatchNorm2d, self.norms[_key(width)])

    def forward(self, x: Tensor, width: float) -> Tensor:
        return cast(Tensor, self.at(width)(x))

    def narrow(self, inputs: int, width: float) -> tuple[nn.Module, int]:
        return copy.deepcopy(self.at(width)), inputs


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


def check_chain(layers: nn.Sequential) -> None:
    """Every layer reads what the one before gives: a linear layer the channels, not channels x pixels."""
    channels = None
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
        elif isinstance(layer, nn.BatchNorm2d) and not (layer.affine and layer.track_running_stats):
            raise RecipeError(f"method slim cannot narrow {layer}.", "Use batch norms with weights and statistics.")
        elif isinstance(layer, nn.Linear):
            if channels is not None and layer.in_features != channels:
                reads = f"it reads {layer.in_features} values of {channels} channels"
                raise RecipeError(f"method slim cannot narrow {layer}: {reads}.", "Pool to 1x1 before flattening.")
            channels = layer.out_features


def kept(channels: int, width: float, divisor: int) -> int:
    """How many of a layer's channels a width keeps: rounded to a multiple of `divisor`, never none, never more."""
    if width == 1:
        return channels
    return min(channels, max(divisor, int(channels * width / divisor + 0.5) * divisor))


@cache
def _key(width: float) -> str:
    return f"{width!r}".replace(".", "_")  # a module's name may not hold a dot


def _leading(layer: L, outputs: int, inputs: int | None = None, **sizes: int) -> L:
    """A copy of a layer with the leading part of its parameters and buffers, and its new sizes as attributes."""
    new = copy.deepcopy(layer)
    vars(new).update(sizes)
    for tensor in (*new.parameters(), *new.buffers()):
        if tensor.dim():
            tensor.data = (tensor.data[:outputs, :inputs] if tensor.dim() > 1 else tensor.data[:outputs]).clone()
    return new
