"""Images, and sounds as pictures: chosen, read from files or stored pixels, brought to one size, measured."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supple.data._io.decode import MAX_PIXELS, decode, header
from supple.data._io.paths import Source
from supple.data.audio.sound import sound_seconds
from supple.data.audio.spectrogram import SpectrogramConfig
from supple.data.augment import Augmentation
from supple.data.images import WORKERS, ImageSet, open_all
from supple.data.parts import Collection, Part, Reader
from supple.data.preprocess import Preprocess
from supple.data.settings import (
    Above,
    Channels,
    Count,
    Features,
    Holdout,
    Interpolation,
    Mels,
    Padding,
    Probability,
    Rate,
    Seconds,
    Seed,
    Side,
    Workers,
)
from supple.data.splits import Splits, choose, read_parts
from supple.errors import DataError
from supple.model import Shape

BLOCK = 256  # images per task
BLOCK_SAMPLES = 2**21  # of sounds per task: 8 MB, 131 clips of a second at 16 kHz
SMALL = 10_000  # pixels; below, threads waiting for each other cost more than they gain (measured: 32 px 1.6 times)
MEMORY_LIMIT = 2 * 1024**3  # bytes; larger sets are read from their files, batch by batch
SAMPLE = 1000  # images to measure mean and deviation from, when they are not in memory
EMPTY = "Replace unreadable files, or change the settings that split the set."
SKIPPED_SHARE = 0.001  # of the files; unreadable ones up to this share, or one, are left out


def load_pictures(
    reader: Reader,
    *,
    size: Side | None = None,  # pixels of a side; None: as they are, if all alike
    channels: Channels | None = None,  # 3: RGB, 1: grey; None: the set's own
    limit: Count | None = None,  # use only so many training images, the same number per class
    test_limit: Count | None = None,  # use only so many test images
    holdout: Holdout = 0.1,  # validation images, if the set has none of its own: a number, or a share below 1
    crop: Padding = 0,  # random crop after padding by so many pixels
    crop_scale: tuple[float, float] | None = None,  # random crop with such a share of the area, resized: [0.3, 1]
    flip: bool = False,  # random horizontal flip
    augment: str | None = None,  # randaugment, trivialaugment, ..., or as timm writes it: rand-m9-mstd0.5-inc1
    jitter: Probability = 0.0,  # brightness, contrast and saturation vary by up to this share
    erase: Probability = 0.0,  # probability that a random rectangle is erased
    mean: tuple[float, ...] | None = None,  # of values in 0..1; None: the starting weights', or measured on the images
    std: tuple[float, ...] | None = None,  # None: likewise
    crop_share: Above | None = None,  # of the shorter side that is seen; None: the starting weights', or 1
    interpolation: Interpolation | None = None,  # None: the starting weights', or bilinear
    workers: Workers | None = None,  # processes that read training images; None: as many as are worth it
    max_pixels: Count = MAX_PIXELS,  # larger pictures are refused before they are decoded
    seed: Seed = 0,  # of the splits
) -> Splits:
    """Data sets of pictures. `holdout` as a share is one of the images available, or of `limit`; `limit` does not count
    the validation images. Only the images used are decoded. Mean and deviation are measured on 1,000 images if they do
    not fit in memory.
    """
    _must_be_square(size, reader.name)
    # What cannot be is refused before anything is read.
    _blank(1 if size is None else size, 3 if channels is None else channels, max_pixels)
    found, seen = read_parts(reader)
    parts = choose(found, limit, holdout, test_limit, seed)
    side = _stored_size(parts, max_pixels) if size is None else size
    blank = _blank(side, found.channels if channels is None else channels, max_pixels)
    blank = replace(blank, crop_share=crop_share or 1.0, interpolation=interpolation or "bilinear")
    change = Augmentation(crop_scale, augment, jitter, crop, flip, erase)
    if isinstance(found.train.images, Tensor):
        parts = [replace(part, images=_fit(part.images, blank)) for part in parts if isinstance(part.images, Tensor)]
    elif change.crop_scale is not None and not _enlarged(parts, blank):  # parts of the files are wanted, in detail
        parts = _read(parts, blank, 0, reader.warn)
    else:
        parts = _read_alike(parts, blank, reader, resize=size is not None)
    return _splits(reader, found, parts, blank, (mean, std), change, seen, workers)


def load_sounds(
    reader: Reader,
    *,
    rate: Rate = 16_000,  # samples per second
    seconds: Seconds = 1.0,  # of a clip: cut to its middle, or followed by silence
    features: Features = "mel",  # the spectra that the network sees
    mels: Mels = 64,  # bands of a mel spectrum
    size: Side = 64,  # pixels of a side of their pictures
    channels: Channels | None = None,  # None: one for each spectrum
    limit: Count | None = None,  # use only so many training sounds, the same number per class
    test_limit: Count | None = None,  # use only so many test sounds
    holdout: Holdout = 0.1,  # validation sounds, if the set has none of its own: a number, or a share below 1
    crop: Padding = 0,  # random crop after padding by so many pixels: shifts time and pitch
    augment: str | None = None,  # autoaugment, randaugment, trivialaugment: picture by picture, slower
    mean: tuple[float, ...] | None = None,  # of values in 0..1, per channel; None: measured on the training sounds
    std: tuple[float, ...] | None = None,  # None: measured
    seed: Seed = 0,  # of the splits
) -> Splits:
    """Data sets of sounds, made pictures: see `SpectrogramConfig`. The rest is as for pictures."""
    _must_be_square(size, reader.name)
    spectrogram = SpectrogramConfig(rate, seconds, features, mels)
    blank = _blank(size, spectrogram.channels if channels is None else channels, MAX_PIXELS, spectrogram)
    found, seen = read_parts(reader)
    parts = choose(found, limit, holdout, test_limit, seed)
    parts = _read(parts, blank, reader.memory_limit, reader.warn)
    return _splits(reader, found, parts, blank, (mean, std), Augmentation(crop=crop, augment=augment), seen)


def picture_shape(settings: Mapping[str, Any], stored: Shape | None, use_audio: bool) -> Shape | None:
    """Of an image as the settings say, or as it is stored; None: only the files know."""
    size, channels = settings["size"], settings["channels"]
    if size is None and stored is None:
        return None
    usual, *sides = stored or (3,)
    return (channels or usual, *((size, size) if size is not None else sides))


def sound_shape(settings: Mapping[str, Any], stored: Shape | None, use_audio: bool) -> Shape:
    """Of the picture of a sound."""
    spectrogram = SpectrogramConfig(*(settings[key] for key in ("rate", "seconds", "features", "mels")))
    return (settings["channels"] or spectrogram.channels, settings["size"], settings["size"])


def _splits(
    reader: Reader,
    found: Collection,
    parts: list[Part],
    blank: Preprocess,
    measured: tuple[tuple[float, ...] | None, tuple[float, ...] | None],
    augmentation: Augmentation,
    fingerprint: str,
    workers: int | None = None,
) -> Splits:
    for part, word in zip(parts, ("training", "validation", "test")):
        if len(part) == 0:
            raise DataError(f'data set "{reader.name}" has no {word} sample left.', EMPTY)
    mean, std = measured
    if mean is None or std is None:
        found_mean, found_std = measure(_sample(parts[0], blank))
        mean, std = mean or found_mean, std or found_std
    preprocess = replace(blank, mean=tuple(mean), std=tuple(std))
    train, val, test = ((part, found.classes, preprocess, reader.task) for part in parts)
    return Splits(ImageSet(*train, augmentation, workers), ImageSet(*val), ImageSet(*test), fingerprint)


def _must_be_square(size: Any, name: str) -> None:
    if isinstance(size, tuple):
        raise DataError(f"data.size is {list(size)}, but pictures of {name} are square.", "Give one number.")


def _blank(size: int, channels: int, max_pixels: int, spectrogram: SpectrogramConfig | None = None) -> Preprocess:
    """Preprocessing before mean and deviation are known."""
    return Preprocess(size, channels, (0.0,) * max(0, channels), (1.0,) * max(0, channels), max_pixels, spectrogram)


def _sample(part: Part, preprocess: Preprocess) -> Tensor:
    """The training images to measure; of files, SAMPLE of them, evenly spread (they lie class by class)."""
    if isinstance(part.images, Tensor):
        return part.images
    spread = torch.linspace(0, len(part) - 1, min(SAMPLE, len(part))).round().long()
    return open_all([part.images[i] for i in spread.tolist()], preprocess)


def _stored_size(parts: Sequence[Part], max_pixels: int) -> int:
    """The side of the images as they are, told by the first readable one; `_read` compares the others."""
    width, height = _first_size(parts, max_pixels)
    if width != height:
        raise DataError(f"the images are {width} x {height} pixels, not square.", "Set data.size to resize them.")
    return width


def _first_size(parts: Sequence[Part], max_pixels: int) -> tuple[int, int]:
    for image in chain.from_iterable(part.images for part in parts):
        if isinstance(image, Tensor):
            return image.shape[-1], image.shape[-2]
        with suppress(DataError):  # counted and reported by `_read`
            return header(image, max_pixels)
    return 1, 1


def _fit(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Bring stored uint8 images (count, 1 or 3, height, width) to the size and channels of `preprocess`.

    Small ones stay as they are: they are enlarged batch by batch.
    """
    height, width = images.shape[2:]
    if images.shape[1] == preprocess.channels and height == width <= preprocess.size:
        return images
    colour = images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    return torch.stack([preprocess.image(image) for image in colour])


def _enlarged(parts: Sequence[Part], preprocess: Preprocess) -> bool:
    """Whether the pictures are smaller than the network sees them, as the first one tells."""
    width, height = _first_size(parts, preprocess.max_pixels)
    return width == height < preprocess.size


def _read_alike(parts: Sequence[Part], preprocess: Preprocess, reader: Reader, resize: bool) -> list[Part]:
    """As `_read`; but small pictures that are all alike are kept as they are, and enlarged batch by batch."""
    if _enlarged(parts, preprocess):
        side, _ = _first_size(parts, preprocess.max_pixels)
        with suppress(_Unlike):
            return _read(parts, replace(preprocess, size=side), reader.memory_limit, reader.warn, resize=False)
    return _read(parts, preprocess, reader.memory_limit, reader.warn, resize)


class _Unlike(DataError):
    """Images that were to be of one size are not."""


def _read(
    parts: Sequence[Part], preprocess: Preprocess, memory_limit: int, warn: Callable[[str], None], resize: bool = True
) -> list[Part]:
    """Read the files of all parts into memory if they fit; otherwise check their headers and leave them files.

    Unreadable files are left out and named in a warning: up to 0.1 % of the files, or one; more is an error. Without
    `resize`, an image of another size than `preprocess.size` is an error.
    """
    sources = [source for part in parts for source in part.images]
    shape = (len(sources), preprocess.channels, preprocess.size, preprocess.size)
    pixels = torch.empty(shape, dtype=torch.uint8) if prod(shape) <= memory_limit else None
    spectrogram = preprocess.spectrogram
    block, workers = BLOCK, WORKERS
    if spectrogram is not None:
        block = max(1, BLOCK_SAMPLES // spectrogram.samples)
    elif prod(_first_size(parts, preprocess.max_pixels)) <= SMALL:
        workers = 1

    def take(start: int) -> list[str | None]:
        some = sources[start : start + block]
        into = None if pixels is None else pixels[start : start + block]
        return _images(some, preprocess, into, resize) if spectrogram is None else _sounds(some, preprocess, into)

    with ThreadPoolExecutor(workers) as pool:
        reasons = list(chain.from_iterable(pool.map(take, range(0, len(sources), block))))
    _judge([reason for reason in reasons if reason is not None], len(sources), warn, preprocess.kind)
    return _keep(parts, reasons, pixels)


def _images(sources: Sequence[Source], preprocess: Preprocess, into: Tensor | None, resize: bool) -> list[str | None]:
    """Read images into a tensor, or only check their headers; of each the reason if that fails."""
    size = preprocess.size
    reasons: list[str | None] = []
    for place, source in enumerate(sources):
        try:
            if into is None:
                width, height = header(source, preprocess.max_pixels)
            else:
                array = decode(source, preprocess.max_pixels)
                height, width = array.shape[:2]
        except DataError as problem:
            reasons.append(problem.cause)
            continue
        if not resize and (width, height) != (size, size):
            name = "an image" if isinstance(source, bytes) else source
            raise _Unlike(
                f"the images differ in size: {name} is {width} x {height}, others are {size} x {size}.",
                "Set data.size to resize them all.",
            )
        if into is not None:
            into[place] = preprocess.image(array)
        reasons.append(None)
    return reasons


def _sounds(sources: Sequence[Source], preprocess: Preprocess, into: Tensor | None) -> list[str | None]:
    """The same for sounds; their spectra are computed together."""
    assert preprocess.spectrogram is not None
    waves = np.zeros((len(sources), preprocess.spectrogram.samples), np.float32)
    reasons: list[str | None] = []
    for source, wave in zip(sources, waves):
        try:
            if into is None:
                sound_seconds(source)
            else:
                wave[:] = preprocess.spectrogram.wave(source)
            reasons.append(None)
        except DataError as problem:
            reasons.append(problem.cause)
    if into is not None:
        into[:] = preprocess.hear(torch.from_numpy(waves))
    return reasons


def _keep(parts: Sequence[Part], reasons: Sequence[str | None], pixels: Tensor | None) -> list[Part]:
    """The parts without what has a reason to be left out; held as `pixels`, of all parts in order, where given."""
    kept, start = [], 0
    for part in parts:
        good = torch.tensor([i for i in range(len(part)) if reasons[start + i] is None], dtype=torch.int64)
        picked = part.pick(good)
        if pixels is not None:
            own = pixels[start : start + len(part)]  # a view: a copy needs the memory twice
            picked = replace(picked, images=own if len(good) == len(part) else own[good])
        kept.append(picked)
        start += len(part)
    return kept


def _judge(reasons: list[str], files: int, warn: Callable[[str], None], kind: str) -> None:
    """Warn of the few that are left out; refuse if they are many."""
    if not reasons:
        return
    allowed = max(1, int(SKIPPED_SHARE * files))
    if len(reasons) > allowed:
        raise DataError(
            f"{len(reasons)} of {files:,} {kind}s cannot be read (up to {allowed} would be left out): "
            + " ".join(reasons[:3]),
            "Replace or remove these files.",
        )
    warn(f"{len(reasons)} of {files:,} {kind}s left out: {' '.join(reasons)}")


def measure(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, values in 0..1, from uint8 (count, channels, height, width).

    Exact, from the histogram of each channel. The deviation of a channel that never changes is given as 1.
    """
    value = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        counts = torch.zeros(256, dtype=torch.int64)
        for start in range(0, len(images), 10_000):
            counts += torch.bincount(images[start : start + 10_000, channel].flatten(), minlength=256)
        share = counts / counts.sum()
        mean = float((share * value).sum())
        std = float((share * (value - mean) ** 2).sum().sqrt())
        means.append(mean)
        stds.append(std or 1.0)
    return tuple(means), tuple(stds)
