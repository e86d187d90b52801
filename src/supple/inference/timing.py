"""Latency, measured fairly: everything that is compared runs in turn inside one process."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Times:
    """Milliseconds of one call."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    iqr_ms: float  # between the quartiles: how far the calls spread
    calls: int


REST_S = 0.1  # until the threads of a runtime have stopped waiting for more work


def interleave(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = 30,
    seconds: float = 20.0,
    runtimes: Mapping[str, str] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Times]:
    """Runs every call once per round, in turn, until the rounds or the seconds are used up (at least 5 rounds).

    runtimes: whose each call is, if they are not all of one. When another one's turn comes, it waits until the idle
    threads of the last have stopped looking for work, and makes its first call twice, as in a loop of its own.
    on_progress: called before each round with 1.
    """
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    began, last = time.perf_counter(), None
    for done in range(rounds):
        if done >= 5 and time.perf_counter() - began > seconds:
            break
        if on_progress is not None:
            on_progress(1)
        for name, call in calls.items():
            if runtimes is not None and runtimes[name] != last:
                last = runtimes[name]
                time.sleep(REST_S)
                call()
            start = time.perf_counter()
            call()
            spent[name].append(1000 * (time.perf_counter() - start))
    return {name: Times(*percentiles(ms), _iqr(ms), len(ms)) for name, ms in spent.items()}


def percentiles(values: list[float]) -> tuple[float, float, float]:
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return float(p50), float(p95), float(p99)


def _iqr(values: list[float]) -> float:
    low, high = np.percentile(values, (25, 75))
    return float(high - low)
