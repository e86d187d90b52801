"""Kills a training at random moments, resumes it, and compares the weights with an uninterrupted run, bit by bit.

    python benchmarks/kill_resume.py --kills 20

Every trial kills the process with SIGKILL once or twice at a random moment between its start and its usual end; saves
happen several times a second, so that some kills fall into a save.
"""

import argparse
import hashlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHANGES = ("train.save_every_s=0.05", "train.threads=1", "data.limit=512", "train.schedule=plateau")


def command(folder: Path, what: list[str]) -> list[str]:
    return [sys.executable, "-m", "supple", "train", *what, *CHANGES, "--out", str(folder), "--resume"]


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def start(folder: Path, what: list[str]) -> subprocess.Popen:
    """Starts (or resumes) the training and returns once it has taken hold of its folder."""
    (folder / ".lock").unlink(missing_ok=True)  # what a killed process left
    process = subprocess.Popen(command(folder, what), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (folder / ".lock").exists():
        time.sleep(0.01)
    return process


def finish(folder: Path, what: list[str]) -> float:
    """Lets the training end; the seconds since it took hold of its folder."""
    process = start(folder, what)
    begun = time.monotonic()
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"resume failed with status {process.returncode}:\n{said}")
    return time.monotonic() - begun


def kill_at(folder: Path, what: list[str], seconds: float) -> str:
    """Kills the training so many seconds after it took hold of its folder, and says where that was."""
    process = start(folder, what)
    try:
        process.communicate(timeout=seconds)
        return "after the end"
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    if (folder / "manifest.json").exists():
        return "while finishing"
    states = sorted((folder / "state").glob("epoch-*.json"))
    halves = any((folder / "state").glob(".*"))  # a temporary file: the kill fell into a save
    return f"{states[-1].stem if states else 'before the first save'}{', during a save' if halves else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--recipe", default="recipes/pocket/digits.yaml")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=8)
    given = parser.parse_args()
    rng, what = random.Random(given.seed), [given.recipe, f"train.epochs={given.epochs}"]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        usual = finish(root / "whole", what)
        wanted = digest(root / "whole")
        print(f"uninterrupted: {usual:.1f} s, {wanted[:16]}", flush=True)
        equal = 0
        for trial in range(given.kills):
            folder = root / f"trial-{trial}"
            moments = [rng.uniform(0, 1) * usual for _ in range(1 + trial % 2)]
            where = [kill_at(folder, what, moment) for moment in moments]
            while where[0] == "after the end":  # the uninterrupted run was disturbed: kill earlier
                shutil.rmtree(folder)
                moments[0] /= 2
                where = [kill_at(folder, what, moments[0])]
            finish(folder, what)
            same = digest(folder) == wanted
            equal += same
            print(f"{trial + 1:3}: killed {'; '.join(where)}: {'bit-identical' if same else 'DIFFERENT'}", flush=True)
    print(f"{equal} of {given.kills} end bit-identical")
    return 0 if equal == given.kills else 1


if __name__ == "__main__":
    sys.exit(main())
