"""Every point of a flexible model at several widths: for each width there is a view of it, which shares its weights.

What a width means is a `Narrowing`'s to say: the first channels of every layer (`slim.py`), or the first dimensions of
every block of a transformer (`nested.py`). The other axes are those of the model that is narrowed, whatever it is.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from supple.cost import PointCosts
from supple.errors import PointError
from supple.model import Batches, FlexibleModel, Output, Outputs, Stage, is_empty, select
from supple.point import FIELDS, FULL, AnyPoint, Point


class Narrowing(Protocol):
    """How a model becomes narrower."""

    def view(self, model: FlexibleModel, width: float) -> FlexibleModel:
        """A model of this width that shares every weight of the given one."""
        ...

    def cut(self, model: FlexibleModel, width: float) -> FlexibleModel:
        """A copy with only the weights that this width uses."""
        ...

    def start(self, model: FlexibleModel, fresh: Sequence[str]) -> None:
        """Once before a training: the model has the weights that it starts from, save the fresh ones."""
        ...


class Widths(FlexibleModel):
    """The points of `inner` and, for each width, the same with `width=` before them.

    The parts of `inner` are this model's own, by the same names, so that either can start from the other's weights.
    """

    def __init__(self, inner: FlexibleModel, widths: Sequence[float], narrowing: Narrowing) -> None:
        super().__init__()
        object.__setattr__(self, "_inner", inner)  # not a part of its own: its parts are
        assert not list(inner.parameters(recurse=False)), "only parts of it can be shared"
        for name, part in inner.named_children():
            setattr(self, name, part)
        self._narrowing = narrowing
        self.widths = tuple(map(float, widths))  # those below 1, rising; 1 and 1.0 are one width
        self._views: dict[float, FlexibleModel] = {}  # made when first asked for
        self.costs = PointCosts()
        self.points = (*(Point(width=width) for width in self.widths), FULL)

    @property
    def inner(self) -> FlexibleModel:
        inner: FlexibleModel = self.__dict__["_inner"]
        return inner

    # --- points ---------------------------------------------------------------------------------------------------

    @property
    def axes(self) -> tuple[str, ...]:
        own = {*self.inner.axes, *(["width"] if self.widths else [])}
        return tuple(name for name in FIELDS if name in own)

    def canonical(self, point: Point) -> Point:
        return self.inner.canonical(_rest(point))._replace(width=point.width)

    def validate(self, point: Point) -> None:
        if point.width not in (*self.widths, 1.0, *(settled.width for settled in self.settled)):
            possible = ", ".join(f"{width:g}" for width in (*self.widths, 1.0))
            cause = f"this model cannot run {point!r}: it has the widths {possible}."
            raise PointError(cause, "Use one of these.")
        if _rest(point) != FULL:
            self.inner.validate(_rest(point))

    def rank(self, point: Point) -> float:
        """The cheaper ones first: the larger of two points teaches the smaller one, whatever axes they differ in."""
        if len(self.inner.points) == 1:
            return point.width
        return self.costs.macs(self, point)

    def mixtures(self) -> Iterator[Point]:
        for width in (*self.widths, 1.0):
            yield from (point._replace(width=width) for point in self.inner.mixtures())

    def layers_run(self, point: Point) -> tuple[int, ...]:
        return self.inner.layers_run(_rest(point))

    # --- running --------------------------------------------------------------------------------------------------

    def view(self, width: float) -> FlexibleModel:
        """The model of a width; it shares its weights with all others."""
        if width == 1:
            return self.inner
        if width not in self._views:
            with torch.inference_mode(False):  # it may be trained later
                self._views[width] = self._narrowing.view(self.inner, width).train(self.training)
        return self._views[width]

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        """Points of one width share what they can; each width is a run of its own, and they take turns."""
        asked = self.order(points)
        runs: dict[float, Outputs] = {}
        left: dict[float, Tensor | None] = {}  # of what a run gave last, the samples that are still on the way
        rows: Tensor | None = None  # the same, of x
        for point in asked:
            width = point.width
            if width not in runs:
                given = x if rows is None else select(x, rows)
                runs[width] = self.view(width).run(given, [_rest(p) for p in asked if p.width == width])
                output = next(runs[width])
            else:
                output = runs[width].send(left[width])
            left[width] = None
            keep = yield replace(output, point=output.point._replace(width=width))
            if keep is None:
                continue
            if is_empty(keep):
                return
            keep = keep.nonzero().squeeze(1) if keep.dtype == torch.bool else keep
            rows = keep if rows is None else rows[keep]
            left = {width: keep if rest is None else rest[keep] for width, rest in left.items()}

    def penalty(self, outputs: Sequence[Output]) -> Tensor:
        return self.inner.penalty([replace(output, point=_rest(output.point)) for output in outputs])

    def plain(self, point: Point) -> nn.Module:
        cut = self.inner if point.width == 1 else self._narrowing.cut(self.inner, point.width)
        return cut.plain(_rest(point))

    def stages(self) -> list[Stage]:
        """Those of the full width."""
        return self.inner.stages()

    def compilable_modules(self) -> list[nn.Module]:
        return []  # views call the same modules with other weights

    def branch(self, point: Point) -> nn.Module | None:
        return self.view(point.width).branch(_rest(point))

    @property
    def taps(self) -> Any:
        return self.inner.taps

    def start(self, fresh: Sequence[str]) -> None:
        self._narrowing.start(self.inner, fresh)
        self.refresh()

    def settle(self, loader: Batches, points: Iterable[AnyPoint] = ()) -> None:
        self.add_points(points)

    # --- what the views hold --------------------------------------------------------------------------------------

    def refresh(self) -> None:
        self._views.clear()
        self.costs = PointCosts()
        self.inner.refresh()

    def train(self, mode: bool = True) -> "Widths":
        super().train(mode)
        for model in (self.inner, *self._views.values()):
            model.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> "Widths":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.refresh()  # views may hold tensors that were replaced
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Widths":
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        for name, value in self.__dict__.items():
            new.__dict__[name] = {} if name == "_views" else copy.deepcopy(value, memo)
        return new


def _rest(point: Point) -> Point:
    """The point in all other axes."""
    return point._replace(width=1.0)
