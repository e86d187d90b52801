"""Engines beside one another: every point on every engine, in turn inside one process."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from supple import files
from supple.errors import PointError
from supple.inference.bundle import LADDER
from supple.inference.inputs import zeros
from supple.inference.predictor import Predictor
from supple.inference.select import Choice, of_model
from supple.inference.timing import REST_S, Times, interleave
from supple.ladder import Ladder
from supple.machine import machine

if TYPE_CHECKING:
    from supple.model import FlexibleModel


@dataclass(frozen=True)
class Timed:
    """How long one point took on one engine."""

    point: str
    engine: str
    precision: str
    folder: str | None  # of the exported graphs
    batch: int
    threads: int
    times: Times


def compare(
    made: Sequence[tuple[Choice, Predictor]],
    others: Mapping[str, Callable[[Any], object]] = {},
    *,
    points: Sequence[str] | None = None,
    batch: int = 1,
    threads: int,
    rounds: int = 50,
    seconds: float = 60.0,
) -> list[Timed]:
    """Times of the points (None: all) on random inputs, in turn; others: functions to time beside them, by name.

    What was found of exported folders goes into their ladders.
    """
    there = list(dict.fromkeys(point for _, one in made for point in one.graphs.points))
    for name in set(points or ()) - set(there):
        raise PointError(f"there is no point {name} here: there are {', '.join(there)}.", "Use one of these.")
    x = _inputs(made[0][1], batch)
    calls: dict[str, Callable[[], object]] = {}
    where: dict[str, tuple[str, Choice | None]] = {}
    for choice, one in made:
        for name in one.graphs.points:
            if points is None or name in points:
                calls[f"{choice} {name}"] = lambda one=one, name=name: one.run_point(name, x)  # type: ignore[misc]
                where[f"{choice} {name}"] = name, choice
    for name, call in others.items():
        calls[name] = lambda call=call: call(x)  # type: ignore[misc]
        where[name] = name, None
    several = len({choice.engine for choice, _ in made}) > 1 or bool(others)
    found = interleave(calls, rounds, seconds, REST_S if several else 0.0)
    timed = []
    for key, times in found.items():
        name, used = where[key]
        engine, precision = ("torch", "fp32") if used is None else (used.engine, used.precision)
        source = None if used is None else used.source
        folder = None if source is None else source.folder.name
        timed.append(Timed(name, engine, precision, folder, batch, threads, times))
        if source is not None:
            record(source.ladder, timed[-1])
            document = {"checkpoint": source.checkpoint, **source.ladder.to_json()}
            files.write(source.folder / LADDER, json.dumps(document, indent=1))
    return timed


def record(ladder: Ladder, timed: Timed) -> None:
    """Writes a time into a ladder."""
    times = {"p50_ms": timed.times.p50_ms, "p95_ms": timed.times.p95_ms, "p99_ms": timed.times.p99_ms}
    where = {"batch": timed.batch, "threads": timed.threads, "machine": machine()}
    ladder.time(timed.point, engine=timed.engine, precision=timed.precision, **where, **times)  # type: ignore[arg-type]


def time_model(
    model: "FlexibleModel", points: Sequence[str] | None = None, *, batch: int, threads: int, **limits: Any
) -> None:
    """Times of a model's points in PyTorch, into its ladder."""
    with of_model(model, threads) as one:
        for timed in compare([(Choice("torch"), one)], points=points, batch=batch, threads=threads, **limits):
            record(model.ladder, timed)


def _inputs(one: Predictor, batch: int) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(0)
    return tuple(np.asarray(rng.standard_normal(part.shape, np.float32)) for part in zeros(one.shape, batch))
