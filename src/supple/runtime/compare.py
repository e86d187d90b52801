"""Engines beside one another: every point on every engine, in turn inside one process."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from supple import files
from supple.errors import PointError
from supple.ladder import Ladder
from supple.machine import machine
from supple.runtime.bundle import LADDER, Bundle
from supple.runtime.clock import REST_S, Times, interleave
from supple.runtime.inputs import zeros
from supple.runtime.opening import Choice, opened, remark
from supple.runtime.predictor import Predictor


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
    path: Path,
    choices: list[Choice],
    others: Mapping[str, Callable[[Any], object]],
    *,
    points: list[str] | None,
    batch: int,
    threads: int,
    rounds: int,
    seconds: float = 60.0,
) -> list[Timed]:
    """Times of the points (None: all) on random inputs; others: networks of PyTorch to time beside them, by name.

    What was found of exported folders goes into their ladders.
    """
    for choice in choices:
        remark(choice)
    made = [(choice, opened(path, choice, threads)) for choice in choices]
    there = list(dict.fromkeys(str(point) for _, one in made for point in one.points))
    for name in set(points or ()) - set(there):
        raise PointError(f"there is no point {name} here: there are {', '.join(there)}.", "Use one of these.")
    x = _inputs(made[0][1], batch)
    calls: dict[str, Callable[[], object]] = {}
    where: dict[str, tuple[str, Choice | None]] = {}
    for choice, one in made:
        for name in map(str, one.points):
            if points is None or name in points:
                calls[f"{choice} {name}"] = lambda one=one, name=name: one.run_point(name, x)  # type: ignore[misc]
                where[f"{choice} {name}"] = name, choice
    for name, call in others.items():
        calls[name] = lambda call=call: call(x)  # type: ignore[misc]
        where[name] = name, None
    found = interleave(calls, rounds, seconds, REST_S)
    for _, one in made:
        one.close()
    timed = []
    for key, times in found.items():
        name, used = where[key]
        engine, precision = ("torch", "fp32") if used is None else (used.engine, used.precision)
        source = None if used is None else used.source
        folder = None if source is None else source.folder.name
        timed.append(Timed(name, engine, precision, folder, batch, threads, times))
        if source is not None:
            keep(source, timed[-1])
    return timed


def keep(bundle: Bundle, timed: Timed) -> None:
    """Writes a time into the ladder of an exported folder."""
    ladder: Ladder = bundle.ladder
    times = {"p50_ms": timed.times.p50_ms, "p95_ms": timed.times.p95_ms, "p99_ms": timed.times.p99_ms}
    where = {"batch": timed.batch, "threads": timed.threads, "machine": machine()}
    ladder.time(timed.point, engine=timed.engine, precision=timed.precision, **where, **times)  # type: ignore[arg-type]
    document = {"checkpoint": bundle.checkpoint, **ladder.to_json()}
    files.write(bundle.folder / LADDER, json.dumps(document, indent=1))


def _inputs(one: Predictor, batch: int) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(0)
    return tuple(np.asarray(rng.standard_normal(part.shape, np.float32)) for part in zeros(one.shape, batch))
