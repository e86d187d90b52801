"""Images, and sounds as pictures, with their classes: chosen, read, measured."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from supple.data.choice import Splits, checked_fingerprint, choose
from supple.data.decode import MAX_PIXELS
from supple.data.hearing import Hearing
from supple.data.images import ImageSet
from supple.data.parts import Collection, Part, Request
from supple.data.prepare import Preprocess
from supple.data.reading import MEMORY_LIMIT, SAMPLE, fit, measure, read, stored_size
from supple.data.sound_reading import read_sounds
from supple.errors import DataError
from supple.text import say

# How each set of sounds is heard, and the size of the pictures, unless the recipe says otherwise.
HEARD = {
    "sounds": (Hearing(16_000, 1.0, "mel"), 64),
    "speech_commands": (Hearing(16_000, 1.0, "stft"), 224),
    "gtzan": (Hearing(22_050, 3.0, "three", mels=128), 224),
    "esc": (Hearing(16_000, 5.0, "mel"), 64),
}


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


def load_pictures(
    name: str,
    reader: Callable[[Request], Collection],
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
) -> Splits:
    """size: of the images; None: as they are, if all alike. channels: 3, 1, or None for the set's own.
    limit: images trained on, the same number per class, not counting the held-out ones; only those used are decoded.
    holdout: how many images are kept out of training: a number, or a share (below 1) of those available or of `limit`;
    a set with a validation part of its own uses that instead. mean, std: None: measured on the training images (on
    1,000 of them if they do not fit in memory_limit bytes). crop, flip, policy: augmentation, for training only.
    rate, seconds, features, mels: how sounds are heard, see `Hearing`; None: as usual for the set. fold: to test on.
    """
    hearing, usual_size = heard(name, rate=rate, seconds=seconds, features=features, mels=mels)
    if hearing is not None and flip:
        raise DataError("data.flip is for pictures: it would play sounds backwards.", "Leave it out; data.crop shifts.")
    size = usual_size if size is None else size
    if isinstance(size, tuple):
        raise DataError(f"data.size is {list(size)}, but pictures of {name} are square.", "Give one number.")
    usual_channels = 3 if hearing is None else hearing.channels
    # What cannot be is refused before anything is read.
    _blank(1 if size is None else size, usual_channels if channels is None else channels, max_pixels, hearing)
    found = reader(Request(root, size, seed, test_share, hearing, fold))
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


def _blank(size: int, channels: int, max_pixels: int, hearing: Hearing | None) -> Preprocess:
    """Preprocessing before mean and deviation are known."""
    return Preprocess(size, channels, (0.0,) * max(0, channels), (1.0,) * max(0, channels), max_pixels, hearing)


def _sample(part: Part, classes: tuple[str, ...], preprocess: Preprocess) -> Tensor:
    """The training images to measure; of files, SAMPLE of them, evenly spread (they lie class by class)."""
    if isinstance(part.images, Tensor):
        return part.images
    spread = torch.linspace(0, len(part.labels) - 1, min(SAMPLE, len(part.labels))).round().long()
    return ImageSet(part.images, part.labels, classes, preprocess).read(spread)
