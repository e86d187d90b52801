"""The networks that come with supple: run folders inside the package, known by name wherever a run is taken.

They are only read. A verb that writes into a run (evaluate, bench, calibrate, export, ...) works on a copy of one,
`runs/NAME` below the current folder, and from then on that is what the name stands for there. Nothing here needs torch.
"""

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

from supple import files
from supple.errors import CheckpointError, SaveError
from supple.text import say

Path_ = str | os.PathLike[str]
FOLDER = Path(__file__).parent
COPIES = Path("runs")
WEIGHTS, MANIFEST = "model.safetensors", "manifest.json"
PARTS = (WEIGHTS, MANIFEST, "ladder.json", "policy.json")  # of a run that ships; the last one, if it was calibrated


def names() -> list[str]:
    """The networks that were installed."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{MANIFEST}"))


def folder_of(name: str) -> Path:
    """The folder in the package, only to be read."""
    if name not in names():
        cause = f"the network {name} is not among what was installed of supple."
        raise CheckpointError(cause, "Install supple again, or train a network of your own: supple demo --train.")
    return FOLDER / name


def located(run: Path_) -> Path_:
    """A run as it was given; one that ships and is given by its name: its copy, or else the folder in the package. A
    folder of the same name goes first."""
    name = os.fspath(run)
    if name not in names() or Path(name).exists():
        return run
    copy = _copy_of(name)
    return copy if copy.exists() else FOLDER / name


def own(run: Path_) -> Path:
    """The same to write into: a network that ships is copied first, which is said."""
    path = Path(located(run))
    if path.resolve().parent != FOLDER.resolve():
        return path
    copy = _copy_of(path.name)
    if not copy.exists():
        try:
            copied(path.name, copy)
        except SaveError as error:
            raise SaveError(error.cause, "Run this in a folder that may be written to.") from error
        say(f"{path.name} comes with supple and is only read: this works on a copy of it, {copy}")
    return copy


def copied(name: str, out: Path) -> Path:
    """A network that ships as a new run folder."""
    source = folder_of(name)
    with files.folder(out) as part:
        for there in (source / one for one in PARTS if (source / one).is_file()):
            shutil.copyfile(there, part / there.name)
    return out


def _copy_of(name: str) -> Path:
    """runs/NAME or, where that is something else, the first of runs/NAME-2, ... that is free or such a copy."""
    every = itertools.chain([COPIES / name], (COPIES / f"{name}-{number}" for number in itertools.count(2)))
    weights = _weights(FOLDER / name)
    return next(path for path in every if not path.exists() or (weights is not None and _weights(path) == weights))


def _weights(run: Path) -> Any:
    """The digest of a run's weights, as its manifest says; None: it cannot be read."""
    try:
        return files.read_json(run / MANIFEST, "")["files"][WEIGHTS]
    except (CheckpointError, LookupError, TypeError):
        return None
