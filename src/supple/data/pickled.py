"""Reading the pickles of CIFAR without unpickling: nothing named in such a file is ever called.

A pickle can run any code when it is opened. Here it cannot: the unpickler knows five names, puts a harmless stand-in of
ours in the place of each, and refuses any other.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from supple.errors import DataError

CURE = "Take the files from the CIFAR page of the University of Toronto again, and set data.root to them."


class Type:
    """Stands in for numpy.dtype: remembers its code, builds nothing."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass


class Array:
    """Stands in for numpy.ndarray: remembers shape, type and bytes; becomes an array only if they fit together."""

    def __setstate__(self, state: object) -> None:
        self.state = state

    def to_numpy(self, where: str) -> np.ndarray[Any, Any]:
        match getattr(self, "state", None):
            case (_, (int() as rows, int() as columns), Type(code="u1" | "|u1"), False | 0, bytes() as data) if (
                rows * columns == len(data)
            ):
                return np.frombuffer(data, np.uint8).reshape(rows, columns)
        raise DataError(f"{where}: its array is not rows of uint8.", CURE)


def _reconstruct(*_: object) -> Array:
    return Array()


def _encode(text: object, coding: object = "latin1") -> bytes:
    """Stands in for _codecs.encode, by which Python 3 writes bytes in old pickle formats: always as latin1."""
    if not isinstance(text, str) or coding != "latin1":
        raise pickle.UnpicklingError("bytes are expected as latin1")
    return text.encode("latin1")


STAND_INS: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Type,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise DataError(f"it asks to run {module}.{name}, which no CIFAR file needs; nothing of it was run.", CURE)
        return STAND_INS[module, name]


def unpickle(data: bytes, where: str) -> dict[str, Any]:
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as refusal:
        raise DataError(f"{where} was refused: {refusal.cause}", refusal.cure) from None
    except Exception as problem:  # a damaged pickle raises nearly anything
        raise DataError(f"{where} is damaged: {problem}.", CURE) from None
    if not isinstance(content, dict):
        raise DataError(f"{where} does not hold a dictionary.", CURE)
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
