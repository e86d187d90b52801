"""Many small trainings, some of which start from others: in order, a few at a time, each resumable."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Job = tuple[Callable[..., object], tuple[Any, ...], list[Path]]  # what, of what, and the runs that must be there


def supple(*words: str, log: Path | None = None) -> str:
    """Runs a verb; gives what it prints, or lets it print into a file."""
    command = [sys.executable, "-m", "supple", *words]
    if log is None:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    with log.open("a") as file:
        subprocess.run(command, check=True, stdout=file, stderr=file)
    return ""


def train(out: Path, recipe: str | Path, seed: int, *changes: str) -> Path:
    """Trains into a folder with one thread, if it has not finished."""
    if not finished(out):
        words = [str(recipe), f"train.seed={seed}", "train.threads=1", *changes]
        supple("train", *words, "--out", str(out), "--resume", log=out.parent / f"{out.name}.log")
        print(f"{out} finished", file=sys.stderr, flush=True)
    return out


def finished(run: Path) -> bool:
    return (run / "manifest.json").exists() and not (run / "state").exists()


def kept(path: Path, compute: Callable[[], Any]) -> Any:
    """What a file holds, or what is computed and then kept in it."""
    if not path.exists():
        path.write_text(json.dumps(compute()))
    return json.loads(path.read_text())


def do(jobs: Sequence[Job], workers: int) -> None:
    """Begins the jobs in order: whoever makes what another one needs comes before it. The first failure ends it all."""
    failed = threading.Event()

    def when_there(work: Callable[..., object], given: tuple[Any, ...], needed: list[Path]) -> None:
        while not all(map(finished, needed)):
            if failed.is_set():
                return
            time.sleep(1)
        try:
            work(*given)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(workers) as pool:
        for begun in [pool.submit(when_there, *job) for job in jobs]:
            begun.result()
