"""The verb: runs what claims need, judges them from the results, and writes the page."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supple import files
from supple.errors import CheckpointError, RecipeError
from supple.experiments.declared import chosen, experiment_files, load_experiment, number, with_seeds
from supple.experiments.jobs import Job, jobs_for, parse_label, runs_folder
from supple.experiments.page import PICTURE, Row, picture, rows_of, terminal, updated
from supple.experiments.processes import Processes, Start, run_jobs
from supple.experiments.results import Results, read_results
from supple.experiments.running import check_files, check_recipes, limited, run_one
from supple.machine import machine
from supple.text import say

Path_ = str | os.PathLike[str]


@dataclass(frozen=True)
class Reproduction:
    """What the results say of the claims that were asked for."""

    rows: tuple[Row, ...]
    ran: tuple[str, ...]  # runs that were made now
    stopped: tuple[str, ...]  # of runs whose hours were over before they were finished
    page: Path | None  # that the rows were written to

    def __str__(self) -> str:
        return "\n".join([terminal(self.rows), *self.stopped])

    def to_json(self) -> dict[str, Any]:
        page = None if self.page is None else str(self.page)
        rows = [row.to_json() for row in self.rows]
        return {"claims": rows, "ran": list(self.ran), "stopped": list(self.stopped), "page": page}


def reproduce(
    names: str | Sequence[Path_] = (),
    *,
    claims: str | None = None,
    everything: bool = False,
    jobs: int = 1,
    runs: Path_ | None = None,
    results: Path_ | None = None,
    page: Path_ | None = None,
    run: bool = True,
    progress: bool = False,
    seeds: Sequence[int] | None = None,
    start: Start | None = None,
) -> Reproduction:
    """Decides claims of the papers by declared experiments: `reproduce("layershuffle")`, or `claims="C16-C21"`.

    What has no result yet is run, so many `jobs` at a time, in `runs` ($SUPPLE_RUNS, or ~/.cache/supple/runs); a call
    that was interrupted goes on. run=False: only the results that are there are read. results, page: where they are
    kept (benchmarks/results) and told (docs/claims.md); of a checkout, its own. Other results are told on no page,
    unless one is named. seeds: others than the declared ones, as many; their verdicts are told on no page. start: what
    makes one run; None: a process for each.
    """
    given = [names] if isinstance(names, (str, os.PathLike)) else [*names]
    picked = chosen([os.fspath(name) for name in given], claims, everything)
    if seeds is not None:
        picked = [(name, with_seeds(one, seeds), wanted) for name, one, wanted in picked]
    kept, told = _folder(results), _page(page, results)
    ran: list[str] = []
    stopped: list[str] = []
    if run:
        if isinstance(jobs, bool) or not 1 <= jobs <= 256:
            raise RecipeError(f"jobs is {jobs}.", "Give a number from 1 to 256.")
        where = runs_folder(runs)
        named = {Path(name).stem: str(name) for name in given}
        missing: list[Job] = []
        for name, experiment, wanted in picked:
            there, stale = read_results(kept, name, experiment)
            if stale and progress:
                say(f"{name}: made by another recipe, and run again if needed: {', '.join(stale)}")
            needed = jobs_for(named.get(name, name), experiment, wanted, there, where, kept)
            elsewhere = [job.label for job in needed if (job.arm, job.seed) in there and _is_foreign(there, job)]
            if elsewhere and progress:
                say(f"{name}: made on another kind of processor, and run again: {', '.join(elsewhere)}")
            missing += needed
        for job in {(job.name, job.arm): job for job in missing}.values():
            check_recipes(job)
            check_files(job)
        with Processes(quiet=not progress).passing_on() as processes:
            done, over = run_jobs(missing, start or processes.start, jobs, processes.stop)
        ran, stopped = [f"{job.stem}/{job.label}" for job in done], [error.cause for error in over]
    rows = [row for name, experiment, wanted in picked for row in rows_of(name, experiment, kept, wanted)]
    rows.sort(key=lambda row: number(row.claim))
    write_page(told, kept)
    return Reproduction(tuple(rows), tuple(ran), tuple(stopped), told)


def _is_foreign(results: Results, job: Job) -> bool:
    return bool(results[job.arm, job.seed]["machine"] != machine())


def run_here(
    name: str,
    label: str,
    runs: Path_ | None,
    results: Path_ | None,
    quiet: bool = False,
    seeds: Sequence[int] | None = None,
) -> Path:
    """One run of an experiment, in this process; gives the file of its result."""
    experiment = load_experiment(name)
    if seeds is not None:
        experiment = with_seeds(experiment, seeds)
    job = Job(name, experiment, *parse_label(label, experiment), runs_folder(runs), _folder(results))
    with limited(job):
        run_one(job, quiet)
    return job.result


# --- the page ---------------------------------------------------------------------------------------------------------


def all_rows(results: Path) -> list[Row]:
    """Of every experiment that comes with supple."""
    return [row for name in experiment_files() for row in rows_of(name, load_experiment(name), results)]


def write_page(page: Path | None, results: Path) -> None:
    """The rows of all experiments between the markers of a page, and the picture beside it."""
    if page is None:
        return
    rows = all_rows(results)
    text = _read(page)
    new = updated(text, rows, str(page))
    if new != text:
        files.write(page, new)
    drawn = picture(rows)
    if drawn is not None and (page.parent / PICTURE).parent.is_dir():
        files.write(page.parent / PICTURE, drawn)


def check_page(page: Path_ | None = None, results: Path_ | None = None) -> Path:
    """Refuses a page that says other than the results give."""
    told = _page(page, results)
    if told is None:
        raise RecipeError("there is no docs/claims.md here.", "Name the page: --page FILE.")
    text = _read(told)
    if updated(text, all_rows(_folder(results)), str(told)) != text:
        cause = f"{told} differs from what the results give."
        raise CheckpointError(cause, "Write it again: supple reproduce --all --no-run.")
    return told


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{page} cannot be read: {error.strerror}.", "Name another: --page FILE.") from None


def _checkout() -> Path:
    """The root of the checkout that the experiments lie in; where they are installed, this folder."""
    root = Path(__file__).parents[3]
    return root if (root / "docs" / "claims.md").is_file() else Path.cwd()


def _folder(results: Path_ | None) -> Path:
    return _checkout() / "benchmarks" / "results" if results is None else Path(results)


def _page(page: Path_ | None, results: Path_ | None) -> Path | None:
    """The page of a checkout tells its own results alone."""
    if page is not None or results is not None:
        return None if page is None else Path(page)
    usual = _checkout() / "docs" / "claims.md"
    return usual if usual.is_file() else None
