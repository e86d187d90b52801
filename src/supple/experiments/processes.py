"""Many runs of experiments, several at a time if wanted: each a process of its own (`supple reproduce NAME --one
ARM-SEED`), so that it has its own threads and can be stopped.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supple.errors import IMPORTED, TrainError
from supple.experiments.jobs import Job
from supple.experiments.running import OverLimit, spent
from supple.text import say

TIDY_S = 60.0  # seconds that a run has to save itself when it is stopped
Start = Callable[[Job], None]


def run_jobs(
    jobs: Sequence[Job], start: Start, at_once: int = 1, stop: Callable[[], None] = lambda: None
) -> tuple[list[Job], list[OverLimit]]:
    """Starts the jobs in order, so many at a time, each when those that it needs are done; gives those that ran and,
    of those whose hours were over, the errors. After another failure nothing new is started; what runs may finish, and
    the first error is raised. stop: ends what runs, when this one is stopped.
    """
    waiting, planned = list(jobs), {job.id for job in jobs}
    done: list[Job] = []
    over: list[OverLimit] = []
    running: dict[Future[None], Job] = {}
    failure: BaseException | None = None
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while waiting or running:
                for job in [*waiting]:
                    needed = {other.id for other in job.needs()} & planned
                    if failure is None and len(running) < at_once and needed <= {other.id for other in done}:
                        waiting.remove(job)
                        running[pool.submit(start, job)] = job
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job, error = running.pop(future), future.exception()
                    if error is None:
                        done.append(job)
                    elif isinstance(error, OverLimit):
                        over.append(error)
                    else:
                        failure = failure or error
        except BaseException:
            stop()
            raise
    if failure is not None:
        raise failure
    return done, over


class Processes:
    """Starts each run as a process, and ends all of them when this one is stopped."""

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
        """Asks every run to save itself and end, and ends what does not."""
        with self.lock:
            self.stopped = True
            for process in self.alive:
                process.terminate()
        for process in self.alive:
            try:
                process.wait(TIDY_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def start(self, job: Job) -> None:
        seeds = ",".join(map(str, job.experiment.seeds))
        words = [sys.executable, "-m", "supple", *(word for module in IMPORTED for word in ("--import", module))]
        words += ["reproduce", job.name, "--one", job.label, "--seeds", seeds]
        words += ["--runs", str(job.runs), "--results", str(job.results)]
        log = job.folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        if spent(job) >= job.limit_s:
            raise OverLimit(job)
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
            status = process.wait()
        if status and spent(job) >= job.limit_s:
            raise OverLimit(job)
        if status and not self.stopped:
            raise TrainError(f"{job.stem}: {job.label} failed: {last_words(log)}", f"See {log}.")
        if not status and not self.quiet:
            say(f"{job.stem}: {job.label} finished")


def _environment(job: Job) -> dict[str, str]:
    """As many threads as the recipe says, from the first import on."""
    pool = job.experiment.arms[job.arm].pool
    threads = job.experiment.document(job.arm if pool is None else pool.of)["train"]["threads"]
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def last_words(log: Path) -> str:
    """The last error that a log tells, or its last line."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing."])[-1].removeprefix("error: ")
