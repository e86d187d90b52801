"""What every data set file gives: its parts as they come, before any choice, resizing or decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from supple.data.hearing import Hearing
from supple.data.source import Source


@dataclass(frozen=True)
class Part:
    images: Tensor | Sequence[Source]  # uint8 (count, 1 or 3, height, width), or files not yet read
    labels: Tensor  # int64 (count,)
    groups: Tensor | None = None  # int64 (count,): what may not be torn apart, such as the pieces of one recording

    def pick(self, indices: Tensor) -> "Part":
        groups = None if self.groups is None else self.groups[indices]
        if isinstance(self.images, Tensor):
            return Part(self.images[indices], self.labels[indices], groups)
        return Part([self.images[i] for i in indices.tolist()], self.labels[indices], groups)


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
    hearing: Hearing | None = None  # of a set of sounds: how they will be heard
    fold: int = 5  # to test on, where the set comes in folds
