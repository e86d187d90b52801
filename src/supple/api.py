"""The verbs as functions: all that the command line does, from Python.

A verb takes a model in hand or a run folder, and returns objects. It prints nothing, unless `progress=True` asks for a
bar on stderr. What is measured of a run is written into its folder; of a model in hand, onto the model (`model.ladder`,
`model.policy`), which is left in eval mode. Data are a data set, a loader of torch, or a path of pictures; None: the
run's own.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from supple import checkpoint, cost
from supple.analysis import IMAGES, check_options, method_of
from supple.analysis import analyse as run_analysis
from supple.analysis.finding import Finding, Subject, choose
from supple.checkpoint import Run, Source
from supple.data.loaders import at_most
from supple.data.preprocess import saved_preprocess
from supple.data.registry import load as load_set
from supple.device import device_here, device_named, placed
from supple.errors import DataError, RecipeError
from supple.experiments.reproduction import reproduce as reproduce
from supple.exporting.check import scores_in_bf16
from supple.exporting.write import Held, Wanted, has_all, number_of_graphs, precision_of, up_to_date
from supple.exporting.write import export as write_graphs
from supple.inference.bundle import Bundle, is_bundle, open_bundle
from supple.inference.calibration import MOST
from supple.inference.calibration import calibrate as find_policy
from supple.inference.compare import bench_engines, record, time_bundle, time_model
from supple.inference.engines import MAX_DROP
from supple.inference.select import EXPORTS, ROUNDS, exports_of, predictor
from supple.ladder import Ladder
from supple.machine import cores, machine
from supple.methods.ranking import Ranking
from supple.model import FlexibleModel
from supple.opening import (
    Opened,
    Path_,
    check_targets,
    class_names,
    input_settings,
    must_be_run,
    must_take,
    number_of_samples,
    open_any,
    open_source,
)
from supple.point import AnyPoint, Point, as_point
from supple.policy.fitting import Target
from supple.policy.policy import MEASURES, Policy
from supple.progress import counting
from supple.recipe import Recipe, load_recipe
from supple.reporting import write_report
from supple.scoring import draw, evaluate_group
from supple.scoring import evaluate as score_points
from supple.searching.measure import Measurements, check_engine, tools_of
from supple.searching.memory import SEARCH, Memory
from supple.searching.search import SearchResult
from supple.searching.search import search as search_points
from supple.server.running import serve as serve
from supple.surgery.extract import extract_to
from supple.surgery.merge import merge as merge_models
from supple.surgery.merge import merge_to, plan_merge
from supple.surgery.prune import Plan, cut
from supple.surgery.prune import save as save_pruned
from supple.tasks import get_task
from supple.text import did_you_mean, say, some
from supple.training.loop import fit_model
from supple.training.loop import train as train_recipe
from supple.training.optim import fine_tuning
from supple.training.propose import is_pictures, train_pictures

Points = Iterable[AnyPoint] | AnyPoint | None  # None: all
Budgets = float | str | Sequence[float | str] | None  # 5, "0.5x" of the full model, or several


# --- make a flexible model --------------------------------------------------------------------------------------------


def train(
    recipe: Recipe | Path_,
    out: Path_,
    changes: Iterable[str] = (),
    *,
    resume: bool = False,
    progress: bool = False,
    **asked: Any,
) -> Run:
    """Trains a recipe, given as a file or an object, into a run folder; changes such as "train.epochs=3".

    Or pictures: a folder, a zip or a .csv, for which a recipe is made up. asked, for pictures: minutes=30,
    network="deit_tiny_patch16_224", weights=FILE, method="exits".
    """
    if not isinstance(recipe, Recipe) and is_pictures(os.fspath(recipe)):
        how: dict[str, Any] = {"resume": resume, "quiet": not progress, **asked}
        folder = train_pictures(os.fspath(recipe), Path(out), tuple(changes), **how)
        return Run(folder, checkpoint.load(folder))
    if asked:
        raise RecipeError(
            f"{next(iter(asked))} is for pictures, not for a recipe.", "Leave it out, or change the recipe."
        )
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(os.fspath(recipe), changes)
    elif changes := tuple(changes):
        recipe = checkpoint.changed(recipe.resolved(), changes)
    folder = train_recipe(recipe, Path(out), resume=resume, quiet=not progress)
    return Run(folder, checkpoint.load(folder))


def fit(
    model: FlexibleModel,
    data: Any,
    val: Any = None,
    *,
    out: Path_,
    epochs: int = 10,
    test: Any = None,
    batch_size: int = 64,
    classes: Sequence[str] | None = None,
    preprocess: Any = None,
    task: str | None = None,
    loss: str | Mapping[str, Any] | None = None,
    resume: bool = False,
    progress: bool = False,
    **train: Any,
) -> Run:
    """Trains a model in place, and writes it as a run: in the end it has the weights of the best epoch.

    data, val, test: data sets, or loaders, which have a batch size of their own; or data alone, a path of pictures,
    which is split. `val` chooses the epoch; the run's scores are on `test` or, without one, on `val`. classes (names)
    and preprocess (a mapping with size, channels, mean and std) are needed for answers from files; pictures bring their
    own. task: what the model is for, if not what it was built for. loss and the further keywords are those of a
    recipe's sections `loss` and `train`: lr=0.01, optimizer="adamw". A model that started from trained weights is
    fine-tuned (AdamW, averaged weights), if neither lr nor optimizer is given. `resume=True` goes on with a training
    that was interrupted, with a loader from the last whole epoch on.
    """
    about: dict[str, Any] = {"batch_size": batch_size}
    if task is not None:
        model.task = get_task(task).name
    if isinstance(data, (str, os.PathLike)):
        if val is not None or test is not None:
            raise DataError("data is a path, which is split: val and test do not go with it.", "Leave them out.")
        shape = model.input_shape or (3, 0, 0)
        settings = {"root": os.fspath(data), **input_settings(model), "size": shape[1], "channels": shape[0]}
        splits = load_set("folder", **settings)
        data, val, test = splits.train, splits.val, splits.test
        classes, preprocess = splits.train.classes, splits.train.preprocess
        about |= {"name": "folder", **settings, **preprocess.facts()}
        about |= {"classes": len(classes), "fingerprint": splits.fingerprint}
    if val is None:
        raise DataError("val is missing: the best epoch is chosen with it.", "Give samples that are not trained on.")
    must_take(model, data)
    model.classes = class_names(model, data, classes)
    check_targets(model, data)
    if preprocess is not None:
        found = preprocess if hasattr(preprocess, "arrays") else saved_preprocess(model.task, dict(preprocess))
        model.preprocess = found
    usual = fine_tuning(model) if model.expected_input and not train.keys() & {"lr", "optimizer"} else {}
    settings = {**usual, "epochs": epochs, **train}
    loss = {"name": loss} if isinstance(loss, str) else loss
    how: dict[str, Any] = {"loss": loss, "about": about, "resume": resume, "quiet": not progress}
    return Run(fit_model(model, data, val, Path(out), settings, test=test, **how), model)


def extract(source: Source, out: Path_, point: AnyPoint = "full", *, deploy: bool = False) -> Path:
    """One point as an ordinary network in a new folder, for `torch.export.load`; see also `model.extract`."""
    extract_to(open_source(source).model, point, Path(out), deploy)
    return Path(out)


def prune(
    source: Source,
    ratio: float | None = None,
    *,
    widths: Sequence[float] | None = None,
    ranking: Ranking = "global",
    by: str = "score",
    multiple: int = 1,
    seed: int = 0,
    out: Path_ | None = None,
    data: Any = None,
) -> FlexibleModel:
    """A transformer without the share `ratio` of its dimensions that matter least; or, with `widths`, one model for
    several shares kept. out: a new run folder for it, scored on `data`.
    """
    opened = open_source(source)
    small = cut(opened.model, ratio, widths, Plan(ranking, by, multiple, seed)).model
    if out is not None:
        checkpoint.check_out(Path(out))
        save_pruned(Path(out), small, opened.data(data, "test"))
    return small


def merge(
    sources: Sequence[Source],
    plan: Sequence[int] | None = None,
    *,
    ends: int | Literal["mean"] = 1,
    seed: int = 0,
    out: Path_ | None = None,
    data: Any = None,
) -> FlexibleModel:
    """One model of the layers of several. plan: for every layer its source, from 1; None: a random one that takes no
    source twice. ends: whose stem, norm and head. out: a new run folder for it, scored on `data`.
    """
    planned = plan_merge(sources, plan, ends, seed)
    if out is None:
        return merge_models(planned.models, planned.plan, planned.owner)
    checkpoint.check_out(Path(out))
    return merge_to(Path(out), planned, open_source(sources[0]).data(data, "test"))


# --- know what it costs and scores ------------------------------------------------------------------------------------


def profile(source: Source, points: Points = None, *, changes: Iterable[str] = ()) -> Ladder:
    """MACs and parameters of every point, counted without weights; also of a recipe."""
    opened = open_any(source, changes)
    return Ladder(cost.profile(opened.model, opened.points(points)))


def evaluate(
    source: Source,
    data: Any = None,
    points: Points = None,
    *,
    draws: int = 5,
    precision: Literal["fp32", "bf16"] = "fp32",
    device: str | None = None,
    changes: Iterable[str] = (),
    progress: bool = False,
) -> Ladder:
    """The score of every point, in one pass over the data; where no points are named, also of every group of points,
    as the mean over some that are drawn. precision bf16: what PyTorch loses in bf16 on this processor. Scores on other
    data than the run's own are only returned (`ladder.data` names them): the run keeps its figures. device: cpu, cuda,
    cuda:1, mps, or auto (cuda or mps if there is one); None: the CPU, or where a model in hand is.
    """
    if precision not in ("fp32", "bf16"):
        cure = "Possible: fp32, bf16. int8 is exported: supple export --int8."
        raise RecipeError(f'--precision is "{precision}".', cure)
    if isinstance(draws, bool) or not 0 <= draws <= 1000:
        raise RecipeError(f"draws is {draws}.", "Give a number from 0 to 1000.")
    opened = open_source(source, changes)
    model, asked = opened.model, opened.points(points)
    where = device_here(device, model)
    samples, others = opened.tested(data)
    result, known = Ladder(cost.profile(model, asked), others), model.ladder
    kept = (result, known) if others is None or opened.folder is None else (result,)
    counts = {row.point: row.counts() for row in result}
    groups = [*model.groups.values()] if points is None and draws and precision == "fp32" else []
    total = number_of_samples(samples) * (1 + len(groups))
    with placed(model, where), counting(total, "evaluating", quiet=not progress) as count:
        if precision == "bf16":
            for score, in_bf16 in scores_in_bf16(model, samples, asked, where):
                for ladder in kept:
                    ladder.update(score.name, **counts[score.name] | score.facts())
                    ladder.update(score.name, "torch", "bf16", machine(where), **counts[score.name] | in_bf16)
        else:
            scores = score_points(model, samples, asked, on_progress=count)
            for group in groups:
                scores.append(evaluate_group(model, samples, group, draws, on_progress=count))
                counts[group.name] = {"macs": cost.mean_macs(model, draw(model, group, draws, 0))}
            for score in scores:
                for ladder in kept:
                    ladder.update(score.name, **counts[score.name] | score.facts())
    if known in kept:
        opened.keep(known)
    return result


def bench(
    source: Source,
    points: Points = None,
    *,
    batch: int | Sequence[int] = 1,
    threads: int | None = None,
    engine: str | None = None,
    against: str | None = None,
    rounds: int = 50,
    device: str | None = None,
    changes: Iterable[str] = (),
    progress: bool = False,
) -> Ladder:
    """Measured latency, in turn, round by round: ms per batch. Of a run or an exported folder, an engine ("all",
    "onnxruntime,torch") compares every point on each, the untouched network beside it, and another one of timm
    (`against`). threads None: all cores. device: as for `evaluate`; the rows of a GPU name it as part of their machine.
    """
    sizes, count = [batch] if isinstance(batch, int) else [*batch], threads or cores()
    if isinstance(source, FlexibleModel) or (engine is None and against is None and not is_bundle(source)):
        opened = open_any(source, changes, device="cpu")
        where, asked = device_here(device, opened.model), [str(point) for point in opened.points(points)]
        found = Ladder()
        with counting(rounds * len(sizes), "timing", quiet=not progress, timing=True) as on_progress:
            how: dict[str, Any] = {"threads": count, "rounds": rounds, "device": where, "on_progress": on_progress}
            for size in sizes:
                for row in time_model(opened.model, asked, batch=size, **how):
                    found.put(row)
        opened.keep(opened.model.ladder)
        return found
    if [*changes]:
        raise RecipeError("engines run what was trained: changes do not apply.", "Leave them out.")
    where = device_named("cpu" if device is None else device)
    asked = [str(as_point(one)) for one in ([points] if isinstance(points, (str, Point)) else points or ())]
    with counting(rounds * len(sizes), "timing", quiet=not progress, timing=True) as on_progress:
        how = {"threads": count, "rounds": rounds, "device": where, "on_progress": on_progress}
        return bench_engines(source, engine, against, asked, sizes, **how)


def analyse(
    source: Source,
    data: Any = None,
    *,
    images: int | None = None,
    layer: int | None = None,
    orders: int | None = None,
    base: Source | None = None,
    points: Points = None,
    changes: Iterable[str] = (),
    progress: bool = False,
) -> Finding:
    """What layers do, as figures, text and files (`finding.files`, by name). shuffle: what layers give and add in other
    positions, beside those of `base`; dense: what each layer reads; skip: which layers run.
    """
    opened = open_source(source, changes)
    check_options(method_of(opened.model, opened.name), layer=layer, orders=orders, base=base, point=points)
    subject = _subject(opened, data, images)
    other = None if base is None else _subject(open_source(base, changes), data, images)
    total = len(subject.indices) + (0 if other is None else len(other.indices))
    how: dict[str, Any] = {"layer": layer, "orders": orders, "base": other, "points": opened.points(points)}
    with counting(total, "analysing", quiet=not progress) as on_progress:
        return run_analysis(subject, **how, on_progress=on_progress)


def _subject(opened: Opened, data: Any, images: int | None) -> Subject:
    method, test = method_of(opened.model, opened.name), opened.data(data, "test")
    return Subject(opened.name, opened.model, test, choose(test, images, *IMAGES[method]))


def search(
    source: Source,
    data: Any = None,
    *,
    budget_ms: Budgets = None,
    budget_macs: Budgets = None,
    engine: str = "torch",
    scored: int = 60,
    pictures: int = 2000,
    seed: int = 0,
    threads: int | None = None,
    device: str | None = None,
    ray: bool = False,
    ray_address: str | None = None,
    changes: Iterable[str] = (),
    progress: bool = False,
) -> SearchResult:
    """The best points within budgets (5, (2, 5, 10), or "0.5x" of the full model) of measured time, of all that a model
    can run; or, of MACs, without a clock. About a dozen that spread over the costs become its published points.

    Up to `scored` points are scored on `pictures` validation samples (of a loader, on all); where there are more, the
    rest is guessed from these, and a promising dozen measured. A budget limits the 95th percentile of the time of one
    sample on the engine. What was measured of a run is kept in its search.json, for the next search. The run's own
    test data, if `data` does not say otherwise, give the new points the scores in its ladder.

    ray: points are scored by Ray tasks, on every CPU of this machine or of the cluster at `ray_address` (HOST:PORT).
    They are timed here, one at a time, as always.
    """
    if ray_address is not None and not ray:
        raise RecipeError("--ray-address is for --ray.", "Add --ray, or leave it out.")
    if budget_ms is not None and budget_macs is not None:
        raise RecipeError("both --budget-ms and --budget-macs are given.", "Give one of them.")
    targets = [*_targets("budget_ms", budget_ms), *_targets("budget_macs", budget_macs)]
    for name, value, least in (("scored", scored, 2), ("pictures", pictures, 1)):
        if isinstance(value, bool) or not least <= value <= 1_000_000:
            raise RecipeError(f"--{name} is {value}.", f"Give a whole number from {least} on.")
    opened = open_source(source, changes)
    model, where, count = opened.model, device_here(device, opened.model), threads or cores()
    if budget_macs is None:
        check_engine(model, engine, where)
    splits = opened.splits() if data is None else None
    held = at_most(opened.data(data, "val") if splits is None else splits.val, pictures)
    samples, given = number_of_samples(held), "data in hand" if splits is None else splits.fingerprint
    kept = None if opened.folder is None or splits is None else opened.folder / SEARCH
    tools = tools_of(model, held, engine=engine, threads=count, device=where)
    with ExitStack() as stack:
        if ray:
            from supple.cluster.ray_local import connect
            from supple.cluster.sweep import spread

            joined = stack.enter_context(connect(ray_address, cores()))
            tools = replace(tools, spread=spread(joined, model, held, where))
        found = Measurements(
            tools,
            Memory(opened.weights, kept),
            samples=samples,
            scored_on=f"{samples} samples of {given}",
            timed_on=f"{engine}, {some(count, 'thread')}, {machine(where)}",
            quiet=not progress,
        )
        result = search_points(model, found, targets, timed=budget_macs is None, scored=scored, seed=seed)
    result.ladder.data = some(samples, "validation sample")
    test = splits.test if splits is not None and opened.are_own(splits) else None
    return _published(opened, result, test, where, progress)


def _targets(kind: str, given: Budgets) -> list[Target]:
    """`5`, `0.5x`, or several: `2,5,10`, (2, 5, 10)."""
    if given is None:
        return []
    several = given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
    return [Target.parse(kind, str(one)) for one in several]


def _published(opened: Opened, result: SearchResult, test: Any, device: str, progress: bool) -> SearchResult:
    """Makes what was found the points of a model and of its run. Their times go into the ladder, and their scores on
    test data, if there are any at hand."""
    model, remarks, before = opened.model, [], set(opened.model.points)
    if model.publishes:
        checkpoint.publish(model, result.points, opened.folder)
    gone = {str(point) for point in before - {*model.points}}
    ladder = Ladder(row for row in model.ladder if row.point not in gone)
    for row in cost.profile_others(model, ladder):
        ladder.put(row)
    new = [point for point in model.points if not any(row.score is not None for row in ladder.where(point=str(point)))]
    if new and test is not None:
        total = number_of_samples(test)
        with placed(model, device), counting(total, "evaluating", quiet=not progress) as on_progress:
            for score in score_points(model, test, new, on_progress=on_progress):
                ladder.update(score.name, **score.facts())
    elif new:
        remarks.append(f"{some(len(new), 'point')} not scored on test data yet: supple evaluate {opened.name}")
    for row in (row for row in result.rows if row.p50_ms is not None):
        record(ladder, row)
    opened.keep(ladder)
    for bundle in [] if opened.folder is None else exports_of(opened.folder):
        if not bundle.asked and not has_all(bundle, model):
            remarks.append(f"{bundle.folder} lacks points that the run has now: remove it, and export again")
    return replace(result, published=model.publishes, remarks=tuple(remarks))


def report(run: Path_) -> Path:
    """Writes report.html and curve.png into a run folder."""
    return write_report(must_be_run(run))


# --- use it -----------------------------------------------------------------------------------------------------------


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
