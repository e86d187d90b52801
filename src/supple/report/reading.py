"""What a run folder holds, read for its report: every part may be missing."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supple.errors import CheckpointError
from supple.ladder import Ladder


@dataclass(frozen=True)
class Run:
    """What a run folder holds; None or empty: not there."""

    name: str
    manifest: dict[str, Any] | None
    ladder: Ladder | None
    metrics: list[dict[str, Any]]
    broken: int  # lines of metrics.jsonl that could not be read

    @property
    def scored(self) -> bool:
        return self.ladder is not None and any(known(row.score) for row in self.ladder)

    @property
    def timed(self) -> bool:
        return self.ladder is not None and any(known(row.p50_ms) for row in self.ladder)


def read_run(folder: Path) -> Run:
    parts = ("manifest.json", "ladder.json", "metrics.jsonl")
    if not any((folder / part).is_file() for part in parts):
        what = "holds none of " + ", ".join(parts) if folder.is_dir() else "is no folder"
        raise CheckpointError(f"{folder} is no run: it {what}.", "Give the folder that supple train wrote.")
    manifest = _document(folder / "manifest.json", "Restore it from a copy, or train again: supple train RECIPE.")
    document = _document(folder / "ladder.json", "Delete it and measure again: supple evaluate RUN.")
    metrics, broken = _metrics(folder / "metrics.jsonl")
    ladder = None if document is None else Ladder.from_json(document)
    _check(ladder, folder / "ladder.json")
    return Run(folder.resolve().name, manifest, ladder, metrics, broken)


def _document(path: Path, cure: str) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}).", cure) from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds a {type(document).__name__}, not named values.", cure)
    return document


def _check(ladder: Ladder | None, path: Path) -> None:
    """Refuses a ladder whose figures are no figures, before a sum trips over them."""
    figures = ("macs", "macs_worst", "params", "p50_ms", "p95_ms", "score", "deviation", "n")
    for row in ladder or ():
        for name in figures:
            value = getattr(row, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                cause = f'{path}: {name} of point "{row.point}" is {value!r}, not a number.'
                raise CheckpointError(cause, "Delete it and measure again: supple evaluate RUN.")


def _metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The epochs in order, and how many lines were broken: a killed run leaves half a line, a resumed one goes on."""
    epochs: dict[int, dict[str, Any]] = {}
    broken = 0
    if not path.is_file():
        return [], 0
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            entry = json.loads(line) if line.strip() else None
        except ValueError:
            entry = line
        if isinstance(entry, dict) and isinstance(entry.get("epoch"), int):
            epochs[entry["epoch"]] = entry  # an epoch repeated after a resume replaces the one before
        elif entry is not None:
            broken += 1
    return [epochs[epoch] for epoch in sorted(epochs)], broken


def known(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
