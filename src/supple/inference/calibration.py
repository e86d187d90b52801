"""Calibration of a run: from its validation images to the policy kept in policy.json, and what it really costs."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supple.cost import count_macs, on_meta, profile
from supple.data.loaders import as_batches
from supple.data.splits import set_aside
from supple.device import placed
from supple.errors import DataError, PointError, RecipeError
from supple.inference.engines import State
from supple.inference.engines.torch import answering
from supple.inference.predictor import Predictor
from supple.inference.select import of_model
from supple.inference.timing import interleave
from supple.machine import machine
from supple.model import FlexibleModel, example
from supple.point import FULL, AnyPoint, Point
from supple.policy.fitting import MARGIN, Costs, Fitted, LogitSet, Outcome, Target, evaluate_policy, fit
from supple.policy.policy import Array, Policy, stop_above
from supple.scoring import to_device
from supple.text import macs

FEWEST, MOST = 10, 20_000  # samples: fewer say nothing, more fill the memory and change nothing
TIMED = 400  # samples; a policy is timed on those of them that do not decide
BATCH = 256


def calibrate(
    model: FlexibleModel,
    data: Any,
    target: Target,
    *,
    points: Iterable[AnyPoint] | None = None,
    measure: str = "max_probability",
    keep_dominated: bool = False,
    seed: int = 0,
    device: str = "cpu",
    on_progress: Callable[[int], None] | None = None,
) -> Policy:
    """The policy for a target; its `facts` say what is expected of it and what came of it: see `describe`.

    `data` are samples that were not trained on, as a data set or a loader. Half of each class decides, the other half
    only judges. points: those that the policy may have, see `candidates`. The model is moved to the device, and back.
    """
    asked = candidates(model, points)
    every = asked if asked[-1] == FULL else (*asked, FULL)  # the full model is what all are held against
    if profile(model, model.points[:1])[0].macs_worst is not None:
        raise PointError(
            "every sample of this model decides for itself what it costs: there are no fixed points to choose from.",
            "Choose a threshold from the ladder: supple evaluate RUN.",
        )
    timed = target.unit == "ms"
    with placed(model, device):
        batches = as_batches(data).drawn(MOST, BATCH, seed)
        seen, inputs = observe(model, every, batches, TIMED if timed else 0, on_progress)
    if len(seen.labels) < FEWEST:
        cause = f"{len(seen.labels)} validation samples are too few to fit on one half and evaluate on the other."
        raise DataError(cause, f"Train with a larger data.holdout: at least {FEWEST}, better some hundreds.")
    ours, theirs = (part.numpy() for part in set_aside(torch.from_numpy(seen.labels), len(seen.labels) // 2, seed))
    costs: Costs = counted_costs(model)
    predictor = None
    if timed:
        predictor = of_model(model, torch.get_num_threads(), device=device, points=every)
        costs = timed_costs(predictor, inputs[0])
    full = costs((FULL,))[0]
    budget = None if target.kind == "max_drop" else _budget(asked, target, costs, full)
    drop = target.value if target.kind == "max_drop" else None
    first, second = seen.pick(ours), seen.pick(theirs)
    how: dict[str, Any] = {"among": asked, "measure": measure, "keep_dominated": keep_dominated}
    fitted = fit(first, costs, budget=budget, drop=drop, **how)
    expected, achieved = evaluate_policy(fitted, first), evaluate_policy(fitted, second)
    about: dict[str, Any] = {"target": vars(target), "budget": budget, "unit": target.unit}
    if predictor is not None:
        samples = (inputs[row] for row in theirs if row < len(inputs))
        achieved = replace(achieved, cost=_achieved_ms(predictor, fitted, achieved, samples))
        about |= {"machine": machine(device), "threads": torch.get_num_threads()}
    about |= {"full_cost": full, "remark": _remark(fitted, budget, drop, achieved)}
    return replace(fitted.policy, facts={**about, **describe(model, fitted, first, expected, achieved, second.labels)})


def candidates(model: FlexibleModel, named: Iterable[AnyPoint] | None = None) -> tuple[Point, ...]:
    """The points that a policy may have, in the order that it meets them: exits of one chain as they lie there, others
    by their cost. They are those named, at least two of all that the model can run; where none are named, those of its
    chain if that answers several, else all that are published.
    """
    chain = [point for point in answering(model) if point is not None]
    if named is None:
        found = model.order(chain if len(chain) > 1 else model.points)
        found = found[: found.index(FULL) + 1]  # what costs more than the full model saves nothing
    else:
        found = model.order(named)
    if len(found) < 2 and (named is None or not model.axes):
        raise PointError("this model has a single point, so it cannot stop early.", "Train one with exits.")
    if len(found) < 2:
        given = f"{found[0]} alone is" if found else "no point is"
        cure = f"Name two or more, such as {model.points[0]};{FULL}."
        raise PointError(f"{given} named, which leaves nothing to choose from.", cure)
    last = model.order((*found, FULL))[-1]
    if last != FULL:
        raise PointError(f"{last} costs no less than the full model, so that nothing is saved there.", "Leave it out.")
    return tuple(sorted(found, key=chain.index) if {*chain}.issuperset(found) else found)


def _budget(points: Iterable[Point], target: Target, costs: Costs, full: float) -> float:
    """The mean cost that is allowed; refused if not even the cheapest point keeps it."""
    spent = {point: costs((point,))[0] for point in points}
    first = min(spent, key=lambda point: spent[point])
    budget = target.value * full if target.relative else target.value
    if budget < spent[first]:
        least, given = (f"{value:.4g} ms" if target.unit == "ms" else macs(value) for value in (spent[first], budget))
        cause = f"a budget of {given} is below the cheapest possible: {least}, for every image at {first}."
        raise RecipeError(cause, f"Give at least that, which is {math.ceil(100 * spent[first] / full) / 100:g}x.")
    return budget


def _arrays(x: Any) -> State:
    return tuple(part.cpu().numpy() for part in (x if isinstance(x, (tuple, list)) else (x,)))


@torch.inference_mode()
def observe(
    model: FlexibleModel,
    points: tuple[Point, ...],
    batches: Iterable[tuple[Any, Any]],
    kept: int,
    on_progress: Callable[[int], None] | None,
) -> tuple[LogitSet, list[State]]:
    """What points say of these samples, in one pass; and the first `kept` of them, one by one."""
    device = next(model.parameters()).device
    outputs: dict[Point, list[Array]] = {point: [] for point in points}
    labels: list[Array] = []
    inputs: list[State] = []
    for x, y in batches:
        if not isinstance(y, Tensor) or y.dim() != 1 or y.is_floating_point():
            raise DataError("the targets are not numbers of classes.", "Calibrate on data with one class a sample.")
        labels.append(y.cpu().numpy())
        inputs += [tuple(part[row : row + 1] for part in _arrays(x)) for row in range(min(len(y), kept - len(inputs)))]
        for output in model.run(to_device(x, device), points):
            outputs[output.point].append(output.logits.float().cpu().numpy())
        if on_progress is not None:
            on_progress(len(y))
    none = np.zeros(0, np.int64)
    logits = [np.concatenate(parts) if parts else none for parts in outputs.values()]
    return LogitSet(points, logits, np.concatenate(labels) if labels else none), inputs


# --- costs ------------------------------------------------------------------------------------------------------------


def counted_costs(model: FlexibleModel) -> Costs:
    """MACs through the points that are looked at: along the chain, where it answers them all; else those of each point
    from the start, added up."""
    skeleton, chain = on_meta(model), set(answering(model))
    x = example(model.input_shape or (), make=torch.empty, device="meta")

    @cache
    def through(points: tuple[Point, ...]) -> float:
        return float(count_macs(lambda: skeleton(x, points)))

    def costs(points: tuple[Point, ...]) -> list[float]:
        if chain.issuperset(points):
            return [through(points[: place + 1]) for place in range(len(points))]
        return list(accumulate(through((point,)) for point in points))

    return costs


def timed_costs(predictor: Predictor, x: State) -> Costs:
    """Milliseconds of stopping at each of the points that are looked at, with batch 1; measured once per choice.

    The full model is timed in turn with them: if it takes another time than at first, so does everything.
    """
    (full_ms,) = time_walks(predictor, [stop_above((FULL,), math.inf)], x)

    @cache
    def timed(points: tuple[Point, ...]) -> tuple[float, ...]:
        if points == (FULL,):
            return (full_ms,)
        ways = [stopping_at(stop_above(points, math.inf), place) for place in range(len(points))]
        *times, full_now = time_walks(predictor, [*ways, stop_above((FULL,), math.inf)], x)
        # What comes later cannot be quicker.
        return tuple(max(times[: place + 1]) * full_ms / full_now for place in range(len(times)))

    return lambda points: list(timed(points))


def stopping_at(policy: Policy, place: int) -> Policy:
    """The same policy with thresholds that stop every sample at one place: the same code, a known way through it."""
    thresholds = (math.inf,) * len(policy.thresholds)
    forced = (*thresholds[:place], 0.0, *thresholds[place + 1 :])[: len(thresholds)]
    return replace(policy, thresholds=forced, shares=())


def time_walks(predictor: Predictor, policies: Sequence[Policy], x: State) -> list[float]:
    """Median ms of walking with each policy, heads and confidences included, measured in turn."""
    calls = {str(number): lambda p=policy: predictor.walk(x, p) for number, policy in enumerate(policies)}
    return [found.p50_ms for found in interleave(calls, rounds=40, seconds=10).values()]


def time_policy(
    predictor: Predictor, policy: Policy, samples: Iterable[State], seconds: float = 20.0
) -> tuple[list[float | None], list[float]]:
    """Median ms of the samples that really stop at each point (None where none does), run one by one; and of stopping
    all of them there, measured in turn with these, so that a machine that has become slower shows in both.
    """
    names = [str(point) for point in policy.points]
    ways = [replace(policy, shares=()), *(stopping_at(policy, place) for place in range(len(names)))]
    real: list[list[float]] = [[] for _ in names]
    forced: list[list[float]] = [[] for _ in names]
    began = time.perf_counter()
    for number, x in enumerate(samples):
        if number >= 20 and time.perf_counter() - began > seconds:
            break
        for turn in range(len(ways)):
            way = (number + turn) % len(ways)  # each is the first to meet a new sample as often as the others
            start = time.perf_counter()
            (reached,) = predictor.walk(x, ways[way])
            spent = 1000 * (time.perf_counter() - start)
            (forced[way - 1] if way else real[names.index(reached.point)]).append(spent)
    return [statistics.median(times) if times else None for times in real], [statistics.median(t) for t in forced]


def _achieved_ms(predictor: Predictor, fitted: Fitted, outcome: Outcome, samples: Iterable[State]) -> float:
    """The mean ms of really running a policy, on the footing of the times that it was found with.

    The machine may have become slower or faster since: known ways through the same code, timed in turn with the
    policy, say by how much.
    """
    real, forced = time_policy(predictor, fitted.policy, samples)
    counts: list[int] = np.bincount(outcome.exits, minlength=len(forced)).tolist()
    now = sum(count * ms for count, ms in zip(counts, forced))
    policy = sum(count * (known if ms is None else ms) for count, ms, known in zip(counts, real, forced))
    return policy / now * outcome.cost


# --- what is kept -----------------------------------------------------------------------------------------------------


def describe(
    model: FlexibleModel, fitted: Fitted, first: LogitSet, expected: Outcome, achieved: Outcome, labels: Array
) -> dict[str, Any]:
    """The policy, what was expected of it (first half) and achieved (second half), by point and by class."""
    policy = fitted.policy
    accuracies = first.right().mean(0).tolist()
    rows = []
    for place, point in enumerate(first.points):
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
                "expected": float((expected.exits == at).mean()) if looked_at else 0.0,
                "achieved": float((achieved.exits == at).mean()) if looked_at else 0.0,
                "dominated_by": None if better is None else str(better),
            }
        )
    places = len(policy.points)
    counts = np.bincount(labels * places + achieved.exits, minlength=places * len(model.classes))
    return {
        "expected": _facts(expected),
        "achieved": _facts(achieved),
        "exits": rows,
        "classes": {"names": list(model.classes), "stopped": counts.reshape(-1, places).tolist()},
    }


def _remark(fitted: Fitted, budget: float | None, drop: float | None, achieved: Outcome) -> str:
    """What a policy that never chooses means, and whether the other half of the images clearly misses the target."""
    remarks = []
    only = fitted.policy.points[-1]
    if len(fitted.policy.points) == 1 and drop is None:
        remarks.append(f"One point answers everything, {only}: nothing within this budget is more accurate.")
    elif len(fitted.policy.points) == 1 and only != FULL:
        remarks.append(f"One point answers everything: {only} alone is near enough to the full model.")
    elif len(fitted.policy.points) == 1:
        within = f"within {100 * (drop or 0):g} percentage points of its own, with {MARGIN:g} standard errors to spare"
        remarks.append(f"Nothing cheaper than the full model keeps an accuracy {within}: it answers everything.")
    if budget is not None and achieved.cost - MARGIN * achieved.cost_error > budget:
        over = 100 * (achieved.cost / budget - 1)
        remarks.append(f"Target missed on the other half: {over:.1f} % over the budget.")
    if drop is not None and achieved.full_accuracy - achieved.accuracy - MARGIN * achieved.drop_error > drop:
        lost = 100 * (achieved.full_accuracy - achieved.accuracy)
        remarks.append(f"Target missed on the other half: {lost:.1f} points below the full model.")
    return " ".join(remarks)


def _facts(outcome: Outcome) -> dict[str, Any]:
    names = ("n", "cost", "cost_error", "accuracy", "full_accuracy", "drop_error")
    return {name: getattr(outcome, name) for name in names}
