"""What a point costs, counted from what a call executes: no method keeps a formula of its own.

Counting runs on the meta device, without weights or arithmetic, so any network is profiled in seconds.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from supple.ladder import Row
from supple.model import FlexibleModel, example
from supple.point import FULL, AnyPoint, Point
from supple.text import macs as written

M = TypeVar("M", bound=nn.Module)


def count_macs(call: Callable[[], object]) -> int:
    """Multiply-adds executed by a call: convolutions and matrix products, attention included."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops()) // 2


def count_params(parts: Iterable[nn.Parameter]) -> int:
    return sum({id(part): part.numel() for part in parts}.values())


def on_meta(model: M) -> M:
    """A copy without weights, made without copying them, in eval mode."""
    tensors = (*model.parameters(), *model.buffers())
    empty = {id(tensor): copy.deepcopy(tensor.detach().to("meta")) for tensor in tensors}
    parameters = {id(p): nn.Parameter(empty[id(p)], False) for p in model.parameters()}
    return copy.deepcopy(model, {**empty, **parameters}).to("meta").eval()


def meta_input(model: FlexibleModel) -> Any:
    """One sample without values, for a copy of the model that is on the meta device."""
    assert model.input_shape is not None, "a model to profile knows the shape of its input"
    return example(model.input_shape, make=torch.empty, device="meta")


def mean_macs(model: FlexibleModel, points: Sequence[Point]) -> int:
    """Of one sample, each point run alone."""
    bare, x = on_meta(model), meta_input(model)
    each = {point: count_macs(lambda point=point: bare(x, point)) for point in set(points)}  # type: ignore[misc]
    return round(sum(each[point] for point in points) / len(points))


class PointCosts:
    """The MACs of points, counted when first asked for: what puts mixed points into the order of their costs."""

    def __init__(self) -> None:
        self._known: dict[Point, int] = {}
        self._bare: FlexibleModel | None = None  # the model without weights

    def macs(self, model: FlexibleModel, point: Point) -> int:
        if point not in self._known:
            if self._bare is None:
                self._bare = on_meta(model)
            bare, x = self._bare, meta_input(model)
            with _disable_current_modes():  # a run that is being counted may ask for this: it is no part of that count
                self._known[point] = count_macs(lambda: next(bare.run(x, (point,))))
        return self._known[point]

    def __deepcopy__(self, memo: object) -> "PointCosts":
        return PointCosts()  # the copy may become another network


def profile_others(model: FlexibleModel, known: Iterable[Row], points: Iterable[AnyPoint] | None = None) -> list[Row]:
    """Only those points that no known row is of: counting all of a large network takes seconds."""
    names = {row.point for row in known}
    asked = (*model.points, *model.settled) if points is None else points
    missing = [point for point in asked if str(point) not in names]
    return profile(model, missing) if missing else []


def costly_points(rows: Sequence[Row]) -> list[str]:
    """A warning for each point that costs more than the full model, unless its samples decide what they cost."""
    full = next((row.macs for row in rows if row.point == str(FULL)), None)
    return [
        f"warning: {row.point} costs {written(row.macs)}, the full model {written(full)}: "
        f"{'its branch costs more than the rest of the network' if row.branch_params else 'nothing is saved there'}."
        for row in rows
        if full is not None and row.macs is not None and row.macs > full and row.macs_worst is None
    ]


def profile(model: FlexibleModel, points: Iterable[AnyPoint] | None = None) -> list[Row]:
    """One row per point, cheapest first, for one sample.

    `macs`: one run of that point alone. `macs_through`: what a policy pays that looked at every published point on the
    way. `params`: parameters that the run uses. `extra_params`: parts used in training only. Where the cost depends on
    the sample, `macs` is the ceiling too (`macs_worst`) until an evaluation puts the mean in its place.
    """
    model, x = on_meta(model), meta_input(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # nothing that is counted, but most of the time of a run on meta
            module.forward = lambda input: input  # type: ignore[method-assign]
    rows = []
    for point in model.offered if points is None else model.order(points):
        passed = [p for p in model.points if model.rank(p) <= model.rank(point)]
        branch = model.branch(point)
        macs = count_macs(lambda point=point: model(x, point))  # type: ignore[misc]
        (output,) = model(x, [point])
        rows.append(
            Row(
                str(point),
                macs=macs,
                macs_worst=None if output.cost is None else macs,
                macs_through=count_macs(lambda through=(*passed, point): model(x, through)),  # type: ignore[misc]
                params=count_params(model.extract(point).parameters()),
                branch_params=None if branch is None else count_params(branch.parameters()),
                extra_params=count_params(model.auxiliary_parameters()),
            )
        )
    return rows
