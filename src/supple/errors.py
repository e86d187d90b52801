"""What a person is told when something is wrong: one line of cause, one line of cure.

`status` is the exit status of the command line: 2 for a mistake that the user can correct, 1 for a failure.
"""

from collections.abc import Mapping
from typing import Any

IMPORTED: list[str] = []  # modules of the user's that --import named; a run remembers them as its `imports`


def import_cure(manifest: Mapping[str, Any] | None = None) -> str:
    """What to do about a name that a module of the user's brings; a manifest may say which module."""
    modules = (manifest or {}).get("imports") or ["MODULE"]
    return f"If a module of yours adds it, name that: {' '.join(f'--import {module}' for module in modules)}."


class SuppleError(Exception):
    status = 2

    def __init__(self, cause: str, cure: str = "") -> None:
        super().__init__(f"{cause}\n{cure}" if cure else cause)
        self.cause = cause
        self.cure = cure


class PointError(SuppleError):
    """A point this model cannot run, or text that is not a point."""


class RecipeError(SuppleError):
    """A recipe with an unknown key, an unknown name or a value out of range."""


class DataError(SuppleError):
    """A data set, image or folder that cannot be read."""


class TooLargeError(DataError):
    """A file that is larger, by its header, than is decoded."""


class NotFiniteError(DataError):
    """Values that are not numbers (NaN), or infinite."""


class CheckpointError(SuppleError):
    """A run folder that is missing, unfinished, altered or not ours."""


class MergeError(SuppleError):
    """Runs that do not go together, or a plan for merging them that cannot be followed."""


class LateError(SuppleError):
    """A deadline that nothing can meet, where that was declared an error."""


class SaveError(SuppleError):
    """A file could not be written; what was there before is untouched."""

    status = 1


class TrainError(SuppleError):
    """Training cannot go on (for example, the loss is not a number)."""

    status = 1


class ClusterError(SuppleError):
    """Nodes that do not answer, do not fit, or cannot be started."""

    status = 1
