"""From sound files to pictures in memory: what `load` does once it knows which sounds are wanted."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import torch

from supple.data._io.tree import Source
from supple.data.audio.sound import sound_seconds
from supple.data.classification.reading import judge, keep
from supple.data.images import WORKERS
from supple.data.parts import Part
from supple.data.preprocess import Preprocess
from supple.errors import DataError

BLOCK_SAMPLES = 2**21  # decoded at a time by a thread: 8 MB, 131 clips of a second at 16 kHz


def read_sounds(
    parts: Sequence[Part], preprocess: Preprocess, memory_limit: int, warn: Callable[[str], None]
) -> list[Part]:
    """Make pictures of the sounds of all parts, in memory if they fit; otherwise check headers and leave them files.

    Unreadable files are left out and named in a warning: up to 0.1 % of them, or one; more is an error.
    """
    assert preprocess.spectrogram is not None
    spectrogram, size, channels = preprocess.spectrogram, preprocess.size, preprocess.channels
    sources = [source for part in parts for source in part.images]
    in_memory = len(sources) * channels * size * size <= memory_limit
    pixels = torch.empty((len(sources) if in_memory else 0, channels, size, size), dtype=torch.uint8)
    block = max(1, BLOCK_SAMPLES // spectrogram.samples)

    def take(source: Source, into: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None) -> str | None:
        """Decode or check one file; the reason if that fails."""
        try:
            if into is None:
                sound_seconds(source)
            else:
                into[:] = spectrogram.wave(source)
        except DataError as problem:
            return str(problem.cause)
        return None

    def take_block(start: int) -> list[str | None]:
        wanted = sources[start : start + block]
        if not in_memory:
            return [take(source, None) for source in wanted]
        waves = np.zeros((len(wanted), spectrogram.samples), np.float32)
        reasons = [take(source, wave) for source, wave in zip(wanted, waves)]
        pixels[start : start + len(wanted)] = preprocess.hear(torch.from_numpy(waves))
        return reasons

    with ThreadPoolExecutor(WORKERS) as pool:
        reasons = list(chain.from_iterable(pool.map(take_block, range(0, len(sources), block))))
    judge([reason for reason in reasons if reason is not None], len(sources), warn, "sound")
    return keep(parts, reasons, pixels if in_memory else None)
