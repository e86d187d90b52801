"""One part of a data set of pictures with objects: what training and evaluation of a detector read from."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supple.data._io.tree import Source
from supple.data.detection.batch import GRID, DetectionBatch, Objects, Truth, stacked
from supple.data.detection.masks import Mask, mask_of
from supple.data.detection.preprocess import DetectionPrepare
from supple.data.images import WORKERS
from supple.errors import DataError


@dataclass(frozen=True)
class Picture:
    """A file and what lies in it, in its own pixels."""

    source: Source
    name: str
    height: int
    width: int
    boxes: Tensor  # (objects, 4): x1 y1 x2 y2
    labels: Tensor  # (objects,)
    crowd: Tensor  # (objects,)
    segments: tuple[Any, ...]  # of each object, see `masks`


class DetectionSet:
    """`batch(indices, rng)`: with `rng` the shorter side is drawn from `sizes` for the batch, and each picture may be
    flipped; without it, it is the largest of them. Each picture comes `repeat` times.
    """

    slow = True
    at_once = 8  # pictures that an evaluation takes at a time

    def __init__(
        self,
        pictures: Sequence[Picture],
        classes: tuple[str, ...],
        preprocess: DetectionPrepare,
        task: str,
        sizes: tuple[int, ...] = (),
        flip: bool = False,
        repeat: int = 1,
    ) -> None:
        self.pictures, self.classes, self.preprocess, self.task = pictures, classes, preprocess, task
        self.sizes, self.flip, self.repeat = sizes or (preprocess.shorter,), flip, repeat

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.preprocess.shape

    def __len__(self) -> int:
        return self.repeat * len(self.pictures)

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[DetectionBatch, Truth]:
        chosen = [self.pictures[i % len(self.pictures)] for i in indices.tolist()]
        shorter, flips = self.preprocess.shorter, [False] * len(chosen)
        if rng is not None:
            shorter = self.sizes[int(torch.randint(len(self.sizes), (), generator=rng))]
            flips = [self.flip and drawn for drawn in (torch.rand(len(chosen), generator=rng) < 0.5).tolist()]
        with ThreadPoolExecutor(WORKERS) as pool:
            read = list(pool.map(lambda one, flip: self._read(one, flip, shorter, rng is None), chosen, flips))
        images, objects, masks = zip(*read)
        sizes = torch.tensor([image.shape[-2:] for image in images])
        originals = torch.tensor([(one.height, one.width) for one in chosen])
        labels, crowd = stacked([one.labels for one in chosen], -1), stacked([one.crowd for one in chosen])
        boxes, shapes = (stacked(list(part)) for part in zip(*objects))
        truth = Truth(originals, stacked([one.boxes for one in chosen]), labels, crowd, stacked(list(masks)))
        return DetectionBatch(stacked(list(images)), sizes, originals, Objects(boxes, labels, crowd, shapes)), truth

    def _read(
        self, one: Picture, flip: bool, shorter: int, scored: bool
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """The image; boxes in its pixels and shapes of its objects; and if it is to be scored, their masks."""
        pixels = self.preprocess.open(one.source)
        must_fit(one, pixels.shape[1], pixels.shape[0])
        image = self.preprocess.resized(pixels, shorter)
        scale = torch.tensor([image.shape[-1] / one.width, image.shape[-2] / one.height])
        boxes = one.boxes * scale.repeat(2)
        masks = [mask_of(segment, one.height, one.width) for segment in one.segments]
        shapes = torch.stack([_shape(mask, box) for mask, box in zip(masks, one.boxes.tolist())] or [_nothing()])
        if flip:
            image = image.flip(-1)
            boxes = torch.stack(
                [image.shape[-1] - boxes[:, 2], boxes[:, 1], image.shape[-1] - boxes[:, 0], boxes[:, 3]], 1
            )
            shapes = shapes.flip(-1)
        full = torch.zeros(0, *((one.height, one.width) if scored else (0, 0)), dtype=torch.bool)
        if scored and masks:
            full = torch.from_numpy(np.stack(masks))
        return image, (boxes, shapes[: len(masks)]), full


def must_fit(one: Picture, width: int, height: int) -> None:
    """Refuses a picture of another size than its json says."""
    if (width, height) != (one.width, one.height):
        name = one.name if isinstance(one.source, bytes) else one.source
        cause = f"{name} is {width} x {height} pixels; its json says {one.width} x {one.height}."
        raise DataError(cause, "Restore the picture, or correct width and height.")


def _nothing() -> Tensor:
    return torch.zeros(GRID, GRID, dtype=torch.uint8)


def _shape(mask: Mask, box: list[float]) -> Tensor:
    """A mask inside its box, GRID pixels on each side, 0 to 255."""
    picture = Image.fromarray(mask.astype(np.uint8) * 255)
    x1, y1, x2, y2 = box
    inside = (min(x1, mask.shape[1] - 1e-3), min(y1, mask.shape[0] - 1e-3), x2, y2)
    return torch.from_numpy(np.array(picture.resize((GRID, GRID), Image.Resampling.BILINEAR, box=inside)))
