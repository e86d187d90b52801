"""Which pictures of a COCO set are trained on, chosen with and tested on."""

from collections.abc import Callable
from pathlib import Path

import torch

from supple.data.choice import Splits, must_be
from supple.data.coco import LAYOUT, fingerprint_of
from supple.data.decode import MAX_PIXELS, header
from supple.data.places import find
from supple.data.scene_prepare import MEAN, STD, ScenePrepare
from supple.data.scene_set import Picture, SceneSet, must_fit
from supple.data.source import content
from supple.errors import DataError
from supple.text import did_you_mean, say

SIZES, LONGEST = (800,), 1333  # pixels, unless the recipe says otherwise


def load_scenes(
    name: str,
    reader: Callable[[Path, bool], tuple[dict[str, list[Picture]], tuple[str, ...], int]],
    *,
    root: str | None = None,
    sizes: tuple[int, ...] | None = None,
    longest: int | None = None,
    only: tuple[str, ...] | None = None,
    same: bool = False,
    repeat: int = 1,
    skip_broken: bool = False,
    limit: int | None = None,
    test_limit: int | None = None,
    holdout: int | float = 0.1,
    flip: bool = False,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    max_pixels: int = MAX_PIXELS,
    seed: int = 0,
    fingerprint: str | None = None,
) -> Splits:
    """sizes: of the shorter side in pixels, drawn in training; longest: of the longer side, at most. only: these
    pictures alone; same: tested on what it is trained on; repeat: every picture so often in an epoch.
    """
    if root is None:
        raise DataError(f'data set "{name}" needs to know which.', f"Set data.root to a folder or a zip. {LAYOUT}")
    preprocess = prepared(sizes, longest, mean, std, max_pixels)
    parts, classes, broken = reader(find(root), skip_broken)
    if not any(len(one.labels) for one in parts["train"]):
        cause = f"{root}: no picture to train on has an object{', the broken ones left out' if broken else ''}."
        raise DataError(cause, "List objects with bbox, category_id and segmentation in the json of train.")
    if broken:
        say(f"{root}: {broken} broken objects were left out (data.skip_broken)")
    seen = must_be(fingerprint, fingerprint_of(parts.values()), root)
    rng = torch.Generator().manual_seed(seed)
    train, test = parts["train"], parts["val"]
    if only is not None:
        train, test = _named(train, test, only, same)
    if same:
        if only is None:
            train = _some(train, limit, rng)
        val = test = train
    else:
        val, train = _held_out(train, holdout, limit, rng)
        train, test = _some(train, limit, rng), _some(test, test_limit, rng)
    for one in (*val, *test):  # what is wrong with these would only be seen after the training
        must_fit(one, *header(*content(one.source, max_pixels)))
    learnt = SceneSet(train, classes, preprocess, sizes or SIZES, flip, repeat)
    return Splits(learnt, SceneSet(val, classes, preprocess), SceneSet(test, classes, preprocess), seen)


def prepared(
    sizes: tuple[int, ...] | None,
    longest: int | None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> ScenePrepare:
    """How pictures are prepared when nothing is drawn: the largest size."""
    sizes = sizes or SIZES
    if min(sizes) < 1:
        raise DataError(f"data.sizes is {list(sizes)}.", "Give pixels of the shorter side: [480, 512, 544].")
    most = max(LONGEST, *sizes) if longest is None else longest
    return ScenePrepare(max(sizes), most, tuple(mean or MEAN), tuple(std or STD), max_pixels)


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


def _held_out(
    train: list[Picture], holdout: int | float, limit: int | None, rng: torch.Generator
) -> tuple[list[Picture], list[Picture]]:
    used = len(train) if limit is None else min(limit, len(train))
    count = int(holdout) if holdout >= 1 else max(1, round(holdout * used))
    if not 0 < count < len(train):
        raise DataError(
            f"holding out {count} of {len(train)} training pictures leaves none on one side.",
            "Change data.holdout: a number of pictures, or a share below 1.",
        )
    order = torch.randperm(len(train), generator=rng).tolist()
    held = set(order[:count])
    return [train[i] for i in sorted(held)], [one for i, one in enumerate(train) if i not in held]


def _some(pictures: list[Picture], limit: int | None, rng: torch.Generator) -> list[Picture]:
    if limit is None or limit >= len(pictures):
        return pictures
    return [pictures[i] for i in sorted(torch.randperm(len(pictures), generator=rng)[:limit].tolist())]
