"""The runs of an experiment: where each lies, and which are missing.

A run is a folder <runs>/<experiment>/<arm>-<seed>-<hash>: another recipe or another kind of processor gets another
folder, so that a run starts only from runs of its own kind. Beside it lie <...>.log and <...>.seconds, the time of the
processor that it has taken so far.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supple.errors import RecipeError, SuppleError
from supple.experiments.declared import Experiment
from supple.experiments.results import Results, complete, path_of
from supple.machine import machine

RUNS = "SUPPLE_RUNS"  # the variable that names the folder of runs


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

    def beside(self, arm: str | None) -> Path | None:
        """The run of another arm that this one is made from."""
        if arm is None:
            return None
        return Job(self.name, self.experiment, *self.experiment.run_of(arm, self.seed), self.runs, self.results).folder

    @property
    def limit_s(self) -> float:
        return self.experiment.hours * 3600

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
    not here. The arms of a seed share one kind of processor, and so do seeds that a merge ties: where anything of these
    is missing, or results come from two kinds, all is completed on this one, and what others gave counts as missing.
    """
    compared = [arm for arm in experiment.arms_of(claims) if experiment.evaluated(arm)]
    wanted: dict[tuple[str, int], Job] = {}

    def want(arm: str, seed: int) -> None:
        job = Job(name, experiment, arm, seed, runs, folder)
        for other in job.needs():
            if not other.trained:
                want(other.arm, other.seed)
        wanted.setdefault((arm, seed), job)

    order = [(arm, seed) for arm in compared for seed in experiment.seeds_of(arm)]
    order.sort(key=lambda run: max(_seeds(experiment, *run)))  # what is merged comes with the last of its sources
    lacking: set[tuple[str, int]] = set()
    for seeds in tied(_seeds(experiment, *run) for run in order):
        group = [run for run in order if run[1] in seeds]
        done = {run: results[run] for run in group if complete(experiment, run[0], results.get(run))}
        if len(done) < len(group) or len({result["machine"] for result in done.values()}) > 1:
            lacking |= {run for run in group if run not in done or done[run]["machine"] != machine()}
    for run in order:
        if run in lacking:
            want(*run)
    return list(wanted.values())


def _seeds(experiment: Experiment, arm: str, seed: int) -> set[int]:
    """The seeds that a run is about: its own, and those of the runs that it is merged from."""
    pool = experiment.arms[arm].pool
    return {seed} if pool is None else {seed, *pool.pools[seed]}


def tied(sets: Iterable[set[int]]) -> list[set[int]]:
    """Sets that share a member, joined."""
    found: list[set[int]] = []
    for one in sets:
        apart = [other for other in found if not other & one]
        found = [*apart, one.union(*(other for other in found if other & one))]
    return found


def parse_label(label: str, experiment: Experiment) -> tuple[str, int]:
    """`shuffle-0` as arm and seed."""
    arm, _, seed = label.rpartition("-")
    if arm not in experiment.arms or not seed.isdecimal() or int(seed) not in experiment.seeds_of(arm):
        known = [f"{name}-{one}" for name in experiment.arms for one in experiment.seeds_of(name)]
        raise SuppleError(f'there is no run "{label}".', f"There are: {', '.join(known[:30])}.")
    return arm, int(seed)
