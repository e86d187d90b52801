"""Verbs that say what a model costs and scores, and why: profile, evaluate, bench, analyse, search, report."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from supple import checkpoint, cost
from supple.analysis import IMAGES, check_options, method_of
from supple.analysis import analyse as run_analysis
from supple.analysis.finding import Finding, Subject, choose
from supple.checkpoint import Source
from supple.data.loaders import at_most
from supple.device import device_here, device_named, placed
from supple.errors import RecipeError
from supple.exporting.check import scores_in_bf16
from supple.exporting.write import has_all
from supple.inference.bundle import is_bundle
from supple.inference.compare import bench_engines, record, time_model
from supple.inference.select import exports_of
from supple.ladder import Ladder
from supple.machine import cores, machine
from supple.model import FlexibleModel
from supple.opening import Opened, Path_, Points, must_be_run, number_of_samples, open_any, open_source
from supple.point import Point, as_point
from supple.policy.fitting import Target
from supple.progress import counting
from supple.reporting import write_report
from supple.scoring import draw, evaluate_group
from supple.scoring import evaluate as score_points
from supple.searching.measure import Measurements, check_engine, tools_of
from supple.searching.memory import SEARCH, Memory
from supple.searching.search import SearchResult
from supple.searching.search import search as search_points
from supple.text import some

Budgets = float | str | Sequence[float | str] | None  # 5, "0.5x" of the full model, or several


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
