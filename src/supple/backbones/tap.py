"""The tensor that a branch reads where a network is cut: how it is laid out, and how large it is."""

from dataclasses import dataclass
from typing import Literal

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
