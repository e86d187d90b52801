"""Calibration of a run: from its validation images to the policy kept in policy.json, and what it really costs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from supple.cost import count_macs, on_meta, profile
from supple.data.images import ImageSet
from supple.data.split import same_number_each, set_aside
from supple.early import stopping_at, time_exits, time_policy
from supple.errors import DataError, PointError, RecipeError
from supple.goal import Goal
from supple.judge import Fitted, Half, Outcome, judge
from supple.machine import machine
from supple.model import FlexibleModel, example
from supple.point import FULL, Point
from supple.policies import Confident
from supple.stopping import MARGIN, Aim, Costs, fit
from supple.text import macs

FEWEST, MOST = 10, 20_000  # images: fewer say nothing, more fill the memory and change nothing
TIMED = 400  # images of the second half that a policy is timed on


def calibrate(
    model: FlexibleModel,
    data: ImageSet,
    goal: Goal,
    *,
    measure: str = "max_probability",
    keep_dominated: bool = False,
    seed: int = 0,
    watch: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """The policy for a goal as the document that policy.json holds: see `describe`.

    `data` are images that were not trained on. Half of each class decides, the other half only judges.
    """
    if len(model.points) < 2:
        raise PointError("this model has one point only: there is nothing to stop before.", "Train one with exits.")
    if profile(model, model.points[:1])[0].macs_worst is not None:
        raise PointError(
            "every sample of this model decides for itself what it costs: there are no fixed points to choose from.",
            "Choose a threshold from the ladder: supple evaluate RUN.",
        )
    chosen = torch.arange(len(data)) if len(data) <= MOST else same_number_each(data.split_by, MOST, seed)
    ours, theirs = set_aside(data.split_by[chosen], len(chosen) // 2, seed)
    if min(len(ours), len(theirs)) < FEWEST // 2:
        few = f"{len(data)} validation {data.preprocess.kind}s"
        cause = f"{few} are too few to calibrate on: half of them decide, half of them judge."
        raise DataError(cause, f"Train with a larger data.holdout: at least {FEWEST}, better some hundreds.")
    counted, estimated = counted_costs(model)
    footing = _footing(model, goal, counted, data.batch(chosen[ours[:1]])[0])
    first, second = (observe(model, data, chosen[part], watch) for part in (ours, theirs))
    fitted = fit(
        first,
        footing.aim,
        footing.costs,
        measure=measure,
        keep_dominated=keep_dominated,
        choosing=(footing.in_macs, estimated),
    )
    expected, achieved = judge(fitted, first), judge(fitted, second)
    about: dict[str, Any] = {"goal": vars(goal), "budget": footing.aim.budget, "unit": goal.unit}
    if goal.unit == "ms":
        rng = torch.Generator().manual_seed(seed)
        some = chosen[theirs][torch.randperm(len(theirs), generator=rng)[:TIMED]]
        achieved = replace(achieved, cost=_achieved_ms(model, fitted, achieved, data, some))
        about |= {"machine": machine(), "threads": torch.get_num_threads()}
    about |= {"full_cost": footing.full, "remark": _remark(fitted, footing.aim, achieved)}
    return {**about, **describe(model, fitted, first, expected, achieved, second.labels)}


@dataclass(frozen=True)
class _Footing:
    """A goal in absolute numbers, what they are numbers of, and the same goal in MACs."""

    aim: Aim
    costs: Costs
    full: float  # the full model's cost
    in_macs: Aim  # decides which exits are looked at: counting does not tremble


def _footing(model: FlexibleModel, goal: Goal, counted: Costs, x: Tensor) -> _Footing:
    """Refuses a budget that not even the cheapest point keeps."""
    spent = {point: counted((point,))[0] for point in model.points}
    macs_full, macs_least = spent[FULL], min(spent.values())
    if goal.kind == "accuracy_drop":
        return _Footing(Aim(drop=goal.value), counted, macs_full, Aim(drop=goal.value))
    timed = goal.unit == "ms"
    if timed:
        spent = dict(zip(spent, time_exits(model, [_looking_at((point,)) for point in spent], x)))
    first = min(spent, key=lambda point: spent[point])
    cheapest, full = spent[first], spent[FULL]
    budget = goal.value * full if goal.relative else goal.value
    if budget < cheapest:
        least, given = (f"{value:.4g} ms" if timed else macs(value) for value in (cheapest, budget))
        cause = f"a budget of {given} is below the cheapest possible: {least}, for every image at {first}."
        raise RecipeError(cause, f"Give at least that, which is {math.ceil(100 * cheapest / full) / 100:g}x.")
    in_macs = Aim(budget=max(macs_least, budget / full * macs_full))
    return _Footing(Aim(budget=budget), timed_costs(model, x, full) if timed else counted, full, in_macs)


@torch.inference_mode()
def observe(model: FlexibleModel, data: ImageSet, indices: Tensor, watch: Callable[[int], None] | None = None) -> Half:
    """What every point says of these images, in one pass."""
    device = next(model.parameters()).device
    said: list[list[Tensor]] = [[] for _ in model.points]
    for part in torch.split(indices, 256):
        x, _ = data.batch(part)
        for place, output in enumerate(model.run(x.to(device), model.points)):
            said[place].append(output.logits.float().cpu())
        if watch is not None:
            watch(len(part))
    return Half(model.points, [torch.cat(parts) for parts in said], data.targets[indices])


# --- costs ------------------------------------------------------------------------------------------------------------


def counted_costs(model: FlexibleModel) -> tuple[Costs, Costs]:
    """MACs through the points that are looked at: counted, and estimated from few counts for trying many choices.

    The estimate is exact where each point adds the same to the cost of all later ones (an exit its head).
    """
    skeleton = on_meta(model)
    x = example(model.input_shape or (), make=torch.empty, device="meta")

    @cache
    def through(points: tuple[Point, ...]) -> float:
        return float(count_macs(lambda: skeleton(x, points)))

    def counted(points: tuple[Point, ...]) -> list[float]:
        return [through(points[: place + 1]) for place in range(len(points))]

    def estimated(points: tuple[Point, ...]) -> list[float]:
        extra = [through((point, FULL)) - through((FULL,)) for point in points[:-1]]
        return [through((point,)) + sum(extra[:place]) for place, point in enumerate(points)]

    return counted, estimated


def timed_costs(model: FlexibleModel, x: Tensor, full_ms: float) -> Costs:
    """Milliseconds of stopping at each of the points that are looked at, with batch 1; measured once per choice.

    The full model is timed in turn with them: if it now takes another time than `full_ms`, so does everything.
    """

    @cache
    def timed(points: tuple[Point, ...]) -> list[float]:
        ways = [stopping_at(_looking_at(points), place) for place in range(len(points))]
        *times, full_now = time_exits(model, [*ways, _looking_at((FULL,))], x)
        # What comes later cannot be quicker.
        return [max(times[: place + 1]) * full_ms / full_now for place in range(len(times))]

    return timed


def _looking_at(points: tuple[Point, ...]) -> Confident:
    return Confident(points, (math.inf,) * (len(points) - 1), (1.0,) * len(points))


def _achieved_ms(model: FlexibleModel, fitted: Fitted, outcome: Outcome, data: ImageSet, indices: Tensor) -> float:
    """The mean ms of really running a policy, on the footing of the times that it was found with.

    The machine may have become slower or faster since: known ways through the same code, timed in turn with the
    policy, say by how much.
    """
    real, forced = time_policy(model, fitted.policy, (data.batch(indices[i : i + 1])[0] for i in range(len(indices))))
    counts: list[int] = torch.bincount(outcome.exits, minlength=len(forced)).tolist()
    now = sum(count * ms for count, ms in zip(counts, forced))
    policy = sum(count * (known if ms is None else ms) for count, ms, known in zip(counts, real, forced))
    return policy / now * outcome.cost


# --- what is kept -----------------------------------------------------------------------------------------------------


def describe(
    model: FlexibleModel, fitted: Fitted, first: Half, expected: Outcome, achieved: Outcome, labels: Tensor
) -> dict[str, Any]:
    """The policy, what was expected of it (first half) and achieved (second half), by point and by class."""
    policy = fitted.policy
    accuracies = first.right().mean(0).tolist()
    rows = []
    for place, point in enumerate(model.points):
        looked_at = point in policy.points
        at = policy.points.index(point) if looked_at else -1
        better = fitted.dominated.get(point)
        rows.append(
            {
                "point": str(point),
                "looked_at": looked_at,
                "threshold": policy.thresholds[at] if looked_at and at < len(policy.thresholds) else None,
                "temperature": fitted.temperatures[place],
                "accuracy": accuracies[place],
                "cost": fitted.costs[at] if looked_at else None,
                "expected": float((expected.exits == at).double().mean()) if looked_at else 0.0,
                "achieved": float((achieved.exits == at).double().mean()) if looked_at else 0.0,
                "dominated_by": None if better is None else str(better),
            }
        )
    places = len(policy.points)
    counts = torch.bincount(labels * places + achieved.exits, minlength=places * len(model.classes))
    return {
        **policy.to_json(),
        "expected": _facts(expected),
        "achieved": _facts(achieved),
        "exits": rows,
        "classes": {"names": list(model.classes), "stopped": counts.view(-1, places).tolist()},
    }


def _remark(fitted: Fitted, aim: Aim, achieved: Outcome) -> str:
    """What a policy that never chooses means, and whether the other half of the images keeps the goal."""
    said = []
    only = fitted.policy.points[-1]
    if len(fitted.policy.points) == 1 and aim.drop is None:
        said.append(f"One point answers everything, {only}: nothing else within this budget is foretold to be better.")
    elif len(fitted.policy.points) == 1 and only != FULL:
        said.append(f"One point answers everything: {only} alone is near enough to the full model.")
    elif len(fitted.policy.points) == 1:
        within = (
            f"within {100 * (aim.drop or 0):g} percentage points of its own, with {MARGIN:g} standard errors to spare"
        )
        said.append(f"Only the full model keeps an accuracy {within}: it answers everything.")
    if aim.budget is not None and achieved.cost > aim.budget:
        over = 100 * (achieved.cost / aim.budget - 1)
        said.append(f"Goal missed on the other half: {over:.1f} % over the budget.")
    if aim.drop is not None and achieved.full_accuracy - achieved.accuracy > aim.drop:
        lost = 100 * (achieved.full_accuracy - achieved.accuracy)
        said.append(f"Goal missed on the other half: {lost:.1f} points below the full model.")
    return " ".join(said)


def _facts(outcome: Outcome) -> dict[str, Any]:
    names = ("n", "cost", "cost_error", "accuracy", "full_accuracy", "drop_error")
    return {name: getattr(outcome, name) for name in names}
