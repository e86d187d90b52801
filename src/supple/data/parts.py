"""What every data set file gives: its parts as they come, before any choice, resizing or decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from supple.data.images import Source


@dataclass(frozen=True)
class Part:
    images: Tensor | Sequence[Source]  # uint8 (count, 1 or 3, height, width), or files not yet read
    labels: Tensor  # int64 (count,)

    def pick(self, indices: Tensor) -> "Part":
        if isinstance(self.images, Tensor):
            return Part(self.images[indices], self.labels[indices])
        return Part([self.images[i] for i in indices.tolist()], self.labels[indices])


@dataclass(frozen=True)
class Collection:
    train: Part
    test: Part
    classes: tuple[str, ...]
    channels: int = 3  # unless the user asks otherwise
    val: Part | None = None  # None: held out of train


@dataclass(frozen=True)
class Request:
    """What a data set may need to know to find and split its images."""

    root: str | None = None
    size: int | None = None  # only sets that are drawn, not stored, use it
    seed: int = 0
    test_share: float = 0.2  # where the set has no test part of its own
