"""Pictures with objects: which of them are for training, validation and test."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field

from supple.data._io.decode import MAX_PIXELS, header
from supple.data._io.tree import content
from supple.data.detection.coco import Pictures, fingerprint_of
from supple.data.detection.dataset import DetectionSet, Picture, must_fit
from supple.data.detection.preprocess import MEAN, STD, DetectionPrepare
from supple.data.parts import Reader
from supple.data.settings import Count, Holdout, Seed, Side
from supple.data.splits import Splits, check_limits, must_match
from supple.errors import DataError
from supple.model import Shape
from supple.text import did_you_mean

LONGEST = 1333  # pixels, unless the recipe says otherwise
Repeats = Annotated[int, Field(ge=1, le=10_000)]


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
    seen = must_match(reader, fingerprint_of((train, test)))
    rng = torch.Generator().manual_seed(seed)
    if only is not None:
        train, test = _named(train, test, only, same)
    if same:
        if only is None:
            train = _some(train, limit, rng)
        val = test = train
    else:
        val, train = _for_validation(train, holdout, limit, rng)
        train, test = _some(train, limit, rng), _some(test, test_limit, rng)
    for one in (*val, *test):  # what is wrong with these would only be seen after the training
        must_fit(one, *header(*content(one.source, max_pixels)))
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
    train: list[Picture], holdout: int | float, limit: int | None, rng: torch.Generator
) -> tuple[list[Picture], list[Picture]]:
    used = len(train) if limit is None else min(limit, len(train))
    count = int(holdout) if holdout >= 1 else max(1, round(holdout * used))
    if not 0 < count < len(train):
        raise DataError(
            f"{count} of {len(train)} training pictures for validation leaves none on one side.",
            "Change data.holdout: a number of pictures, or a share below 1.",
        )
    order = torch.randperm(len(train), generator=rng).tolist()
    held = set(order[:count])
    return [train[i] for i in sorted(held)], [one for i, one in enumerate(train) if i not in held]


def _some(pictures: list[Picture], limit: int | None, rng: torch.Generator) -> list[Picture]:
    if limit is None or limit >= len(pictures):
        return pictures
    return [pictures[i] for i in sorted(torch.randperm(len(pictures), generator=rng)[:limit].tolist())]
