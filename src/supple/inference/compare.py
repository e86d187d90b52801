"""Engines beside one another: every point on every engine, in turn inside one process."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from supple import files
from supple.device import synchronise
from supple.errors import PointError, RecipeError
from supple.inference.bundle import LADDER, Bundle, is_bundle
from supple.inference.engines import ENGINES, check_device
from supple.inference.inputs import zeros
from supple.inference.predictor import Predictor
from supple.inference.select import (
    ROUNDS,
    SECONDS,
    Choice,
    checked,
    choices_for,
    named,
    of_bundle,
    of_model,
    opened,
    remark,
)
from supple.inference.timing import interleave
from supple.ladder import TIMES, Ladder, Row
from supple.machine import cores, machine
from supple.networks import located
from supple.point import FULL
from supple.text import did_you_mean

if TYPE_CHECKING:
    from supple.model import FlexibleModel


def compare(
    made: Sequence[tuple[Choice, Predictor]],
    others: Mapping[str, Callable[[Any], object]] = {},
    *,
    points: Sequence[str] | None = None,
    batch: int = 1,
    threads: int,
    rounds: int = 50,
    seconds: float = 60.0,
    on_progress: Callable[[int], None] | None = None,
) -> Ladder:
    """Times of the points (None: all) on random inputs, in turn; others: functions to time beside them, by name.

    What was found of exported folders goes into their ladders. All of it runs on one device. on_progress counts rounds.
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
    runtimes = {key: "torch" if choice is None else choice.engine for key, (_, choice) in where.items()}
    found = interleave(calls, rounds, seconds, runtimes if len(set(runtimes.values())) > 1 else None, on_progress)
    timed = Ladder()
    for key, times in found.items():
        name, used = where[key]
        engine, precision = ("torch", "fp32") if used is None else (used.engine, used.precision)
        source = None if used is None else used.source
        folder = None if source is None else source.folder.name
        ms = {name: getattr(times, name) for name in TIMES}
        row = Row(name, engine, precision, batch, threads, machine(made[0][0].device), folder, **ms)
        timed.put(row)
        if source is not None:
            record(source.ladder, row)
            document = {"checkpoint": source.checkpoint, **source.ladder.to_json()}
            files.write(source.folder / LADDER, json.dumps(document, indent=1))
    return timed


def record(ladder: Ladder, row: Row) -> None:
    """Writes the times of a row into a ladder."""
    names = ("engine", "precision", "batch", "threads", "machine", *TIMES)
    ladder.time(row.point, **{name: getattr(row, name) for name in names})


def time_model(
    model: "FlexibleModel",
    points: Sequence[str] | None = None,
    *,
    batch: int,
    threads: int,
    device: str = "cpu",
    **limits: Any,
) -> Ladder:
    """Times of a model's points in PyTorch, into its ladder; gives the rows timed."""
    from supple.cost import profile_others

    for row in profile_others(model, model.ladder):
        model.ladder.put(row)
    with of_model(model, threads, device=device) as one:
        timed = compare([(Choice("torch", device=device), one)], points=points, batch=batch, threads=threads, **limits)
    for row in timed:
        record(model.ladder, row)
    keys = {row.key for row in timed}
    return Ladder(row for row in model.ladder if row.key in keys)


def time_bundle(bundle: Bundle, on_progress: Callable[[int], None] | None = None) -> Bundle:
    """An exported folder with the times of its points on every engine that it was checked on."""
    choices = checked(bundle)
    if choices:
        made = [(choice, of_bundle(bundle, choice.engine, cores())) for choice in choices]
        compare(made, threads=cores(), rounds=ROUNDS, seconds=SECONDS, on_progress=on_progress)
    return bundle


def bench_engines(
    source: str | PathLike[str],
    engine: str | None,
    against: str | None,
    points: Sequence[str],
    batches: Sequence[int],
    *,
    threads: int,
    rounds: int,
    device: str = "cpu",
    on_progress: Callable[[int], None] | None = None,
) -> Ladder:
    """Points (none: all) of a run or an exported folder on engines; of a run, the same network untouched and another
    one of timm (`against`) beside them."""
    source = located(source)
    path = Path(source)
    if not path.is_dir():
        raise RecipeError("engines run trained models.", "Give a run or an exported folder, or leave --engine out.")
    engine = engine or ("all" if is_bundle(path) else "torch")
    wanted = list(ENGINES) if engine == "all" else engine.split(",")
    for name in wanted:
        if name not in ENGINES:
            raise RecipeError(f'there is no engine "{name}".', did_you_mean(name, ["all", *ENGINES]))
        if engine != "all":
            check_device(name, device)
    choices = choices_for(path, device)
    if engine != "all":
        choices = [choice for name in wanted for choice in named(path, choices, name)]
    if not choices:
        raise RecipeError(f"{path} has nothing that is installed here.", "pip install 'supple[export]'")
    others = _others(source, against, threads, device)
    for choice in choices:
        remark(choice)
    made = [(choice, opened(source, choice, threads)) for choice in choices]
    found, how = Ladder(), {"threads": threads, "rounds": rounds, "on_progress": on_progress}
    for batch in batches:
        for row in compare(made, others, points=points or None, batch=batch, **how):  # type: ignore[arg-type]
            found.put(row)
    return found


def _others(
    source: str | PathLike[str], against: str | None, threads: int, device: str
) -> dict[str, Callable[[Any], object]]:
    """The network of a run as it was, and any other of timm, as functions of arrays."""
    if is_bundle(source):
        if against is not None:
            raise RecipeError("--against is timed in PyTorch, beside a run.", "Give the run, not its export.")
        return {}
    import torch

    from supple.checkpoint import model_of

    torch.set_num_threads(threads)
    model = model_of(source)
    networks = {"static": model.extract(FULL).eval()}
    if against is not None:
        from supple.backbones.networks import timm_network

        shape = model.input_shape or ()
        if not all(isinstance(side, int) for side in shape):
            raise RecipeError(
                "--against takes networks for pictures; this run also takes sound.", "Leave --against out."
            )
        given = {"num_classes": len(model.classes), "in_channels": shape[0], "input_shape": shape}
        networks[against] = timm_network(**given, model=against).eval()

    def run(network: Any, x: Any) -> object:
        tensors = tuple(torch.from_numpy(part).to(device) for part in x)
        with torch.inference_mode():
            found = network(tensors[0] if len(tensors) == 1 else tensors)
        synchronise(device)
        return found

    return {name: partial(run, network.to(device)) for name, network in networks.items()}


def _inputs(one: Predictor, batch: int) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(0)
    return tuple(np.asarray(rng.standard_normal(part.shape, np.float32)) for part in zeros(one.shape, batch))
