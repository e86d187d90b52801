"""One part of an image data set: what the training loop and the evaluation read from."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from supple.data._io.paths import Source
from supple.data.augment import NONE, Augmentation, random_resized_crop, seeded
from supple.data.parts import Part, labelled
from supple.data.preprocess import Preprocess
from supple.errors import DataError
from supple.machine import allowed_cores
from supple.tasks import TASKS

WORKERS = min(8, allowed_cores())

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
    """Images held in memory as one uint8 tensor (count, channels, side, side) or read on demand, and their targets.

    `batch(indices, rng)` gives float32 images and `targets[indices]`. With `rng` the images are augmented as this set
    was told to; without it, never. Images held in memory may be smaller than the network sees them: small pictures are
    kept as they are and enlarged batch by batch.
    """

    at_once: int | None = None
    repeat: int = 1
    slow = False  # what takes time is read by processes

    def __init__(
        self,
        part: Part,
        classes: tuple[str, ...],
        preprocess: Preprocess,
        task: str = "classes",
        augmentation: Augmentation = NONE,
        workers: int | None = None,  # processes that read training batches ahead; None: as many as are worth it
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
        if isinstance(images, Tensor) and (images.dtype != torch.uint8 or images.shape[1] != preprocess.channels):
            raise DataError(
                f"images are {images.dtype} {tuple(images.shape)}; expected uint8 (count, {preprocess.channels}, ...).",
                "Bring them to size with Preprocess.image.",
            )
        self._images = images
        self.augmentation, self._workers = augmentation, workers

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, size, size) of one image."""
        return self.preprocess.channels, self.preprocess.size, self.preprocess.size

    @property
    def workers(self) -> int:
        """Processes that read training batches ahead."""
        if self._workers is not None:
            return self._workers
        return WORKERS if self.augmentation.takes_time or not isinstance(self._images, Tensor) else 0

    @property
    def labelled(self) -> bool:
        """Whether every target is the number of one class."""
        return isinstance(self.targets, Tensor) and self.targets.dtype == torch.int64 and self.targets.dim() == 1

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Tensor, Any]:
        if rng is None:
            return self.preprocess.normalise(self.read(indices)), self.targets[indices]
        change, scale = self.augmentation, self.augmentation.crop_scale
        if scale is None:
            images = self.read(indices)
        else:
            with seeded(rng):
                crops = [random_resized_crop(self._stored(i), self.preprocess, scale) for i in indices.tolist()]
            images = torch.stack(crops)
        images = self.preprocess.normalise(change.of_batch(images, self.preprocess, rng))
        return change.erased(images, rng), self.targets[indices]

    def _stored(self, index: int) -> Any:
        """A file, or the array of an image, uint8 RGB (height, width, 3)."""
        image = self._images[index]
        return image.expand(3, -1, -1).permute(1, 2, 0).numpy() if isinstance(image, Tensor) else image

    def raw(self, index: int) -> Tensor:
        """One image as uint8 (channels, size, size), as `read` gives it."""
        return self.read(torch.tensor([index]))[0]

    def joined(self, sources: Sequence[Source], labels: Tensor) -> "ImageSet":
        """These labelled images and others, augmented alike; held in memory if these are."""
        images: Tensor | Sequence[Source]
        if isinstance(self._images, Tensor):
            places = {source: place for place, source in enumerate(dict.fromkeys(sources))}  # some may come twice
            read = open_all(list(places), replace(self.preprocess, size=self._images.shape[-1]))
            images = torch.cat([self._images, read[[places[source] for source in sources]]])
        else:
            images = [*self._images, *sources]
        part = labelled(images, torch.cat([self.targets, labels]))
        return ImageSet(part, self.classes, self.preprocess, self.task, self.augmentation, self._workers)

    def read(self, indices: Tensor) -> Tensor:
        """These images as uint8 (count, channels, size, size): sized, but neither augmented nor normalised."""
        if isinstance(self._images, Tensor):
            if tuple(self._images.shape[1:]) == self.shape:
                return self._images[indices]
            return torch.stack([self.preprocess.image(self._stored(i)) for i in indices.tolist()])
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
