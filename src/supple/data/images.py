"""One part of an image data set: what the training loop and the evaluation read from."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from supple.data._io.paths import Source
from supple.data.augment import POLICIES, apply_policy, random_crop, random_flip
from supple.data.parts import Part, labelled
from supple.data.preprocess import Preprocess
from supple.errors import DataError
from supple.tasks import TASKS
from supple.text import did_you_mean

WORKERS = min(8, os.cpu_count() or 1)
AUGMENTATION = ("crop", "flip", "augment")  # settings of `data`

Made = TypeVar("Made")


def one_ahead(make: Callable[[int], Made], steps: Iterable[int], ahead: bool = True) -> Iterator[Made]:
    """`map`, with the next result made in a thread while this one is used."""
    if not ahead:
        yield from map(make, steps)
        return
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for step in steps:
            coming = pool.submit(make, step)
            if waiting is not None:
                yield waiting.result()
            waiting = coming
        if waiting is not None:
            yield waiting.result()


class ImageSet:
    """Images held in memory as one uint8 tensor (count, channels, size, size) or read on demand, and their targets.

    `batch(indices, rng)` gives float32 images and `targets[indices]`. With `rng` the images are augmented as this set
    was told to (crop, flip, augment, in this order); without it, never.
    """

    at_once: int | None = None
    repeat: int = 1

    def __init__(
        self,
        part: Part,
        classes: tuple[str, ...],
        preprocess: Preprocess,
        task: str = "classes",
        crop: int = 0,
        flip: bool = False,
        augment: str | None = None,
    ) -> None:
        images, targets = part.images, part.targets
        if len(images) == 0:
            raise DataError("an image set without images.", "Give more images, or a smaller holdout or test share.")
        if len(images) != len(targets):
            raise DataError(f"{len(images)} images but {len(targets)} targets.", "Give one target per image.")
        check_targets = TASKS[task].check_targets
        if check_targets is not None:
            check_targets(targets, classes)
        self.task, self.classes, self.preprocess = task, classes, preprocess
        self.targets, self.split_by = targets, part.split_by
        if isinstance(images, Tensor) and (images.dtype != torch.uint8 or tuple(images.shape[1:]) != self.shape):
            raise DataError(
                f"images are {images.dtype} {tuple(images.shape)}; expected uint8 (count, {self.shape}).",
                "Bring them to size with Preprocess.image.",
            )
        if crop < 0:
            raise DataError(f"crop padding is {crop}.", "Set data.crop to 0 (off) or a number of pixels.")
        if augment is not None and augment not in POLICIES:
            raise DataError(f'unknown augmentation policy "{augment}".', did_you_mean(augment, POLICIES))
        self._images = images
        self._augmentation = (crop, flip, augment)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, size, size) of one image."""
        return self.preprocess.channels, self.preprocess.size, self.preprocess.size

    @property
    def slow(self) -> bool:
        """Whether the next batch is worth reading while this one trains (a policy draws from the global generator)."""
        return not isinstance(self._images, Tensor) and self._augmentation[2] is None

    @property
    def augmented(self) -> tuple[str, ...]:
        """The settings of `data` that change images in training."""
        return tuple(key for key, value in zip(AUGMENTATION, self._augmentation) if value)

    @property
    def labelled(self) -> bool:
        """Whether every target is the number of one class."""
        return isinstance(self.targets, Tensor) and self.targets.dtype == torch.int64 and self.targets.dim() == 1

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Tensor, Any]:
        images = self.read(indices)
        if rng is not None:
            crop, flip, augment = self._augmentation
            if crop:
                images = random_crop(images, crop, rng)
            if flip:
                images = random_flip(images, rng)
            if augment is not None:
                images = apply_policy(images, augment, rng)
        return self.preprocess.normalise(images), self.targets[indices]

    def raw(self, index: int) -> Tensor:
        """One image as uint8 (channels, size, size), as `read` gives it."""
        return self.read(torch.tensor([index]))[0]

    def joined(self, sources: Sequence[Source], labels: Tensor) -> "ImageSet":
        """These labelled images and others, augmented alike; held in memory if these are."""
        images: Tensor | Sequence[Source]
        if isinstance(self._images, Tensor):
            places = {source: place for place, source in enumerate(dict.fromkeys(sources))}  # some may come twice
            read = open_all(list(places), self.preprocess)
            images = torch.cat([self._images, read[[places[source] for source in sources]]])
        else:
            images = [*self._images, *sources]
        part = labelled(images, torch.cat([self.targets, labels]))
        return ImageSet(part, self.classes, self.preprocess, self.task, *self._augmentation)

    def read(self, indices: Tensor) -> Tensor:
        """These images as uint8 (count, channels, size, size): sized, but neither augmented nor normalised."""
        if isinstance(self._images, Tensor):
            return self._images[indices]
        return open_all([self._images[i] for i in indices.tolist()], self.preprocess)


def open_all(sources: Sequence[Source], preprocess: Preprocess) -> Tensor:
    """Files read to uint8 (count, channels, size, size)."""
    if len(sources) == 1:
        return preprocess.open(sources[0])[None]
    return torch.stack(in_threads(preprocess.open, sources))


def in_threads(work: Callable[..., Made], *items: Iterable[Any]) -> list[Made]:
    """`map` in threads that live for one batch: nothing to close, and safe in a forked process."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(work, *items))
