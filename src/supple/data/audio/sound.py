"""The one way sound files become samples, shared by training, evaluation and serving."""

import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from supple.data._io.paths import Source, read_bytes
from supple.errors import DataError, NotFiniteError, TooLargeError

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "AIFF", "AU")
SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au")
MAX_SECONDS = 600.0
MAX_CHANNELS = 8
MIN_RATE, MAX_RATE = 1_000, 384_000  # samples per second
LOUDEST = 100_000.0  # full scale is 1; floats of 16-bit size are still understood
BLOCK = 2**18  # frames decoded at a time: many channels never lie in memory as a whole

Wave = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Piece:
    """A stretch of a recording, as a source of its own."""

    file: Source
    start: float  # seconds
    seconds: float

    def __str__(self) -> str:
        return f"{_name(self.file)} at {self.start:g} s"

    def read(self) -> bytes:
        """The bytes of the whole recording."""
        return read_bytes(self.file)


def decode_sound(source: Source, rate: int, seconds: float | None = None, max_seconds: float = MAX_SECONDS) -> Wave:
    """Decode a sound file to mono float32 (samples,) at `rate`; full scale is -1..1.

    - Formats: WAV, FLAC, Ogg, MP3, AIFF and AU, told by content; the name of the file does not matter.
    - seconds: no more than so many, from the middle. Only what is wanted is decoded; a Piece says so itself.
    - Length, rate and channels in the header are held against the limits before anything is decoded.
    - Channels are averaged; another rate is resampled (soxr, high quality).
    - Anything else (missing, corrupt, empty, no sound, NaN or infinite samples) is a DataError that names the file.
    """
    with _opened(source, max_seconds) as file:
        if isinstance(source, Piece):
            first = min(round(source.start * file.samplerate), file.frames)
            count = min(round(source.seconds * file.samplerate), file.frames - first)
        else:
            count = file.frames if seconds is None else min(file.frames, math.ceil(seconds * file.samplerate))
            first = (file.frames - count) // 2
        file.seek(first)
        blocks = file.blocks(blocksize=BLOCK, frames=count, dtype="float32", always_2d=True)
        wave = np.concatenate([np.zeros(0, np.float32), *(block.mean(axis=1) for block in blocks)])
        if not np.isfinite(wave).all():
            cause = f"{_name(source)} has samples that are not numbers (NaN) or infinite."
            raise NotFiniteError(cause, "Replace it or remove it.")
        if len(wave) and float(np.abs(wave).max()) > LOUDEST:
            raise ValueError(f"its samples go beyond {LOUDEST:,.0f}, where full scale is 1")
        if file.samplerate != rate:
            wave = _package("soxr").resample(wave, file.samplerate, rate)
        if len(wave) == 0:
            raise ValueError("it holds no samples")
    return wave


def sound_seconds(source: Source) -> float:
    """The length as the header states it: the checks of `decode_sound` that need no samples."""
    with _opened(source, MAX_SECONDS) as file:
        return float(file.frames / file.samplerate)


def _name(source: Source) -> str:
    return "sound" if isinstance(source, bytes) else str(source)


@contextmanager
def _opened(source: Source, max_seconds: float) -> Iterator[Any]:
    """Open, check the header, and turn whatever goes wrong, inside the block too, into a DataError."""
    name = _name(source)
    soundfile = _package("soundfile")
    try:
        with soundfile.SoundFile(_handle(source)) as file:
            _check(file, max_seconds, name)
            yield file
    except DataError:
        raise
    except soundfile.LibsndfileError as problem:
        reason = str(getattr(problem, "error_string", problem)).rstrip(".")
        raise DataError(
            f"{name} is not a readable sound ({reason}); expected one of {', '.join(FORMATS)}.",
            "Replace it or remove it.",
        ) from None
    except Exception as problem:  # damaged headers make soundfile and numpy raise errors of many kinds
        reason = str(problem) or type(problem).__name__
        raise DataError(f"{name} cannot be read as a sound: {reason}.", "Replace it or remove it.") from None


def _handle(source: Source) -> Any:
    """What soundfile opens by content alone: it judges paths, and files that know theirs, by their endings too."""
    source = source.file if isinstance(source, Piece) else source
    if isinstance(source, str | Path):
        if not Path(source).is_file():
            raise FileNotFoundError("it is a folder" if Path(source).is_dir() else "there is no such file")
        if Path(source).stat().st_size == 0:
            raise ValueError("it is empty")
        return os.open(source, os.O_RDONLY)  # closed by soundfile
    content = read_bytes(source)
    if not content:
        raise ValueError("it is empty")
    return io.BytesIO(content)


def _check(file: Any, max_seconds: float, name: str) -> None:
    if file.format not in FORMATS:
        raise DataError(f"{name} is a sound of format {file.format}.", f"Expected one of {', '.join(FORMATS)}.")
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise DataError(f"{name} has {file.channels} channels; the limit is {MAX_CHANNELS}.", "Mix it down.")
    if not MIN_RATE <= file.samplerate <= MAX_RATE:
        raise DataError(
            f"{name} has a rate of {file.samplerate:,} Hz; expected {MIN_RATE:,} to {MAX_RATE:,}.",
            "Resample it, or correct its header.",
        )
    if file.frames > max_seconds * file.samplerate:
        raise TooLargeError(
            f"{name} lasts {file.frames / file.samplerate:,.0f} s; the limit is {max_seconds:,.0f} s.",
            "Cut it into shorter files.",
        )
    if file.frames < 1:
        raise DataError(f"{name} holds no samples.", "Replace it or remove it.")


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except (ImportError, OSError) as problem:  # OSError: the package without the library it wraps
        raise DataError(f"sounds need the package {name}: {problem}.", "pip install 'supple[audio]'") from None
