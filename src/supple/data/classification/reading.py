"""From files or stored pixels to images of one size: what `load` does once it knows which images are wanted."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from supple.data._io.decode import decode, header
from supple.data._io.tree import Source, content
from supple.data.images import WORKERS
from supple.data.parts import Part
from supple.data.preprocess import Preprocess
from supple.errors import DataError

BLOCK = 256  # files per task
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
            return header(*content(image, max_pixels))
    return 1, 1


def fit(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Bring stored uint8 images (count, 1 or 3, height, width) to the size and channels of `preprocess`."""
    if tuple(images.shape[1:]) == (preprocess.channels, preprocess.size, preprocess.size):
        return images
    colour = images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    return torch.stack([preprocess.image(image) for image in colour])


def read(
    parts: Sequence[Part], preprocess: Preprocess, resize: bool, memory_limit: int, warn: Callable[[str], None]
) -> list[Part]:
    """Read the files of all parts into memory if they fit; otherwise check their headers and leave them files.

    Unreadable files are left out and named in a warning: up to 0.1 % of the files, or one; more is an error. Without
    `resize`, an image of another size than `preprocess.size` is an error.
    """
    sources = [source for part in parts for source in part.images]
    size = preprocess.size
    in_memory = len(sources) * preprocess.channels * size * size <= memory_limit
    pixels = torch.empty((len(sources) if in_memory else 0, preprocess.channels, size, size), dtype=torch.uint8)

    def take(index: int) -> str | None:
        """Read or check one file; the reason if that fails."""
        source = sources[index]
        try:
            if in_memory:
                array = decode(*content(source, preprocess.max_pixels))
                height, width = array.shape[:2]
            else:
                width, height = header(*content(source, preprocess.max_pixels))
        except DataError as problem:
            return str(problem.cause)
        if not resize and (width, height) != (size, size):
            raise DataError(
                f"the images differ in size: {_name(source)} is {width} x {height}, others are {size} x {size}.",
                "Set data.size to resize them all.",
            )
        if in_memory:
            pixels[index] = preprocess.image(array)
        return None

    def take_block(start: int) -> list[str | None]:
        return [take(index) for index in range(start, min(start + BLOCK, len(sources)))]

    width, height = _first_size(parts, preprocess.max_pixels)
    with ThreadPoolExecutor(1 if width * height <= SMALL else WORKERS) as pool:
        reasons = list(chain.from_iterable(pool.map(take_block, range(0, len(sources), BLOCK))))
    judge([reason for reason in reasons if reason is not None], len(sources), warn)
    return keep(parts, reasons, pixels if in_memory else None)


def keep(parts: Sequence[Part], reasons: Sequence[str | None], pixels: Tensor | None) -> list[Part]:
    """The parts without what has a reason to be left out; held as `pixels`, of all parts in order, where given."""
    kept, start = [], 0
    for part in parts:
        good = torch.tensor([i for i in range(len(part)) if reasons[start + i] is None], dtype=torch.int64)
        picked = part.pick(good)
        if pixels is not None and len(good) == len(part):
            picked = replace(picked, images=pixels[start : start + len(good)])  # a view: a copy needs the memory twice
        elif pixels is not None:
            picked = replace(picked, images=pixels[start + good])
        kept.append(picked)
        start += len(part)
    return kept


def _name(source: Source | Tensor) -> str:
    return "an image" if isinstance(source, bytes | Tensor) else str(source)


def judge(reasons: list[str], files: int, warn: Callable[[str], None], kind: str = "image") -> None:
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
