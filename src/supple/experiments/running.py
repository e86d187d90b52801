"""Runs of an experiment: what is missing, one run after the other or several at a time, each resumable.

A run is a folder <runs>/<experiment>/<arm>-<seed>-<hash>: another recipe or another kind of processor gets another
folder, so that a run starts only from runs of its own kind. Every run is a process of its own (`supple reproduce NAME
--one ARM-SEED`), so that it has its own threads and can be stopped in time.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supple.errors import IMPORTED, CheckpointError, DataError, RecipeError, SuppleError, TrainError
from supple.experiments.declared import Experiment
from supple.experiments.results import Results, complete, path_of, write_result
from supple.machine import machine
from supple.recipe import Recipe, make_recipe
from supple.text import duration, say

RUNS = "SUPPLE_RUNS"  # the variable that names the folder of runs
TIDY_S = 60.0  # seconds that a run has to save itself when it is stopped


@dataclass(frozen=True)
class Job:
    """One run of an experiment."""

    name: str  # of the experiment; or the path of its file
    experiment: Experiment
    arm: str
    seed: int
    runs: Path
    results: Path

    @property
    def id(self) -> tuple[str, ...]:
        return self.name, self.label

    @property
    def label(self) -> str:
        return f"{self.arm}-{self.seed}"

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    @property
    def hash(self) -> str:
        return self.experiment.hash(self.arm, self.seed)

    @property
    def folder(self) -> Path:
        key = hashlib.sha256(f"{self.hash} {machine()}".encode()).hexdigest()
        return self.runs / self.stem / f"{self.label}-{key[:8]}"

    @property
    def result(self) -> Path:
        return path_of(self.results, self.stem, self.arm, self.seed)

    def needs(self) -> list["Job"]:
        pairs = self.experiment.needs(self.arm, self.seed)
        return [Job(self.name, self.experiment, *pair, self.runs, self.results) for pair in pairs]

    @property
    def trained(self) -> bool:
        """Whether there is a finished run; what is merged has no run of its own."""
        if self.experiment.arms[self.arm].pool is not None:
            return all(job.trained for job in self.needs())
        return (self.folder / "manifest.json").is_file() and not (self.folder / "state").exists()


# --- where ------------------------------------------------------------------------------------------------------------


def runs_folder(given: str | os.PathLike[str] | None) -> Path:
    """Where runs live: as given, or $SUPPLE_RUNS, or in the cache of the user; never in a git work tree."""
    named = given or os.environ.get(RUNS)
    folder = Path(named).expanduser() if named else Path.home() / ".cache" / "supple" / "runs"
    folder = folder.absolute()
    tree = next((above for above in (folder, *folder.parents) if (above / ".git").exists()), None)
    if tree is not None:
        cause = f"the folder of runs {folder} lies in the git work tree {tree}: weights do not belong there."
        raise RecipeError(cause, f"Choose another: --runs FOLDER, or set {RUNS}.")
    return folder


# --- what is missing --------------------------------------------------------------------------------------------------


def jobs_for(
    name: str, experiment: Experiment, claims: Iterable[str], results: Results, runs: Path, folder: Path
) -> list[Job]:
    """The runs that claims still need: seed after seed, and those that others start from first.

    A run is missing if it is compared and has no complete result, or if one that is missing starts from it and it is
    not here. The arms of a seed share one kind of processor: a seed of which anything is missing, or whose results
    come from two kinds, is completed on this one, and what others gave counts as missing.
    """
    compared = [arm for arm in experiment.arms_of(claims) if experiment.evaluated(arm)]
    wanted: dict[tuple[str, int], Job] = {}

    def want(arm: str, seed: int) -> None:
        job = Job(name, experiment, arm, seed, runs, folder)
        for other in job.needs():
            if not other.trained:
                want(other.arm, other.seed)
        wanted.setdefault((arm, seed), job)

    for group in by_seed(experiment, compared):
        done = {run: results[run] for run in group if complete(experiment, run[0], results.get(run))}
        kinds = {result["machine"] for result in done.values()}
        if len(done) < len(group) or len(kinds) > 1:
            for run in group:
                if run not in done or done[run]["machine"] != machine():
                    want(*run)
    return list(wanted.values())


def by_seed(experiment: Experiment, arms: Sequence[str]) -> list[list[tuple[str, int]]]:
    """The runs of arms, grouped by seed; what is made from a pool stands with the last of its members."""
    groups: dict[int, list[tuple[str, int]]] = {}
    for arm in arms:
        pool = experiment.arms[arm].pool
        for seed in experiment.seeds_of(arm):
            last = seed if pool is None else max(pool.pools[seed])
            groups.setdefault(last, []).append((arm, seed))
    return [groups[seed] for seed in sorted(groups)]


# --- one run ----------------------------------------------------------------------------------------------------------


def recipe_of(job: Job, start: Path | None) -> Recipe:
    """The checked recipe of a run that starts from a run or a file of weights."""
    document = job.experiment.document(job.arm)
    changes = [f"train.seed={job.seed}"]
    if start is not None:
        changes.append(f"train.init={start}")
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
    recipe = recipe_of(trained, None)
    must_know(skeleton(recipe), experiment.evaluated(job.arm), f"{job.name}: {job.arm}")


def run_one(job: Job, quiet: bool = False) -> None:
    """Trains one run, or makes it from others, evaluates it on all test images, and writes its result."""
    import torch

    from supple import checkpoint
    from supple.cost import profile
    from supple.experiments.evaluation import alone, ensemble, evaluate_arm, merged
    from supple.machine import versions
    from supple.training.build import data_of

    arm = job.experiment.arms[job.arm]
    folders = [job.folder] if arm.pool is None else [other.folder for other in job.needs()]
    minutes = 0.0
    if arm.pool is None:
        _train(job, quiet)
        minutes = checkpoint.read_manifest(job.folder)["seconds"] / 60
    names = job.experiment.evaluated(job.arm)
    splits = data_of(folders[0])
    models = [checkpoint.load(folder) for folder in folders]
    torch.set_num_threads(checkpoint.read_recipe(folders[0]).train.threads)
    way = merged if arm.merge else ensemble if arm.ensemble else alone
    costs = {row.point: {"macs": row.macs, "params": row.params} for row in profile(models[0])}
    points = evaluate_arm(models, way, splits, names, job.seed)
    write_result(
        job.result,
        {
            "experiment": job.stem,
            "arm": job.arm,
            "seed": job.seed,
            "recipe": job.hash,
            "minutes": round(minutes, 2),
            "machine": machine(),
            "versions": versions(),
            "test": _digest(splits.test),
            "costs": {name: cost for name, cost in costs.items() if name in names},
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
    before, weights = job.needs(), job.experiment.weights
    for other in before:
        if not other.trained:
            cause = f"{job.label} starts from {other.label}, which is not in {other.folder}."
            raise CheckpointError(cause, f"Run it first: supple reproduce {job.name} --one {other.label}.")
    recipe = recipe_of(job, before[0].folder if before else None if weights is None else _weights(weights))
    if job.experiment.arms[job.arm].prune is not None:
        recipe = _pruned(job, recipe)
    train(recipe, job.folder, resume=True, quiet=quiet)


def _weights(name: str) -> Path:
    """A file of weights, looked for as data are."""
    from supple.data._io.paths import find

    try:
        return find(name)
    except DataError as error:
        cause = f"there are no weights {name}: {error.cause}"
        raise DataError(cause, "Put the file into a folder of $SUPPLE_DATA; see docs/claims.md.") from None


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


# --- many runs --------------------------------------------------------------------------------------------------------

Start = Callable[[Job], None]


def run_jobs(jobs: Sequence[Job], start: Start, at_once: int = 1, stop: Callable[[], None] = lambda: None) -> None:
    """Starts the jobs in order, so many at a time, each when those that it needs are done. After a failure nothing new
    is started; what runs may finish, and the first error is raised. stop: ends what runs, when this one is stopped.
    """
    waiting, planned = list(jobs), {job.id for job in jobs}
    done: set[tuple[str, ...]] = set()
    running: dict[Future[None], Job] = {}
    failure: BaseException | None = None
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while waiting or running:
                for job in [*waiting]:
                    needed = {other.id for other in job.needs()} & planned
                    if failure is None and len(running) < at_once and needed <= done:
                        waiting.remove(job)
                        running[pool.submit(start, job)] = job
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job, error = running.pop(future), future.exception()
                    failure = failure or error
                    done |= set() if error else {job.id}
        except BaseException:
            stop()
            raise
    if failure is not None:
        raise failure


class Processes:
    """Starts each run as a process, ends it when its hours are over, and all of them when this one is stopped."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet, self.stopped = quiet, False
        self.alive: list[subprocess.Popen[bytes]] = []
        self.lock = threading.Lock()

    @contextmanager
    def passing_on(self) -> Iterator["Processes"]:
        """SIGTERM counts as Ctrl-C, so that runs are asked to save themselves before this process ends."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, before)

    def stop(self) -> None:
        """Asks every run to save itself and end."""
        with self.lock:
            self.stopped = True
            for process in self.alive:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)

    def start(self, job: Job) -> None:
        words = [sys.executable, "-m", "supple", *(word for module in IMPORTED for word in ("--import", module))]
        words += ["reproduce", job.name, "--one", job.label, "--runs", str(job.runs), "--results", str(job.results)]
        log = job.folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        left = job.experiment.hours * 3600 - spent(job.folder)
        if not self.quiet:
            say(f"{job.stem}: {job.label} (log: {log})")
        with log.open("a") as file:
            with self.lock:
                if self.stopped:
                    return
                # A session of its own: Ctrl-C reaches this process alone, which passes it on once.
                settings: dict[str, Any] = {"stdout": file, "stderr": file, "start_new_session": True}
                process = subprocess.Popen(words, env=_environment(job), **settings)
                self.alive.append(process)
            status = _wait(process, max(left, 0.0))
        if status is None:
            cause = f"{job.stem}: {job.label} was stopped after {duration(job.experiment.hours * 3600)}."
            cure = f"It is kept in {job.folder}. Make the regime smaller, or raise hours of the experiment."
            raise TrainError(cause, cure)
        if status and not self.stopped:
            raise TrainError(f"{job.stem}: {job.label} failed: {last_words(log)}", f"See {log}.")
        if not status and not self.quiet:
            say(f"{job.stem}: {job.label} finished")


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """The exit status; None: the time was over, and the process was ended."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(TIDY_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def _environment(job: Job) -> dict[str, str]:
    """As many threads as the recipe says, from the first import on."""
    pool = job.experiment.arms[job.arm].pool
    threads = job.experiment.document(job.arm if pool is None else pool.of)["train"]["threads"]
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def spent(folder: Path) -> float:
    """Seconds that an unfinished run has been trained for."""
    from supple.training.state import newest_state

    found = newest_state(folder) if (folder / "state").is_dir() else None
    return 0.0 if found is None else float(found[0].get("seconds", 0.0))


def last_words(log: Path) -> str:
    """The last error that a log tells, or its last line."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing."])[-1].removeprefix("error: ")


def parse_label(label: str, experiment: Experiment) -> tuple[str, int]:
    """`shuffle-0` as arm and seed."""
    arm, _, seed = label.rpartition("-")
    if arm not in experiment.arms or not seed.isdecimal() or int(seed) not in experiment.seeds_of(arm):
        known = [f"{name}-{one}" for name in experiment.arms for one in experiment.seeds_of(name)]
        raise SuppleError(f'there is no run "{label}".', f"There are: {', '.join(known[:30])}.")
    return arm, int(seed)
