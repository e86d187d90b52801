"""One part of an image data set: what the training loop and the evaluation read from."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from supple.data.augment import POLICIES, apply_policy, random_crop, random_flip
from supple.data.prepare import Preprocess
from supple.data.source import Source
from supple.errors import DataError
from supple.text import did_you_mean

WORKERS = min(8, os.cpu_count() or 1)


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
    """Labelled images, held in memory as one uint8 tensor (count, channels, size, size) or read on demand.

    `batch(indices, rng)` gives float32 images and int64 labels. With `rng` they are augmented as this set was told to
    (crop, flip, policy, in this order); without it, never.
    """

    task = "classes"

    def __init__(
        self,
        images: Tensor | Sequence[Source],
        labels: Tensor,
        classes: tuple[str, ...],
        preprocess: Preprocess,
        crop: int = 0,
        flip: bool = False,
        policy: str | None = None,
    ) -> None:
        if len(images) == 0:
            raise DataError("an image set without images.", "Give more images, or a smaller holdout or test share.")
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images but {len(labels)} labels.", "Give one label per image.")
        if labels.dtype != torch.int64 or labels.dim() != 1:
            raise DataError(f"labels are {labels.dtype} {tuple(labels.shape)}.", "Give int64 labels of shape (count,).")
        if int(labels.min()) < 0 or int(labels.max()) >= len(classes):
            raise DataError(
                f"labels lie in {int(labels.min())}..{int(labels.max())} with {len(classes)} classes.",
                f"Labels count from 0 to {len(classes) - 1}.",
            )
        self.labels = labels
        self.classes = classes
        self.preprocess = preprocess
        if isinstance(images, Tensor) and (images.dtype != torch.uint8 or tuple(images.shape[1:]) != self.shape):
            raise DataError(
                f"images are {images.dtype} {tuple(images.shape)}; expected uint8 (count, {self.shape}).",
                "Bring them to size with Preprocess.image.",
            )
        if crop < 0:
            raise DataError(f"crop padding is {crop}.", "Set data.crop to 0 (off) or a number of pixels.")
        if policy is not None and policy not in POLICIES:
            raise DataError(f'unknown augmentation policy "{policy}".', did_you_mean(policy, POLICIES))
        self._images = images
        self._augmentation = (crop, flip, policy)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, size, size) of one image."""
        return self.preprocess.channels, self.preprocess.size, self.preprocess.size

    @property
    def slow(self) -> bool:
        """Whether the next batch is worth reading while this one trains (a policy draws from the global generator)."""
        return not isinstance(self._images, Tensor) and self._augmentation[2] is None

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        images = self.read(indices)
        if rng is not None:
            crop, flip, policy = self._augmentation
            if crop:
                images = random_crop(images, crop, rng)
            if flip:
                images = random_flip(images, rng)
            if policy is not None:
                images = apply_policy(images, policy, rng)
        return self.preprocess.normalise(images), self.labels[indices]

    def raw(self, index: int) -> Tensor:
        """One image as uint8 (channels, size, size), as `read` gives it."""
        return self.read(torch.tensor([index]))[0]

    def subset(self, indices: Tensor) -> "ImageSet":
        """These images only, in this order, augmented as before."""
        if isinstance(self._images, Tensor):
            images: Tensor | Sequence[Source] = self._images[indices]
        else:
            images = [self._images[i] for i in indices.tolist()]
        return ImageSet(images, self.labels[indices], self.classes, self.preprocess, *self._augmentation)

    def joined(self, sources: Sequence[Source], labels: Tensor) -> "ImageSet":
        """These images and others, augmented alike; held in memory if these are."""
        images: Tensor | Sequence[Source]
        if isinstance(self._images, Tensor):
            places = {id(source): place for place, source in enumerate({id(s): s for s in sources}.values())}
            distinct = list({id(source): source for source in sources}.values())  # some may come several times
            fresh = ImageSet(distinct, labels[: len(distinct)], self.classes, self.preprocess)
            read = torch.cat([fresh.read(part) for part in torch.split(torch.arange(len(distinct)), 256)])
            images = torch.cat([self._images, read[[places[id(source)] for source in sources]]])
        else:
            images = [*self._images, *sources]
        return ImageSet(images, torch.cat([self.labels, labels]), self.classes, self.preprocess, *self._augmentation)

    def read(self, indices: Tensor) -> Tensor:
        """These images as uint8 (count, channels, size, size): sized, but neither augmented nor normalised."""
        if isinstance(self._images, Tensor):
            return self._images[indices]
        sources = [self._images[i] for i in indices.tolist()]
        if len(sources) == 1:
            return self.preprocess.open(sources[0])[None]
        # The threads live for one batch: nothing to close, and safe in a forked process.
        with ThreadPoolExecutor(WORKERS) as pool:
            return torch.stack(list(pool.map(self.preprocess.open, sources)))
