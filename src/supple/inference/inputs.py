"""What an engine is given: files, pictures or arrays, as float32 with the batch first."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from supple.errors import DataError
from supple.inference.engines import Array, State
from supple.inference.request import Piped

CURE = "Give a file, its bytes, a picture (of PIL, or uint8), or float32 arrays, of one sample or with the batch first."


def parts_of(shape: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """The shapes of all that a network takes of one sample."""
    return [tuple(shape)] if all(isinstance(side, int) for side in shape) else list(shape)


def zeros(shape: tuple[Any, ...], batch: int) -> State:
    return tuple(np.zeros((batch, *sides), np.float32) for sides in parts_of(shape))


def count(state: State) -> int:
    """Samples in a batch."""
    part = next(part for part in state if part is not None)
    return int(part.shape[0]) if hasattr(part, "shape") else count(part)


def must_be_finite(part: Array) -> None:
    """An engine may answer anything at all to NaN or infinity."""
    finite = np.isfinite(part)
    if not finite.all():
        row = int(np.argmin(finite.reshape(len(part), -1).all(1)))
        raise DataError(f"sample {row} of the batch holds values that are not finite.", "Leave it out.")


def must_read_files(preprocess: Any) -> None:
    if preprocess is None:
        cure = "Give float32 arrays, from Python; or train with supple.fit(..., preprocess=...)."
        raise DataError("this model has no preprocessing for files.", cure)


def _is_picture(given: Any) -> bool:
    """Whether it is an image of Pillow, which is not imported for that: nobody has one without it."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(given, pillow.Image)


def taken(given: Any, shape: tuple[Any, ...], preprocess: Any, partial: bool) -> tuple[State, bool]:
    """What the network takes, and whether it is of a single sample. partial: a part may be missing."""
    if hasattr(given, "detach"):  # a tensor of torch, which is not imported here
        given = given.detach().cpu().numpy()
    if isinstance(given, tuple) or (isinstance(given, np.ndarray) and given.dtype == np.float32):
        parts, expected = given if isinstance(given, tuple) else (given,), parts_of(shape)
        shapes = [part.shape if isinstance(part, np.ndarray) else type(part).__name__ for part in parts]
        if single := shapes == expected:
            parts = tuple(part[None] for part in parts)
            shapes = [part.shape for part in parts]
        batch = len(parts[0]) if parts and isinstance(parts[0], np.ndarray) and parts[0].ndim else 0
        if not batch or shapes != [(batch, *sides) for sides in expected]:
            wanted = " and ".join(f"(batch, {', '.join(map(str, sides))})" for sides in expected)
            raise DataError(f"inputs of shapes {shapes}; expected {wanted}.", CURE)
        for part in parts:
            must_be_finite(part)
        return tuple(np.ascontiguousarray(part, np.float32) for part in parts), single
    picture = _is_picture(given) or (isinstance(given, np.ndarray) and given.dtype == np.uint8)
    if not picture and not isinstance(given, str | Path | bytes | Piped):
        what = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else f"of type {type(given).__name__}"
        raise DataError(f"the input is {what}.", CURE)
    must_read_files(preprocess)
    parts = preprocess.arrays(given)
    if not partial and any(part is None for part in parts):
        cure = "Add a sound file of the same name; or use an exit that reads only the picture, from the run itself."
        named = given if isinstance(given, str | Path | Piped) else "this picture"
        raise DataError(f"{named} has no sound, which an engine needs.", cure)
    return parts, True
