"""The tensor that a branch reads where a network is cut: how it is laid out, and how large it is."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Layout = Literal["nchw", "nhwc", "tokens", "flat"]


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
