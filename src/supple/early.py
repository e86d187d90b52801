"""Running a policy: samples that are sure leave the batch, so that later stages run on fewer of them."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from supple.model import FlexibleModel, Output
from supple.point import Point
from supple.policies import Confident, worth_going_on
from supple.runtime.clock import interleave


@dataclass(frozen=True)
class Stopped:
    """The answers of a batch, in its order, and where each was given."""

    logits: Tensor  # (samples, classes), of the point that answered
    exits: Tensor  # (samples,), the place in `points` that answered
    points: tuple[Point, ...]  # those the policy looks at

    def shares(self) -> list[float]:
        """Which part of the batch each point answered."""
        counts = torch.bincount(self.exits, minlength=len(self.points))
        return (counts / max(1, len(self.exits))).tolist()


@torch.inference_mode()
def run_policy(model: FlexibleModel, x: Any, policy: Confident) -> Stopped:
    """Every sample's answer from the first point that is sure of it. A sample's answer does not depend on its batch."""
    count = _count(x)
    exits = torch.zeros(count, dtype=torch.long)
    if count == 0:
        return Stopped(torch.zeros(0, len(model.classes)), exits, policy.points)
    run = model.run(x, policy.points)
    output = next(run)
    logits, left, place = output.logits, torch.arange(count), 0  # left: who is still in the batch
    while True:
        sure = policy.sure(place, output.logits)
        stopping = int(sure.sum())
        if stopping == count:  # one answer for all, as for a batch of one: nothing to put together
            run.close()
            return Stopped(output.logits, exits.fill_(place), policy.points)
        keep = None
        if stopping:
            stop, keep = sure.nonzero().squeeze(1), (~sure).nonzero().squeeze(1)
            who = left[stop.cpu()]
            logits = logits.clone() if len(left) == count else logits
            logits[who], exits[who] = output.logits[stop], place
            left = left[keep.cpu()]
        if len(left) == 0:
            run.close()
            return Stopped(logits, exits, policy.points)
        output = run.send(keep)
        place += 1


@torch.inference_mode()
def run_anytime(
    model: FlexibleModel,
    x: Any,
    budget_ms: float,
    costs_ms: Sequence[float],
    now: Callable[[], float] = time.perf_counter,
) -> Output:
    """The last of the published points that can be finished in time; the first one, if none can.

    costs_ms: the measured time up to each point. Between stages, the time really spent decides whether to go on.
    """
    began = now()
    run = model.run(x, model.points)
    output = next(run)
    for place in range(len(model.points) - 1):
        if not worth_going_on(1000 * (now() - began), costs_ms, place, budget_ms):
            break
        output = next(run)
    run.close()
    return output


def _count(x: Any) -> int:
    """Samples in a batch of any shape: the batch comes first in every tensor."""
    while not isinstance(x, Tensor):
        x = next(iter(x.values() if isinstance(x, dict) else x))
    return len(x)


# --- what a policy costs in milliseconds ------------------------------------------------------------------------------


def stopping_at(policy: Confident, place: int) -> Confident:
    """The same policy with thresholds that stop every sample at one place: the same code, a known way through it."""
    thresholds = (math.inf,) * len(policy.thresholds)
    return replace(policy, thresholds=(*thresholds[:place], 0.0, *thresholds[place + 1 :])[: len(thresholds)])


def time_exits(
    model: FlexibleModel, policies: Sequence[Confident], x: Any, rounds: int = 40, seconds: float = 10.0
) -> list[float]:
    """Median ms of running `x` through each policy, heads and confidences included, measured in turn."""
    calls = {str(number): lambda policy=policy: run_policy(model, x, policy) for number, policy in enumerate(policies)}
    return [found.p50_ms for found in interleave(calls, rounds, seconds).values()]


def time_policy(
    model: FlexibleModel, policy: Confident, samples: Iterable[Any], seconds: float = 20.0
) -> tuple[list[float | None], list[float]]:
    """Median ms of the samples that really stop at each point (None where none does), run one by one; and of stopping
    all of them there, measured in turn with these, so that a machine that has become slower shows in both.
    """
    places = len(policy.points)
    ways = [policy, *(stopping_at(policy, place) for place in range(places))]
    real: list[list[float]] = [[] for _ in range(places)]
    forced: list[list[float]] = [[] for _ in range(places)]
    began = time.perf_counter()
    for number, x in enumerate(samples):
        if number >= 20 and time.perf_counter() - began > seconds:
            break
        for turn in range(len(ways)):
            way = (number + turn) % len(ways)  # each is the first to meet a new sample as often as the others
            start = time.perf_counter()
            stopped = run_policy(model, x, ways[way])
            spent = 1000 * (time.perf_counter() - start)
            (forced[way - 1] if way else real[int(stopped.exits[0])]).append(spent)
    return [_median(times) if times else None for times in real], [_median(times) for times in forced]


def _median(times: list[float]) -> float:
    return float(torch.tensor(times, dtype=torch.float64).median())
