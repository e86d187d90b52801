"""A Point is one way to run a flexible model; a Group is a named distribution over points.

The axes that points can differ in are the fields of one table, `FIELDS`. A new axis is one `add_field` there, or in a
module of your own that is imported before points are made (`supple --import MODULE ...`).
"""

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supple.errors import PointError

# --- the table of fields ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """One axis of a point. `parse` and `check` raise ValueError for what is not valid."""

    name: str
    default: Any  # means "full": a point of the full model does not set it
    parse: Callable[[str], Any]  # text to value
    check: Callable[[Any], Any]  # any value to the one way to store it, hashable
    expected: str  # what values are valid: a sentence for error messages, without its full stop
    example: str  # a valid value as text
    write: Callable[[Any], str] = str  # value to the text that `parse` reads: no comma, no equals sign


FIELDS: dict[str, Field] = {}  # by name, in the order they are written in


def add_field(field: Field) -> None:
    """Gives every point one more axis. Points made before compare, hash and print as they did."""
    if field.name in FIELDS:
        raise PointError(f'points already have a field "{field.name}".', "Add it once, or choose another name.")
    if not field.name.isidentifier() or field.name in ("full", *dir(Point)):
        cure = f"Use a plain word, other than: {', '.join(('full', *FIELDS))}."
        raise PointError(f'a field of points cannot be called "{field.name}".', cure)
    if field.parse(field.example) == field.default or field.check(field.default) != field.default:
        cure = "The default must be valid; the example must be valid text for another value."
        raise PointError(f"the field {field.name} has default={field.default!r}, example={field.example!r}.", cure)
    FIELDS[field.name] = field


def _cure() -> str:
    return f"Write full, or fields joined by commas: {', '.join(f'{f.name}={f.example}' for f in FIELDS.values())}."


# --- points -----------------------------------------------------------------------------------------------------------


class _FieldNames:
    """The names in the table, asked of Point or of a point."""

    def __get__(self, point: object, owner: type | None = None) -> tuple[str, ...]:
        return tuple(FIELDS)


class Point(tuple[Any, ...]):
    """One way to run a model. Every default means "full"; exits and layers count from 1, as the papers do.

    `str(point)` gives the short form (`exit=2,width=0.5`, `layers=3-1-7`, `full`) and `Point.parse` reads it back.
    The model knows how many exits and layers it has: `model.check(point)` turns the last exit or the identity order
    into `full`.

    It is a tuple of the values in the order of `FIELDS`, up to the last one that is not the default, so that a field
    added later changes no point. It has the parts of a named tuple, since wrappers for devices and nodes rebuild these
    (but not frozen dataclasses) as `type(point)(*point)`.
    """

    __slots__ = ()
    _fields = _FieldNames()

    if TYPE_CHECKING:  # the fields that come with supple; at run time they are found by __getattr__

        @property
        def exit(self) -> int | None: ...
        @property
        def width(self) -> float: ...
        @property
        def layers(self) -> tuple[int, ...] | None: ...
        @property
        def skip(self) -> float | None: ...
        @property
        def tokens(self) -> int: ...

        def __new__(
            cls,
            exit: int | None = None,
            width: float = 1.0,
            layers: Iterable[int] | None = None,
            skip: float | None = None,
            tokens: int = 0,
            **added: Any,
        ) -> "Point": ...
    else:

        def __new__(cls, *values: Any, **named: Any) -> "Point":
            given = dict(zip(FIELDS, values)) | named
            if len(values) > len(FIELDS) or len(given) < len(values) + len(named):
                raise PointError(f"Point(*{values}, **{named}) gives too many values, or one of them twice.", _cure())
            unknown = [name for name in given if name not in FIELDS]
            if unknown:
                raise PointError(f'points have no field "{unknown[0]}": they have {", ".join(FIELDS)}.', _cure())
            checked = {name: _checked(field, given.get(name, field.default)) for name, field in FIELDS.items()}
            last = max((k for k, name in enumerate(FIELDS) if checked[name] != FIELDS[name].default), default=0)
            return tuple.__new__(cls, list(checked.values())[: last + 1])

    def __getattr__(self, name: str) -> Any:
        if name not in FIELDS:
            raise AttributeError(f"a Point has no field {name!r}: it has {', '.join(FIELDS)}")
        place = list(FIELDS).index(name)
        return self[place] if place < len(self) else FIELDS[name].default

    def __str__(self) -> str:
        return ",".join(f"{name}={FIELDS[name].write(value)}" for name, value in self.chosen().items()) or "full"

    def __repr__(self) -> str:
        return f"Point({', '.join(f'{name}={value!r}' for name, value in self.chosen().items())})"

    def chosen(self) -> dict[str, Any]:
        """The fields in which this point differs from the full model."""
        return {name: value for (name, field), value in zip(FIELDS.items(), self) if value != field.default}

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), self.chosen()  # by name: another process may have added its fields in another order

    @classmethod
    def _make(cls, values: Iterable[Any]) -> "Point":
        return cls(*values)

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}

    def _replace(self, **changes: Any) -> "Point":
        return Point(**{**self.chosen(), **changes})

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Reads what `str` writes. `full`, `width=1` and `width=1.0` are the same point."""
        if text.strip() == "full":
            return cls()
        values: dict[str, Any] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if name not in FIELDS or not equals:
                raise PointError(f'"{text}" is not a valid point: "{part.strip()}" is not understood.', _cure())
            if name in values:
                raise PointError(f'"{text}" is not a valid point: {name} is given twice.', _cure())
            try:
                values[name] = FIELDS[name].parse(value)
            except ValueError:
                cause = f'"{text}" is not a valid point, "{value}" will not do: {FIELDS[name].expected}.'
                raise PointError(cause, _cure()) from None
        return cls(**values)


AnyPoint = Point | str  # what functions take where a point is meant: a Point, or its short form


def as_point(given: AnyPoint) -> Point:
    """A Point, or the short form of one."""
    if isinstance(given, str):
        return Point.parse(given)
    if not isinstance(given, Point):
        raise PointError(f"{given!r} is not a point.", 'Write Point(exit=2), or "exit=2".')
    return given


# --- the fields that come with supple ---------------------------------------------------------------------------------


def _checked(field: Field, value: Any) -> Any:
    try:
        return field.check(value)
    except (ValueError, TypeError):
        raise PointError(f"{field.name}={value!r} is not valid: {field.expected}.", _cure()) from None


def _valid(condition: bool) -> None:
    if not condition:
        raise ValueError


def _whole_number(value: Any) -> int:
    _valid(isinstance(value, int) and not isinstance(value, bool) and value >= 1)
    return int(value)


def _exit(value: Any) -> int | None:
    return None if value is None else _whole_number(value)


def _width(value: Any) -> float:
    _valid(isinstance(value, (int, float)) and 0 < value <= 1)
    return float(value)


def _layers(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    layers = tuple(map(_whole_number, value))
    _valid(len(layers) > 0)
    return layers


def _skip(value: Any) -> float | None:
    _valid(value is None or (isinstance(value, (int, float)) and 0 <= value <= 1))
    return None if value is None else float(value)


def _tokens(value: Any) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else _whole_number(value)


def _parse_layers(text: str) -> tuple[int, ...]:
    _valid(re.fullmatch(r"\d+(-\d+)*", text) is not None)
    return tuple(int(layer) for layer in text.split("-"))


def _write_layers(layers: tuple[int, ...]) -> str:
    return "-".join(map(str, layers))


# exit: stop at this exit; None: the last. width: share of channels or dimensions kept.
# layers: these layers in this order; None: all, in order. skip: a sample skips a layer whose gate is below this.
# tokens: so many are merged in every layer.
add_field(Field("exit", None, int, _exit, "exits are whole numbers from 1", "2"))
add_field(Field("width", 1.0, float, _width, "widths lie above 0 and up to 1", "0.5"))
add_field(Field("layers", None, _parse_layers, _layers, "layers are whole numbers from 1", "3-1-7", _write_layers))
add_field(Field("skip", None, float, _skip, "thresholds lie between 0 and 1", "0.5"))
add_field(Field("tokens", 0, int, _tokens, "tokens merged in a layer are whole numbers from 0", "8"))

FULL = Point()


# --- groups of points -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """A named distribution over points, such as "any 6 of 12 layers": `sample` draws one."""

    name: str
    draw: Callable[[random.Random], Point]

    def sample(self, rng: random.Random) -> Point:
        return self.draw(rng)

    def __str__(self) -> str:
        return self.name
