"""What a data set's reader gives: its parts as they come, before any choice, resizing or decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from supple.data._io.paths import Source
from supple.model import Shape


@dataclass(frozen=True)
class Part:
    """Samples and what is true of them. `labelled` makes one of samples with a class each."""

    images: Tensor | Sequence[Source]  # uint8 (count, 1 or 3, height, width), or files not yet read
    targets: Any = None  # indexed by an int64 tensor: labels, rows of 0 and 1, ...; None: the files say it themselves
    strata: Tensor | None = None  # int64 (count,) from 0: every split has its share of each; None: split at random
    groups: Tensor | None = None  # int64 (count,): what may not be torn apart, such as the pieces of one recording

    def __len__(self) -> int:
        return len(self.images)

    @property
    def split_by(self) -> Tensor:
        """The strata; without any, all samples are one."""
        return torch.zeros(len(self), dtype=torch.int64) if self.strata is None else self.strata

    def pick(self, indices: Tensor) -> "Part":
        images = self.images
        return Part(
            images[indices] if isinstance(images, Tensor) else [images[i] for i in indices.tolist()],
            None if self.targets is None else self.targets[indices],
            None if self.strata is None else self.strata[indices],
            None if self.groups is None else self.groups[indices],
        )


def labelled(images: Tensor | Sequence[Source], labels: Tensor, groups: Tensor | None = None) -> Part:
    """Samples with a class each, int64 (count,): split so that every class has its share."""
    return Part(images, labels, labels, groups)


@dataclass(frozen=True)
class Collection:
    train: Part
    test: Part
    classes: tuple[str, ...]
    channels: int = 3  # unless the user asks otherwise
    val: Part | None = None  # None: taken from train


@dataclass(frozen=True)
class Reader:
    """A data set about to be read: what its family's loader is given beside the settings."""

    name: str
    where: str  # the files, in messages
    task: str  # a key of supple.tasks.TASKS
    read: Callable[[], Any]  # gives what the loader takes: of pictures, sounds and crowds a Collection
    memory_limit: int  # bytes; larger sets are read from their files, batch by batch
    warn: Callable[[str], None]
    fingerprint: str | None = None  # that the list of samples must have; None: any


class Dataset(Protocol):
    """One part of a data set. `batch(indices, rng)` gives inputs and targets; with `rng` they are augmented."""

    task: str  # a key of supple.tasks.TASKS
    classes: tuple[str, ...]
    preprocess: Any  # a Preparation

    @property
    def shape(self) -> Shape: ...  # of one input
    @property
    def slow(self) -> bool: ...  # whether the next batch is worth reading ahead, in a thread
    @property
    def workers(self) -> int: ...  # processes that read training batches ahead; 0: none
    @property
    def at_once(self) -> int | None: ...  # how many samples an evaluation may take together; None: any number
    @property
    def repeat(self) -> int: ...  # how often every sample comes in an epoch
    def __len__(self) -> int: ...
    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Any, Any]: ...
