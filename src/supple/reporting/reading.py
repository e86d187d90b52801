"""What a run folder holds, read for its report: every part may be missing."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from supple.errors import CheckpointError
from supple.files import read_json
from supple.ladder import Ladder
from supple.policy.policy import POLICY, read_policy


@dataclass(frozen=True)
class Run:
    """What a run folder holds; None or empty: not there."""

    name: str
    manifest: dict[str, Any] | None
    ladder: Ladder
    metrics: list[dict[str, Any]]
    broken: int  # lines of metrics.jsonl that could not be read
    policy: dict[str, Any] | None = None

    @property
    def stale(self) -> bool:
        """Whether the policy was calibrated for other weights than the run's."""
        files = (self.manifest or {}).get("files")
        known_weights = files.get("model.safetensors") if isinstance(files, dict) else None
        return self.policy is not None and known_weights not in (None, self.policy.get("weights"))


def read_run(folder: Path) -> Run:
    parts = ("manifest.json", "ladder.json", "metrics.jsonl")
    if not any((folder / part).is_file() for part in parts):
        what = "holds none of " + ", ".join(parts) if folder.is_dir() else "does not exist"
        raise CheckpointError(f"{folder} is not a run folder: it {what}.", "Give the folder that supple train wrote.")
    manifest = _document(folder / "manifest.json", "Restore it from a copy, or train again: supple train RECIPE.")
    metrics, broken = _metrics(folder / "metrics.jsonl")
    ladder, policy = _ladder(folder / "ladder.json"), _policy(folder, manifest)
    return Run(folder.resolve().name, manifest, ladder, metrics, broken, policy)


def _document(path: Path, cure: str) -> dict[str, Any] | None:
    return read_json(path, cure) if path.is_file() else None


def _ladder(path: Path) -> Ladder:
    cure = "Delete it and measure again: supple evaluate RUN."
    document = _document(path, cure)
    if document is None:
        return Ladder()
    try:
        return Ladder.from_json(document)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.cause}", cure) from None


def _policy(folder: Path, manifest: dict[str, Any] | None) -> dict[str, Any] | None:
    found = read_policy(folder, manifest)
    if found is None:
        return None
    try:
        _check_policy(found[1])
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        cure = f"Delete it and calibrate again: supple calibrate {folder} --budget-macs 0.5x."
        raise CheckpointError(f"{folder / POLICY}: this is not a valid policy ({error}).", cure) from None
    return found[1]


def _check_policy(document: dict[str, Any]) -> None:
    """Refuses a policy whose figures are not numbers."""
    figures = [document["full_cost"]]
    if document["unit"] == "ms":
        figures.append(document["threads"])
        str(document["machine"])
    for half in ("expected", "achieved"):
        names = ("n", "cost", "cost_error", "accuracy", "full_accuracy", "drop_error")
        figures += [document[half][name] for name in names]
    for row in document["exits"]:
        figures += [row[name] for name in ("temperature", "accuracy", "expected", "achieved")]
        figures += [row[name] for name in ("cost", "threshold") if row[name] is not None]
        texts = (row["point"], row["dominated_by"] or "")
        if not all(isinstance(text, str) for text in texts) or not isinstance(row["looked_at"], bool):
            raise ValueError(f"{row!r}")
    for counts in document["classes"]["stopped"]:
        if len(counts) != len(document["points"]) or min(counts) < 0:
            raise ValueError(f"{counts!r} images per point")
    if not all(known(figure) for figure in figures) or not document["full_cost"] > 0:
        raise ValueError("a figure is not a number")
    if not isinstance(document["remark"], str) or document["unit"] not in ("macs", "ms"):
        raise ValueError(f"unit {document['unit']!r}")
    str(document["target"]["kind"]), str(document["target"]["given"]), list(document["classes"]["names"])


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


def known(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)
