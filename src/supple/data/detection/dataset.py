"""Pictures with objects as samples, and which of them are for training, validation and test."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from supple.data._io.decode import MAX_PIXELS, header
from supple.data._io.paths import Source
from supple.data.detection.batch import GRID, DetectionBatch, Objects, Truth, stacked
from supple.data.detection.masks import Mask, mask_of
from supple.data.detection.preprocess import MEAN, STD, DetectionPrepare
from supple.data.images import in_threads
from supple.data.parts import Reader
from supple.data.settings import Count, Holdout, Seed, Side
from supple.data.splits import Splits, check_limits, must_match, same_number_each, set_aside, validation_count
from supple.errors import DataError
from supple.model import Shape
from supple.text import did_you_mean

LONGEST = 1333  # pixels, unless the recipe says otherwise
Repeats = Annotated[int, Field(ge=1, le=10_000)]


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


class Pictures(NamedTuple):
    """What a reader of pictures with objects gives."""

    train: list[Picture]
    test: list[Picture]
    classes: tuple[str, ...]


class DetectionSet:
    """`batch(indices, rng)`: with `rng` the shorter side is drawn from `sizes` for the batch, and each picture may be
    flipped; without it, it is the largest of them. Each picture comes `repeat` times.
    """

    slow, workers = True, 0
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
        read = in_threads(lambda one, flip: self._read(one, flip, shorter, rng is None), chosen, flips)
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


def load_detection(
    reader: Reader,
    *,
    sizes: tuple[Side, ...] = (800,),  # pixels of the shorter side, drawn in training; else the largest
    longest: Side | None = None,  # pixels of the longer side, at most; None: 1333, or the largest of sizes
    only: tuple[str, ...] | None = None,  # these pictures alone, by file name
    same: bool = False,  # test on the pictures that are trained on: overfitting on purpose
    repeat: Repeats = 1,  # each training picture so many times in an epoch
    limit: Count | None = None,  # use only so many training pictures
    test_limit: Count | None = None,  # use only so many test pictures
    holdout: Holdout = 0.1,  # validation pictures: a number, or a share below 1
    flip: bool = False,  # random horizontal flip
    mean: tuple[float, ...] = MEAN,  # of values in 0..1, per channel
    std: tuple[float, ...] = STD,  # the same
    max_pixels: Count = MAX_PIXELS,  # larger pictures are refused before they are decoded
    seed: Seed = 0,  # of the splits
) -> Splits:
    """Data sets of pictures with objects in them."""
    check_limits(limit, test_limit)
    preprocess = prepared(sizes, longest, mean, std, max_pixels)
    found: Pictures = reader.read()
    train, test, classes = found
    listed = "".join(f"{one.name} {one.labels.tolist()}\n" for one in (*train, *test))
    seen = must_match(reader, hashlib.sha256(listed.encode()).hexdigest()[:16])
    if only is not None:
        train, test = _named(train, test, only, same)
    if same:
        if only is None:
            train = _some(train, limit, seed)
        val = test = train
    else:
        val, train = _for_validation(train, holdout, limit, seed)
        train, test = _some(train, limit, seed), _some(test, test_limit, seed)
    for one in (*val, *test):  # what is wrong with these would only be seen after the training
        must_fit(one, *header(one.source, max_pixels))
    learnt = DetectionSet(train, classes, preprocess, reader.task, sizes, flip, repeat)
    chosen_with, tested_on = (DetectionSet(part, classes, preprocess, reader.task) for part in (val, test))
    return Splits(learnt, chosen_with, tested_on, seen)


def detection_shape(settings: Mapping[str, Any], stored: Shape | None, use_audio: bool) -> Shape:
    """Of the usual picture."""
    return prepared(settings["sizes"], settings["longest"]).shape


def prepared(
    sizes: tuple[int, ...],
    longest: int | None,
    mean: tuple[float, ...] = MEAN,
    std: tuple[float, ...] = STD,
    max_pixels: int = MAX_PIXELS,
) -> DetectionPrepare:
    """How pictures are prepared when nothing is drawn: the largest size."""
    if not sizes or min(sizes) < 1:
        raise DataError(f"data.sizes is {list(sizes)}.", "Give pixels of the shorter side: [480, 512, 544].")
    most = max(LONGEST, *sizes) if longest is None else longest
    return DetectionPrepare(max(sizes), most, tuple(mean), tuple(std), max_pixels)


def _named(
    train: list[Picture], test: list[Picture], only: tuple[str, ...], same: bool
) -> tuple[list[Picture], list[Picture]]:
    known = {one.name for one in (*train, *test)}
    for name in only:
        if name not in known:
            raise DataError(f'data.only names "{name}", which no json lists.', did_you_mean(name, known)[:300])
    first, second = ([one for one in part if one.name in only] for part in (train, test))
    if same:
        return [*first, *second], []
    for part, word in ((first, "train"), (second, "val")):
        if not part:
            raise DataError(
                f"data.only names no picture of {word}.",
                "Name some, or train and test on the same few, which shows nothing but overfitting: data.same=true.",
            )
    return first, second


def _for_validation(
    train: list[Picture], holdout: int | float, limit: int | None, seed: int
) -> tuple[list[Picture], list[Picture]]:
    count = validation_count(holdout, len(train), limit)
    if count >= len(train):
        raise DataError(
            f"{count} of {len(train)} training pictures for validation leaves none on one side.",
            "Change data.holdout: a number of pictures, or a share below 1.",
        )
    held, rest = set_aside(_one_stratum(train), count, seed)
    return [train[i] for i in held.tolist()], [train[i] for i in rest.tolist()]


def _some(pictures: list[Picture], limit: int | None, seed: int) -> list[Picture]:
    if limit is None or limit >= len(pictures):
        return pictures
    return [pictures[i] for i in same_number_each(_one_stratum(pictures), limit, seed).tolist()]


def _one_stratum(pictures: list[Picture]) -> Tensor:
    return torch.zeros(len(pictures), dtype=torch.int64)
