"""One run of an experiment: trained or made from others, within its hours, evaluated on all test images."""

import hashlib
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supple.errors import CheckpointError, DataError, SuppleError, TrainError
from supple.experiments.declared import Weights
from supple.experiments.jobs import Job
from supple.experiments.results import EVALUATION, write_result
from supple.files import sha256, write
from supple.machine import machine
from supple.recipe import Recipe, make_recipe
from supple.text import duration

TICK_S = 10.0  # of the processor's time: how often a run writes down what it took, and looks whether that is all


def recipe_of(job: Job, start: Path | None = None, labeller: Path | None = None) -> Recipe:
    """The checked recipe of a run that starts from a run or a file of weights; labeller: a run, see copycat."""
    document = job.experiment.document(job.arm)
    changes = [f"{key}={job.seed}" for key in ("train.seed", *job.experiment.by_seed)]
    if start is not None:
        changes.append(f"train.init={start}")
    if labeller is not None:
        changes.append(f"copycat.labeller={labeller}")
    cache = (document.get("train") or {}).get("cache_features")
    if cache is not None:  # a folder beside the runs
        changes.append(f"train.cache_features={job.runs / job.stem / cache}")
    return make_recipe(document, changes, f"{job.name}: {job.arm}")


def check_recipes(job: Job) -> None:
    """Refuses, before anything runs, an arm that is not a valid recipe or has other points than those evaluated."""
    from supple.experiments.evaluation import must_know
    from supple.training.build import skeleton

    experiment = job.experiment
    pool = experiment.arms[job.arm].pool
    trained = job if pool is None else Job(job.name, experiment, pool.of, job.seed, job.runs, job.results)
    recipe = recipe_of(trained)
    must_know(skeleton(recipe), experiment.evaluated(job.arm), f"{job.name}: {job.arm}")


def check_files(job: Job) -> None:
    """Refuses, before anything runs, weights and images to copy that are not at hand."""
    from supple.data._io.paths import find

    arm, weights = job.experiment.arms[job.arm], job.experiment.weights
    if arm.pool is None:
        if weights is not None and arm.after is None:
            find_weights(weights)
        copied = job.experiment.document(job.arm).get("copycat")
        if copied is not None:
            find(str(copied["root"]))


def run_one(job: Job, quiet: bool = False) -> None:
    """Trains one run, or makes it from others, evaluates it on all test images, and writes its result."""
    import torch

    from supple import checkpoint
    from supple.cost import profile
    from supple.experiments.evaluation import alone, ensemble, evaluate_arm, merged
    from supple.machine import versions
    from supple.training.build import data_of

    arm = job.experiment.arms[job.arm]
    with counted(job) as seconds:
        folders = [job.folder] if arm.pool is None else [other.folder for other in job.needs()]
        if arm.pool is None:
            _train(job, quiet)
        names = job.experiment.evaluated(job.arm)
        splits = data_of(folders[0])
        models = [checkpoint.load(folder) for folder in folders]
        torch.set_num_threads(checkpoint.read_recipe(folders[0]).train.threads)
        way = merged if arm.merge else ensemble if arm.ensemble else alone
        rows = [row for row in profile(models[0]) if row.point in names]
        points = evaluate_arm(models, way, splits, names, job.seed)
        write_result(
            job.result,
            {
                "experiment": job.stem,
                "arm": job.arm,
                "seed": job.seed,
                "recipe": job.hash,
                "evaluation": EVALUATION,
                "minutes": round(seconds() / 60, 2),  # of the processor: training, validation and evaluation
                "machine": machine(),
                "versions": versions(),
                "test": _digest(splits.test),
                "costs": {
                    row.point: {"macs": row.macs, "macs_through": row.macs_through, "params": row.params}
                    for row in rows
                },
                "points": points,
            },
        )


def _digest(test: Any) -> str:
    """Of the labels of the test images in their order: what is compared image by image must have the same."""
    return hashlib.sha256(test.targets.numpy().tobytes()).hexdigest()[:16]


def _train(job: Job, quiet: bool) -> None:
    from supple.training.loop import train

    if job.trained:
        return
    for other in job.needs():
        if not other.trained:
            cause = f"{job.label} is made from {other.label}, which is not in {other.folder}."
            raise CheckpointError(cause, f"Run it first: supple reproduce {job.name} --one {other.label}.")
    arm, weights = job.experiment.arms[job.arm], job.experiment.weights
    start = job.beside(arm.after)
    if start is None and weights is not None:
        start = find_weights(weights)
    recipe = recipe_of(job, start, job.beside(job.experiment.labeller(job.arm)))
    if arm.prune is not None:
        recipe = _pruned(job, recipe)
    train(recipe, job.folder, resume=True, quiet=quiet)


def find_weights(wanted: Weights) -> Path:
    """A file of weights, looked for as data are, with the content that the experiment names."""
    from supple.data._io.paths import find

    cure = "Put the file into a folder of $SUPPLE_DATA; see docs/claims.md."
    try:
        path = find(wanted.file)
    except DataError as error:
        raise DataError(f"there are no weights {wanted.file}: {error.cause}", cure) from None
    if sha256(path) != wanted.sha256:
        raise DataError(f"{path} holds other weights than those that the experiment starts from (SHA-256).", cure)
    return path


def _pruned(job: Job, recipe: Recipe) -> Recipe:
    """The recipe of what is left of a searched run: cut now, if it has not been."""
    from supple import checkpoint
    from supple.surgery.prune import Plan, cut, save
    from supple.training.build import data_of

    ratio, searched = job.experiment.arms[job.arm].prune, job.needs()[0].folder
    out = job.folder.with_name(f"{job.folder.name}.cut")
    if not (out / checkpoint.MANIFEST).is_file():
        shutil.rmtree(out, ignore_errors=True)  # what an interrupted cut left
        save(out, cut(checkpoint.load(searched), ratio, None, Plan()).model, data_of(searched).test)
    kept = checkpoint.read_recipe(out).backbone
    settings = recipe.train.model_copy(update={"init": str(out)})
    return recipe.model_copy(update={"backbone": kept, "train": settings})


# --- time -------------------------------------------------------------------------------------------------------------


class OverLimit(TrainError):
    """A run has used up its hours. It is kept; the others go on."""

    def __init__(self, job: Job) -> None:
        cause = f"{job.stem}: {job.label} was stopped after {duration(job.limit_s)} of computing, its declared limit."
        super().__init__(cause, f"It is kept in {job.folder}. Make the regime smaller, or raise hours.")


def spent(job: Job) -> float:
    """Seconds of the processor that a run has taken so far, in whatever processes."""
    try:
        return float(job.folder.with_suffix(".seconds").read_text())
    except (OSError, ValueError):
        return 0.0


@contextmanager
def counted(job: Job) -> Iterator[Callable[[], float]]:
    """Adds to what a run has spent the processor's time of this process: neither a stopped process nor a busy machine
    uses it up. Gives a function that says, and writes down, how much it is.
    """
    before, began = spent(job), time.process_time()

    def so_far() -> float:
        seconds = before + time.process_time() - began
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        write(job.folder.with_suffix(".seconds"), f"{seconds:.1f}")
        return seconds

    try:
        yield so_far
    finally:
        so_far()


@contextmanager
def limited(job: Job, tick: float = TICK_S) -> Iterator[None]:
    """Interrupts what is inside, as Ctrl-C does, when the hours of a run are over. In the main thread only.

    SIGTERM counts as Ctrl-C, which is heard again: a shell's background process ignores it, and so would its children.
    """
    over = False

    def look(*_: object) -> None:
        nonlocal over
        if seconds() >= job.limit_s:
            over = True
            signal.raise_signal(signal.SIGINT)

    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: lambda *_: signal.raise_signal(signal.SIGINT),
    }
    timed = hasattr(signal, "setitimer")  # Windows has none: there, a run is not stopped
    handlers |= {signal.SIGPROF: look} if timed else {}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        with counted(job) as seconds:
            if timed:
                signal.setitimer(signal.ITIMER_PROF, tick, tick)
            yield
    except (KeyboardInterrupt, SuppleError) as error:
        if over and getattr(error, "status", 130) == 130:
            raise OverLimit(job) from None
        raise
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in old.items():
            signal.signal(number, handler)
