"""The tensor that a branch reads where a network is cut: how large it is, and how it is laid out.

The layout is found from the shape of the tensor and from the layers next to it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from supple.errors import RecipeError

Layout = Literal["nchw", "nhwc", "tokens", "flat"]
CHANNELS_FIRST = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, nn.GroupNorm, nn.InstanceNorm2d)
CHANNELS_LAST = (nn.Linear, nn.LayerNorm)


@dataclass(frozen=True)
class Tap:
    """One sample at a cut. A map is (channels, height, width) or (height, width, channels); tokens are
    (prefix + height x width, channels), the prefix being class tokens; flat features are (channels,)."""

    layout: Layout
    channels: int
    height: int = 1
    width: int = 1
    prefix: int = 0
    sound: int = 0  # a branch reads a vector of so many numbers beside the map; 0: none

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample, without the batch."""
        if self.layout == "nchw":
            return self.channels, self.height, self.width
        if self.layout == "nhwc":
            return self.height, self.width, self.channels
        if self.layout == "tokens":
            return self.prefix + self.height * self.width, self.channels
        return (self.channels,)

    def __str__(self) -> str:
        if self.layout == "flat":
            return f"{self.channels} features"
        size = f"{self.height}x{self.width}x{self.channels}" + (f" and {self.sound} of sound" if self.sound else "")
        if self.layout == "tokens":
            return f"{size} tokens" + (f" + {self.prefix}" if self.prefix else "")
        return size if self.layout == "nchw" else f"{size} (channels last)"


def as_map(x: Tensor, tap: Tap) -> Tensor:
    """The batch at a cut as (batch, channels, height, width), class tokens left out; always a view."""
    if tap.layout == "tokens":
        x = torch.unflatten(x[:, tap.prefix :], 1, (tap.height, tap.width))
    return x if tap.layout == "nchw" else x.permute(0, 3, 1, 2)


def parted(x: Any, tap: Tap) -> tuple[Tensor, Any]:
    """The map at a cut, and what was heard there, or None."""
    return (as_map(x[0], tap), x[1]) if tap.sound else (as_map(x, tap), None)


def find_tap(network: nn.Module, name: str, shape: tuple[int, ...], node: fx.Node) -> Tap:
    """The tap of a tensor of this shape (without the batch)."""
    if len(shape) == 1:
        return Tap("flat", shape[0])
    if len(shape) == 2:
        return find_tokens(network, name, shape)
    if len(shape) != 3:
        raise RecipeError(
            f"{name} gives a tensor of shape {('batch', *shape)}: neither a map, nor tokens, nor features.",
            "Cut elsewhere; see supple list --cuts.",
        )
    first, second, third = shape
    if second == third and first != second:
        return Tap("nchw", first, second, third)
    if first == second and third != second:
        return Tap("nhwc", third, first, second)
    if next(_neighbours(network, node), CHANNELS_FIRST) is CHANNELS_FIRST:
        return Tap("nchw", first, second, third)
    return Tap("nhwc", third, first, second)


def find_tokens(network: nn.Module, name: str, shape: tuple[int, ...]) -> Tap:
    """The tap of (tokens, channels)."""
    count, channels = shape
    own = getattr(network, "num_prefix_tokens", None)  # of a transformer of timm
    for prefix in dict.fromkeys([own if isinstance(own, int) else 0, 0, 1, 2]):
        side = math.isqrt(max(0, count - prefix))
        if side and side * side == count - prefix:
            return Tap("tokens", channels, side, side, prefix)
    raise RecipeError(
        f"{name} gives {count} tokens, which do not form a square grid (with up to 2 class tokens).",
        "Cut elsewhere, or use square images.",
    )


def _neighbours(network: nn.Module, node: fx.Node) -> Iterator[tuple[type[nn.Module], ...]]:
    """Which family the nearest telling layers belong to: the one that made the tensor, then those that read it."""
    for near in (node, *node.users, *node.all_input_nodes):
        parts = list(network.get_submodule(str(near.target)).modules()) if near.op == "call_module" else []
        for part in reversed(parts) if near is node else parts:
            yield from (family for family in (CHANNELS_FIRST, CHANNELS_LAST) if isinstance(part, family))
