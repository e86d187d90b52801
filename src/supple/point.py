"""A Point is one way to run a flexible model; a Group is a named distribution over points."""

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from supple.errors import PointError

_EXAMPLES = "Write full, or fields joined by commas: exit=2, width=0.5, layers=3-1-7, skip=0.5."


class _Fields(NamedTuple):
    exit: int | None = None  # stop at this exit; None: the last
    width: float = 1.0  # share of channels or dimensions kept
    layers: tuple[int, ...] | None = None  # these layers in this order; None: all, in order
    skip: float | None = None  # a sample skips a layer whose gate is below this; None: never


class Point(_Fields):
    """One way to run a model. Every default means "full"; exits and layers count from 1, as the papers do.

    `str(point)` gives the short form (`exit=2,width=0.5`, `layers=3-1-7`, `full`) and `Point.parse` reads it back.
    The model knows how many exits and layers it has: `model.check(point)` turns the last exit or the identity order
    into `full`. (A named tuple, since wrappers for devices and nodes look through these but not through frozen
    dataclasses.)
    """

    __slots__ = ()

    def __new__(
        cls,
        exit: int | None = None,
        width: float = 1.0,
        layers: Iterable[int] | None = None,
        skip: float | None = None,
    ) -> "Point":
        if exit is not None and (not _whole(exit) or exit < 1):
            raise PointError(f"exit={exit!r} is no exit: exits are whole numbers from 1.", _EXAMPLES)
        if not isinstance(width, (int, float)) or not 0 < width <= 1:
            raise PointError(f"width={width!r} is no width: widths lie above 0 and up to 1.", _EXAMPLES)
        if layers is not None:
            given, layers = layers, tuple(layers) if isinstance(layers, Iterable) else ()
            if not layers or not all(_whole(layer) and layer >= 1 for layer in layers):
                raise PointError(f"layers={given!r} is no order: layers are whole numbers from 1.", _EXAMPLES)
        if skip is not None and (not isinstance(skip, (int, float)) or not 0 <= skip <= 1):
            raise PointError(f"skip={skip!r} is no threshold: thresholds lie between 0 and 1.", _EXAMPLES)
        return super().__new__(cls, exit, float(width), layers, None if skip is None else float(skip))

    def __str__(self) -> str:
        return ",".join(f"{name}={_write(value)}" for name, value in self._set_fields()) or "full"

    def __repr__(self) -> str:
        return f"Point({', '.join(f'{name}={value!r}' for name, value in self._set_fields())})"

    def _set_fields(self) -> list[tuple[str, object]]:
        return [(k, value) for k, value in self._asdict().items() if value != self._field_defaults[k]]

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Reads what `str` writes. `full`, `width=1` and `width=1.0` are the same point."""
        if text.strip() == "full":
            return cls()
        values: dict[str, int | float | tuple[int, ...]] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if name not in _READ or not equals:
                raise PointError(f'"{text}" is no point: "{part.strip()}" is not understood.', _EXAMPLES)
            if name in values:
                raise PointError(f'"{text}" is no point: {name} is given twice.', _EXAMPLES)
            try:
                values[name] = _READ[name](value)
            except ValueError:
                raise PointError(f'"{text}" is no point: "{value}" is no value for {name}.', _EXAMPLES) from None
        return cls(**values)  # type: ignore[arg-type]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _write(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _layers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(-\d+)*", text):
        raise ValueError(text)
    return tuple(int(layer) for layer in text.split("-"))


_READ: dict[str, Callable[[str], int | float | tuple[int, ...]]] = {
    "exit": int,
    "width": float,
    "layers": _layers,
    "skip": float,
}

FULL = Point()


@dataclass(frozen=True)
class Group:
    """A named distribution over points, such as "any 6 of 12 layers": `sample` draws one."""

    name: str
    draw: Callable[[random.Random], Point]

    def sample(self, rng: random.Random) -> Point:
        return self.draw(rng)

    def __str__(self) -> str:
        return self.name
