import json as json_text
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from supple.cli import IMPORTED
from supple.cli.common import Changes, Json, Points, Target, is_run, numbers, points_of, print_json
from supple.errors import RecipeError, SuppleError


def bench(
    target: Target,
    changes: Changes = None,
    point: Points = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, such as 1,16.")] = "1",
    threads: Annotated[str | None, typer.Option(help="Numbers of threads, such as 1,2; default: all cores.")] = None,
    rounds: Annotated[int, typer.Option(help="Measured calls of each point, in turn.", min=5, max=10_000)] = 50,
    engine: Annotated[str | None, typer.Option(help="torch,onnxruntime,openvino, or all: a column each.")] = None,
    against: Annotated[str | None, typer.Option(help="Time this network of timm beside it.")] = None,
    json: Json = False,
) -> None:
    """The points run in turn, round by round, so that their ratios hold on a noisy machine. ms are per batch.

    The figures go into ladder.json and report.html; those of engines into the exported folders. A recipe is timed
    untrained. Each number of threads is measured in a process of its own. bf16 and int8 appear where they were exported
    or, of PyTorch, scored: supple evaluate RUN --precision bf16.
    """
    from supple.inference.bundle import is_bundle
    from supple.ladder import Ladder
    from supple.machine import machine

    counts: list[int | None] = [*numbers(threads, "--threads")] if threads else [None]
    sizes = numbers(batch, "--batch")
    if len(counts) > 1:
        words = [target, *(changes or ()), *(f"--point={one}" for one in point or ())]
        words += [f"--batch={batch}", f"--rounds={rounds}"]
        words += [f"--engine={engine}"] if engine else []
        words += [f"--against={against}"] if against else []
        rows = [row for count in counts for row in _elsewhere([*words, f"--threads={count}"])]
    elif engine is None and against is None and not is_bundle(target):
        rows = _points(target, changes, point, sizes, counts[0], rounds)
    else:
        if changes:
            raise RecipeError("engines run what was trained: changes do not apply.", "Leave them out.")
        rows = _engines(target, point, sizes, counts[0], rounds, engine, against)
    if json:
        print_json({"points": rows})
    elif engine or against or is_bundle(target):
        print(f"{_side_by_side(rows)}\n({machine()}; ms p50 / p95)")
    else:
        print(f"{Ladder.from_json({'points': rows})}\n({machine()}; torch, fp32)")


def _elsewhere(words: list[str]) -> list[dict[str, Any]]:
    """The rows that another process measures: a runtime's threads cannot be changed once they are there."""
    modules = [word for module in IMPORTED for word in ("--import", module)]
    command = [sys.executable, "-m", "supple", *modules, "bench", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        cause, *cure = done.stderr.strip().splitlines() or ["bench failed."]
        raise SuppleError(cause.removeprefix("error: "), " ".join(cure))
    rows: list[dict[str, Any]] = json_text.loads(done.stdout)["points"]
    return rows


def _points(
    target: str, changes: list[str] | None, point: list[str] | None, sizes: list[int], threads: int | None, rounds: int
) -> list[dict[str, Any]]:
    """The points of a run or of an untrained recipe in PyTorch."""
    import torch

    from supple import checkpoint, cost
    from supple.cli.common import model_of, recipe_of
    from supple.inference.compare import time_model
    from supple.ladder import Ladder
    from supple.machine import machine
    from supple.reporting import write_report
    from supple.training.build import skeleton

    if is_run(target):
        model = model_of(target, changes)
    else:
        model = skeleton(recipe_of(target, changes), device="cpu").eval()
        model.ladder = Ladder()
    points = points_of(model, point)
    known = {row.point for row in model.ladder}
    for row in cost.profile(model, points):
        if row.point not in known:
            model.ladder.put(row)
    rows, count = [], threads or torch.get_num_threads()
    for size in sizes:
        time_model(model, [str(one) for one in points], batch=size, threads=count, rounds=rounds)
        here = model.ladder.where(engine="torch", precision="fp32", batch=size, threads=count, machine=machine())
        rows += [row.to_json() for row in here if row.point in {str(p) for p in points}]
    if is_run(target):
        checkpoint.save_ladder(Path(target), model.ladder)
        write_report(Path(target))
    return rows


def _engines(
    target: str,
    point: list[str] | None,
    sizes: list[int],
    threads: int | None,
    rounds: int,
    engine: str | None,
    against: str | None,
) -> list[dict[str, Any]]:
    """Points on engines, the same network untouched and another one beside them."""
    from supple.inference.bundle import is_bundle
    from supple.inference.compare import compare
    from supple.inference.engines import ENGINES
    from supple.inference.select import choices_for, named, opened, remark
    from supple.machine import cores
    from supple.text import did_you_mean

    if not is_run(target):
        raise RecipeError("engines run trained models.", "Give a run or an exported folder, or leave --engine out.")
    engine = engine or ("all" if is_bundle(target) else "torch")
    wanted = list(ENGINES) if engine == "all" else engine.split(",")
    for name in wanted:
        if name not in ENGINES:
            raise RecipeError(f'there is no engine "{name}".', did_you_mean(name, ["all", *ENGINES]))
    choices = choices_for(Path(target))
    if engine != "all":
        choices = [choice for name in wanted for choice in named(Path(target), choices, name)]
    if not choices:
        raise RecipeError(f"{target} has nothing that is installed here.", "pip install 'supple[export]'")
    count = threads or cores()
    others = _others(Path(target), against, count)
    for choice in choices:
        remark(choice)
    made = [(choice, opened(Path(target), choice, count)) for choice in choices]
    rows = []
    for size in sizes:
        found = compare(made, others, points=point or None, batch=size, threads=count, rounds=rounds)
        for one in found:
            facts = {"point": one.point, "engine": one.engine, "precision": one.precision, "folder": one.folder}
            times = {"p50_ms": one.times.p50_ms, "p95_ms": one.times.p95_ms, "p99_ms": one.times.p99_ms}
            rows.append({**facts, "batch": size, "threads": count, **times})
    return rows


def _others(target: Path, against: str | None, threads: int) -> dict[str, Callable[[Any], object]]:
    """The network of a run as it was, and any other of timm, as functions of arrays."""
    from supple.inference.bundle import is_bundle

    if is_bundle(target):
        if against is not None:
            raise RecipeError("--against is timed in PyTorch, beside a run.", "Give the run, not its export.")
        return {}
    import torch

    from supple.cli.common import model_of
    from supple.point import FULL

    torch.set_num_threads(threads)
    model = model_of(target)
    networks = {"static": model.extract(FULL).eval()}
    if against is not None:
        from supple.backbones.networks import timm_network

        shape = model.input_shape or ()
        if not all(isinstance(side, int) for side in shape):
            raise RecipeError("--against takes networks for pictures; this run also hears.", "Leave --against out.")
        given = {"num_classes": len(model.classes), "in_channels": shape[0], "input_shape": shape}
        networks[against] = timm_network(**given, model=against).eval()

    def run(network: Any, x: Any) -> object:
        tensors = tuple(map(torch.from_numpy, x))
        with torch.inference_mode():
            return network(tensors[0] if len(tensors) == 1 else tensors)

    return {name: partial(run, network) for name, network in networks.items()}


def _side_by_side(rows: list[dict[str, Any]]) -> str:
    """A row for each point, a column for each engine."""
    from supple.text import table

    def label(row: dict[str, Any]) -> str:
        return f"{row['engine']} {row['precision']}" + (f" ({row['folder']})" if row["folder"] else "")

    def cell(row: dict[str, Any] | None) -> str:
        return "-" if row is None else f"{row['p50_ms']:.3g} / {row['p95_ms']:.3g}"

    columns = list(dict.fromkeys(map(label, rows)))
    places = dict.fromkeys((row["point"], row["batch"], row["threads"]) for row in rows)
    found = {(row["point"], row["batch"], row["threads"], label(row)): row for row in rows}
    lines = [[*map(str, place), *(cell(found.get((*place, column))) for column in columns)] for place in places]
    return table(["point", "batch", "threads", *columns], lines, left=(0,))
