"""Latency, measured fairly: everything that is compared runs in turn inside one process."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from supple.ladder import Ladder
from supple.machine import machine
from supple.model import FlexibleModel, example
from supple.point import Point


@dataclass(frozen=True)
class Times:
    """Milliseconds of one call."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    calls: int


def interleave(calls: Mapping[str, Callable[[], object]], rounds: int = 30, seconds: float = 20.0) -> dict[str, Times]:
    """Runs every call once per round, in turn, until the rounds or the seconds are used up (at least 5 rounds)."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    began = time.perf_counter()
    for done in range(rounds):
        if done >= 5 and time.perf_counter() - began > seconds:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            spent[name].append(1000 * (time.perf_counter() - start))
    return {name: Times(*_percentiles(ms), len(ms)) for name, ms in spent.items()}


def _percentiles(values: list[float]) -> tuple[float, float, float]:
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return float(p50), float(p95), float(p99)


@torch.inference_mode()
def time_points(
    model: FlexibleModel,
    points: list[Point],
    batch: int = 1,
    threads: int | None = None,
    rounds: int = 30,
    seconds: float = 20.0,
    others: Mapping[str, nn.Module] | None = None,
) -> dict[str, Times]:
    """Times of each point (and of other modules beside them) on random input, with a given number of threads."""
    assert model.input_shape is not None
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        x = example(model.input_shape, batch, torch.randn)
        calls: dict[str, Callable[[], object]] = {
            str(point): lambda point=point: model(x, point)  # type: ignore[misc]
            for point in points
        }
        calls |= {name: lambda module=module: module(x) for name, module in (others or {}).items()}  # type: ignore[misc]
        return interleave(calls, rounds, seconds)
    finally:
        torch.set_num_threads(before)


def time_into(
    ladder: Ladder, model: FlexibleModel, points: list[Point], *, batch: int, threads: int, **limits: float
) -> None:
    """Times the points and writes what was found into a ladder."""
    for name, times in time_points(model, points, batch, threads, **limits).items():  # type: ignore[arg-type]
        p50, p95, p99 = times.p50_ms, times.p95_ms, times.p99_ms
        ladder.time(name, batch=batch, threads=threads, machine=machine(), p50_ms=p50, p95_ms=p95, p99_ms=p99)
