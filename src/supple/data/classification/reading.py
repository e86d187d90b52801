"""From files or stored pixels to images of one size: what `load` does once it knows which samples are wanted."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import prod

import numpy as np
import torch
from torch import Tensor

from supple.data._io.decode import decode, header
from supple.data._io.tree import Source
from supple.data.audio.sound import sound_seconds
from supple.data.images import WORKERS
from supple.data.parts import Part
from supple.data.preprocess import Preprocess
from supple.errors import DataError

BLOCK = 256  # images per task
BLOCK_SAMPLES = 2**21  # of sounds per task: 8 MB, 131 clips of a second at 16 kHz
SMALL = 10_000  # pixels; below, threads waiting for each other cost more than they gain (measured: 32 px 1.6 times)
MEMORY_LIMIT = 2 * 1024**3  # bytes; larger sets are read from their files, batch by batch
SAMPLE = 1000  # images to measure mean and deviation from, when they are not in memory
SKIPPED_SHARE = 0.001  # of the files; unreadable ones up to this share, or one, are left out


def stored_size(parts: Sequence[Part], max_pixels: int) -> int:
    """The side of the images as they are, told by the first readable one; `read` compares the others."""
    width, height = _first_size(parts, max_pixels)
    if width != height:
        raise DataError(f"the images are {width} x {height} pixels, not square.", "Set data.size to resize them.")
    return width


def _first_size(parts: Sequence[Part], max_pixels: int) -> tuple[int, int]:
    for image in chain.from_iterable(part.images for part in parts):
        if isinstance(image, Tensor):
            return image.shape[-1], image.shape[-2]
        with suppress(DataError):  # counted and reported by `read`
            return header(image, max_pixels)
    return 1, 1


def fit(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Bring stored uint8 images (count, 1 or 3, height, width) to the size and channels of `preprocess`."""
    if tuple(images.shape[1:]) == (preprocess.channels, preprocess.size, preprocess.size):
        return images
    colour = images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    return torch.stack([preprocess.image(image) for image in colour])


def read(
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
            raise DataError(
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
