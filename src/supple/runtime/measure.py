"""Latency of points in PyTorch, in turn with one another."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from supple.ladder import Ladder
from supple.machine import machine
from supple.model import FlexibleModel, example
from supple.point import Point
from supple.runtime.clock import Times, interleave


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
