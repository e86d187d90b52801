"""Data sets by name. A new one is a file here, a function `Request -> Collection`, and a line in DATASETS.

A set of sounds has a line in HEARD as well: from reading to serving, its sounds are pictures. One whose samples are
asked something else than their class has a line in TASK_OF; PREPARE says how the files of each task become inputs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from supple.data.choice import Splits, checked_fingerprint, choose, must_be
from supple.data.cifar import cifar10, cifar100
from supple.data.coco_parts import coco
from supple.data.crowd import crowd
from supple.data.crowd_prepare import CrowdPrepare
from supple.data.crowd_set import CrowdSet, crowd_sets
from supple.data.decode import MAX_PIXELS
from supple.data.density import SIGMA
from supple.data.digits import digits
from supple.data.disco import disco
from supple.data.esc import esc
from supple.data.folder import folder
from supple.data.generated import generated
from supple.data.gtzan import gtzan
from supple.data.hearing import Hearing
from supple.data.images import ImageSet
from supple.data.parts import Collection, Part, Request
from supple.data.places import find
from supple.data.prepare import Preprocess
from supple.data.reading import SAMPLE, fit, measure, read, stored_size
from supple.data.samples import Prepare, Samples
from supple.data.scene_prepare import ScenePrepare
from supple.data.scene_set import SceneSet
from supple.data.sound_reading import read_sounds
from supple.data.sounds import sounds
from supple.data.speech_commands import speech_commands
from supple.errors import DataError
from supple.text import did_you_mean, say

__all__ = [
    "DATASETS",
    "HEARD",
    "PREPARE",
    "TASK_OF",
    "Collection",
    "CrowdPrepare",
    "CrowdSet",
    "Hearing",
    "ImageSet",
    "Part",
    "Prepare",
    "Preprocess",
    "Request",
    "Samples",
    "ScenePrepare",
    "SceneSet",
    "Splits",
    "find",
    "heard",
    "load",
]

DATASETS: dict[str, Callable[..., Any]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "folder": folder,
    "generated": generated,
    "sounds": sounds,
    "speech_commands": speech_commands,
    "gtzan": gtzan,
    "esc": esc,
    "crowd": crowd,
    "disco": disco,
    "coco": coco,
}
# How each set of sounds is heard, and the size of the pictures, unless the recipe says otherwise.
HEARD = {
    "sounds": (Hearing(16_000, 1.0, "mel"), 64),
    "speech_commands": (Hearing(16_000, 1.0, "stft"), 224),
    "gtzan": (Hearing(22_050, 3.0, "three", mels=128), 224),
    "esc": (Hearing(16_000, 5.0, "mel"), 64),
}
TASK_OF = {"crowd": "count", "disco": "count", "coco": "boxes"}  # what is asked of samples; else classes
PREPARE: dict[str, Any] = {"classes": Preprocess, "count": CrowdPrepare, "boxes": ScenePrepare}  # files to inputs
USUAL_SIZE = {"disco": (576, 1024)}  # height and width
MEMORY_LIMIT = 2 * 1024**3  # bytes


def heard(name: str, **changes: object) -> tuple[Hearing | None, int | None]:
    """How the sounds of a set are heard, with the changes that are not None, and their usual size; of images, None."""
    given = {key: value for key, value in changes.items() if value is not None}
    if name in HEARD:
        hearing, size = HEARD[name]
        return replace(hearing, **given), size  # type: ignore[arg-type]
    if given:
        sets = ", ".join(HEARD)
        raise DataError(f"data.{next(iter(given))} is for sounds; {name} holds images.", f"Remove it, or name {sets}.")
    return None, None


@torch.inference_mode(False)  # images are decoded by threads, which know no such mode
def load(
    name: str,
    *,
    root: str | None = None,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    limit: int | None = None,
    holdout: int | float = 0.1,
    crop: int = 0,
    flip: bool = False,
    policy: str | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    test_limit: int | None = None,
    max_pixels: int = MAX_PIXELS,
    seed: int = 0,
    warn: Callable[[str], None] = say,
    test_share: float = 0.2,
    memory_limit: int = MEMORY_LIMIT,
    fingerprint: str | None = None,
    rate: int | None = None,
    seconds: float | None = None,
    features: str | None = None,
    mels: int | None = None,
    fold: int = 5,
    sigma: float = SIGMA,
    sizes: tuple[int, ...] | None = None,
    longest: int | None = None,
    only: tuple[str, ...] | None = None,
    same: bool = False,
    repeat: int = 1,
    skip_broken: bool = False,
) -> Splits:
    """Load a data set of DATASETS and split it: everything drawn is drawn with `seed`.

    size: of the images; None: as they are, if all alike. channels: 3, 1, or None for the set's own.
    limit: images trained on, the same number per class, not counting the held-out ones; only those used are decoded.
    holdout: how many images are kept out of training: a number, or a share (below 1) of those available or of `limit`;
    a set with a validation part of its own uses that instead. mean, std: None: measured on the training images (on
    1,000 of them if they do not fit in memory_limit bytes). crop, flip, policy: augmentation, for training only.
    rate, seconds, features, mels: how sounds are heard, see `Hearing`; None: as usual for the set. fold: to test on.
    Crowds: size is (height, width), or one number for both; sigma: of a head in the density map, in pixels.
    sizes, longest, only, same, repeat, skip_broken: pictures with objects, see the recipe.
    """
    if name not in DATASETS:
        raise DataError(f'unknown data set "{name}".', did_you_mean(name, DATASETS))
    for word, count in (("limit", limit), ("test_limit", test_limit)):
        if count is not None and count < 1:
            raise DataError(f"{word} is {count}.", f"Set data.{word} to 1 or more, or leave it out.")
    if TASK_OF.get(name) == "boxes":
        _refuse(name, size=size, channels=None if channels == 3 else channels, crop=crop, policy=policy)
        learnt, held, tested, seen = coco(
            root=root,
            sizes=sizes,
            longest=longest,
            only=only,
            same=same,
            repeat=repeat,
            skip_broken=skip_broken,
            limit=limit,
            test_limit=test_limit,
            holdout=holdout,
            flip=flip,
            mean=mean,
            std=std,
            max_pixels=max_pixels,
            seed=seed,
        )
        return Splits(learnt, held, tested, must_be(fingerprint, seen, root or name))
    _refuse(name, sizes=sizes, longest=longest, only=only, same=same, repeat=repeat > 1, skip_broken=skip_broken)
    hearing, usual_size = heard(name, rate=rate, seconds=seconds, features=features, mels=mels)
    size = usual_size if size is None else size
    if TASK_OF.get(name) == "count":
        _only_flipped(name, crop=crop, policy=policy)
        if channels not in (None, 3):
            raise DataError(f"data.channels is {channels}, but crowds are seen in colour.", "Leave it out.")
        CrowdPrepare(picture_size(name, size))  # what cannot be is refused before anything is read
        found = DATASETS[name](Request(root, None, seed, test_share))
        seen = checked_fingerprint(found, fingerprint, root or name)
        parts = choose(found, limit, holdout, test_limit, seed)
        prepare = CrowdPrepare(picture_size(name, size), max_pixels=max_pixels)
        return Splits(*crowd_sets(parts, prepare, mean, std, sigma, flip, memory_limit), seen)
    if isinstance(size, tuple):
        raise DataError(f"data.size is {list(size)}, but pictures of {name} are square.", "Give one number.")
    usual_channels = 3 if hearing is None else hearing.channels
    # What cannot be is refused before anything is read.
    _blank(1 if size is None else size, usual_channels if channels is None else channels, max_pixels, hearing)
    found = DATASETS[name](Request(root, size, seed, test_share, hearing, fold))
    seen = checked_fingerprint(found, fingerprint, root or name)
    parts = choose(found, limit, holdout, test_limit, seed)

    channels = found.channels if channels is None else channels
    side = stored_size(parts, max_pixels) if size is None else size
    blank = _blank(side, channels, max_pixels, hearing)
    if hearing is not None:
        parts = read_sounds(parts, blank, memory_limit, warn)
    elif isinstance(found.train.images, Tensor):
        parts = [Part(fit(part.images, blank), part.labels) for part in parts if isinstance(part.images, Tensor)]
    else:
        parts = read(parts, blank, size is not None, memory_limit, warn)
    for part, word in zip(parts, ("training", "validation", "test")):
        if len(part.labels) == 0:
            raise DataError(f'data set "{name}" has no {word} image left.', "Replace the unreadable files.")

    if mean is None or std is None:
        measured = measure(_sample(parts[0], found.classes, blank))
        mean, std = mean or measured[0], std or measured[1]
    preprocess = replace(blank, mean=tuple(mean), std=tuple(std))
    train, val, test = ((part.images, part.labels, found.classes, preprocess) for part in parts)
    return Splits(ImageSet(*train, crop, flip, policy), ImageSet(*val), ImageSet(*test), seen)


def picture_size(name: str, size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Height and width of the pictures of crowds."""
    size = USUAL_SIZE.get(name) if size is None else size
    if size is None:
        raise DataError(f"the pictures of {name} differ in size.", "Set data.size=[height, width], such as [288, 512].")
    return (size, size) if isinstance(size, int) else size


def _only_flipped(name: str, **others: Any) -> None:
    """Refuses ways to augment that would take heads out of a picture, or move them."""
    given = [key for key, value in others.items() if value]
    if given:
        raise DataError(f"data.{given[0]} is not for {name}: heads would be lost.", "Leave it out; use data.flip.")


def _refuse(name: str, **settings: Any) -> None:
    """Settings that a data set has no use for."""
    given = [key for key, value in settings.items() if value]
    if given:
        raise DataError(
            f"data.{given[0]} is not for {name}.", "Leave it out; see docs/detection.md for pictures of any size."
        )


def _blank(size: int, channels: int, max_pixels: int, hearing: Hearing | None) -> Preprocess:
    """Preprocessing before mean and deviation are known."""
    return Preprocess(size, channels, (0.0,) * max(0, channels), (1.0,) * max(0, channels), max_pixels, hearing)


def _sample(part: Part, classes: tuple[str, ...], preprocess: Preprocess) -> Tensor:
    """The training images to measure; of files, SAMPLE of them, evenly spread (they lie class by class)."""
    if isinstance(part.images, Tensor):
        return part.images
    spread = torch.linspace(0, len(part.labels) - 1, min(SAMPLE, len(part.labels))).round().long()
    return ImageSet(part.images, part.labels, classes, preprocess).read(spread)
