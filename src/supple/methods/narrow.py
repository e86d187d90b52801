"""Layers that take their width as an argument of the call, and can be cut down to a plain narrow layer for good."""

import copy
from collections.abc import Iterable
from functools import cache
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.errors import RecipeError


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

    def forward(self, x: Tensor, width: float) -> Tensor:
        conv, inputs = self.conv, x.shape[1]
        outputs = inputs if self.depthwise else kept(conv.out_channels, width, self.divisor)
        weight, bias = conv.weight, conv.bias
        if width < 1:
            weight = self.slices(weight, outputs, 1 if self.depthwise else inputs)
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


@cache
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
