"""Verbs that put a model to use: calibrate, export, predict."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from supple import checkpoint
from supple.checkpoint import Source
from supple.device import device_here
from supple.errors import DataError, RecipeError
from supple.exporting.write import Held, Wanted, number_of_graphs, precision_of, up_to_date
from supple.exporting.write import export as write_graphs
from supple.inference.bundle import Bundle, open_bundle
from supple.inference.calibration import MOST
from supple.inference.calibration import calibrate as find_policy
from supple.inference.compare import time_bundle
from supple.inference.engines import MAX_DROP
from supple.inference.select import EXPORTS, ROUNDS, predictor
from supple.machine import cores
from supple.opening import Opened, Path_, Points, number_of_samples, open_source
from supple.policy.fitting import Target
from supple.policy.policy import MEASURES, Policy
from supple.progress import counting
from supple.reporting import write_report
from supple.tasks import get_task
from supple.text import did_you_mean, say, some


def calibrate(
    source: Source,
    data: Any = None,
    *,
    budget_macs: float | str | None = None,
    budget_ms: float | str | None = None,
    max_drop: float | str | None = None,
    points: Points = None,
    measure: str = "max_probability",
    keep_dominated: bool = False,
    device: str | None = None,
    changes: Iterable[str] = (),
    progress: bool = False,
) -> Policy:
    """When to stop early: the policy for a mean cost (2e6 MACs, 4 ms, or "0.5x" of the full model), or for an accuracy
    at most `max_drop` below the full model's. Half of the data decide, the other half judge: see `policy.facts`.
    points: those that may answer, such as ["width=0.5", "full"]; None: the exits of a model that has some, else all
    that are published. Points that are not exits of one chain are a cascade: each runs from the start.
    """
    asked = {"budget_macs": budget_macs, "budget_ms": budget_ms, "max_drop": max_drop}
    given = [Target.parse(kind, str(value)) for kind, value in asked.items() if value is not None]
    if len(given) != 1:
        count = "none" if not given else "more than one"
        cure = 'Give one of them: supple calibrate RUN --budget-macs 0.5x, or budget_macs="0.5x" in Python.'
        raise RecipeError(f"{count} of --budget-macs, --budget-ms, --max-drop is given.", cure)
    if measure not in MEASURES:
        raise RecipeError(f'--measure is "{measure}".', did_you_mean(measure, MEASURES))
    opened = open_source(source, changes)
    model = opened.model
    if not get_task(model.task).confidence:
        cause = f"{opened.name} is for the task {model.task}, which has no confidence to calibrate."
        raise RecipeError(cause, f"Limit its time instead: supple predict {opened.name} FILE --deadline-ms 50.")
    where = device_here(device, model)
    named = None if points is None else opened.points(points)
    held, seed = opened.data(data, "val"), opened.recipe.train.seed
    how: dict[str, Any] = {"points": named, "measure": measure, "keep_dominated": keep_dominated}
    how |= {"seed": seed, "device": where}
    with counting(min(number_of_samples(held), MOST), "calibrating", quiet=not progress) as on_progress:
        model.policy = find_policy(model, held, given[0], **how, on_progress=on_progress)
    if opened.folder is not None:
        checkpoint.save_policy(opened.folder, model.policy)
        write_report(opened.folder)
    return model.policy


def export(
    source: Source,
    out: Path_ | None = None,
    *,
    to: str = "onnx",
    int8: bool = False,
    bf16: bool = False,
    points: Points = None,
    max_drop: float = MAX_DROP,
    calibration: Any = None,
    changes: Iterable[str] = (),
    progress: bool = False,
) -> Bundle:
    """Every point as a graph for ONNX Runtime or OpenVINO, and the stages of a model with exits as a chain, in a new
    folder (of a run, RUN/export/TO-PRECISION) that answers without PyTorch: `supple.predictor(folder)`. Each graph is
    run against PyTorch, and timed, on every engine that opens it. calibration: data to check with and, for int8 and
    bf16, to calibrate and score with. In fp32, where the run's own data are not here, noise does.
    """
    opened = open_source(source, changes)
    wanted = Wanted(to, precision_of(to, int8, bf16), tuple(opened.points(points)) if points else (), max_drop)
    if out is None and opened.folder is None:
        raise RecipeError("the folder to write is missing.", 'Name it: supple.export(model, "exported").')
    weights = opened.weights
    if out is None and opened.folder is not None:
        out = opened.folder / EXPORTS / f"{to}-{wanted.precision}"
    assert out is not None
    if (there := up_to_date(Path(out), opened.model, weights, wanted)) is not None:
        return there
    checkpoint.check_out(Path(out))
    held = _held(opened, calibration, wanted.precision)
    if held.val is None and wanted.precision != "fp32":
        raise DataError(f"{wanted.precision} needs samples to be scored on.", "Give them: calibration=...")
    count = number_of_graphs(opened.model, wanted)
    if progress and not sys.stderr.isatty():
        say(f"{opened.name}: converting {some(count, 'graph')} to {to}; this takes minutes for a large network")
    with counting(count, "exporting", quiet=not progress) as on_progress:
        write_graphs(opened.model, weights, Path(out), wanted, held, on_progress=on_progress)
    with counting(ROUNDS, "timing", quiet=not progress, timing=True) as on_progress:
        return time_bundle(open_bundle(out), on_progress)


def _held(opened: Opened, given: Any, precision: str) -> Held:
    """The data that graphs are checked with. In fp32 nothing is scored, and they must agree with PyTorch on anything:
    a run whose data are not here, such as a network that comes with supple, is checked on noise."""
    try:
        return Held(*opened.parts(given))
    except DataError as error:
        if given is not None or opened.changes or precision != "fp32":
            raise
        say(f"{error.cause} The graphs are checked on noise instead.")
        return Held()


def predict(
    source: Source,
    files: Any,
    *,
    engine: str = "auto",
    threads: int | None = None,
    device: str | None = None,
    ray: bool = False,
    ray_address: str | None = None,
    out: Path_ | None = None,
    workers: int | None = None,
    **limits: Any,
) -> Any:
    """Answers for files, pictures or arrays: one for one, a list for a list. limits: those of `Predictor.predict`, such
    as deadline_ms=8. To ask more than once, open a `supple.predictor` and keep it.

    ray: in batches over Ray (docs/batches.md), by `workers` actors on this machine or on the cluster at `ray_address`.
    The files are then names of files, folders, Parquet files and tars; the answers are written into the folder `out`,
    and what comes back says what is in it.
    """
    if ray or out is not None:
        if not ray or out is None or not isinstance(source, str | os.PathLike):
            cause = "batches need ray=True, the folder out=..., and a run or an exported folder."
            raise RecipeError(cause, "A model in hand is saved first: model.save(folder).")
        from supple.cluster.batches import predict_batch

        names = [files] if isinstance(files, str | os.PathLike) else files
        how: dict[str, Any] = {"engine": engine, "threads": threads or 1, "device": device, **limits}
        return predict_batch(source, map(str, names), out, address=ray_address, workers=workers, **how)
    with predictor(source, engine, threads or cores(), warm="deadline_ms" in limits, device=device) as made:
        if isinstance(files, list):
            return [made.predict(one, **limits) for one in files]
        return made.predict(files, **limits)
