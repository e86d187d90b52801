"""Which files are asked about, and those that got no answer. Nothing here imports torch."""

import glob
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supple.errors import DataError

STDIN = "-"


@dataclass(frozen=True)
class Refusal:
    """A file that got no answer."""

    file: str
    cause: str
    cure: str

    @classmethod
    def of(cls, file: Path, error: DataError) -> "Refusal":
        """Its file is named, if the error does not do so."""
        return cls(str(file), error.cause if str(file) in error.cause else f"{file}: {error.cause}", error.cure)


def gather(names: Iterable[str], endings: Iterable[str], kind: str) -> list[Path]:
    """The files named, those that patterns such as *.jpg fit, those directly inside the folders named, and for `-`
    those that stdin names line by line; in order. kind: of the files, in a word.
    """
    paths: list[Path] = []
    for name in names:
        if name == STDIN:
            paths += [Path(line.rstrip("\r\n")) for line in sys.stdin if line.strip()]
            continue
        try:
            paths += _fitting(name, endings, kind)
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{name[:80]} cannot be looked for: {said}.", "Give files, folders or patterns.") from None
    if not paths:
        raise DataError("stdin named no file.", "Give a path on each line.")
    return paths


def _fitting(name: str, endings: Iterable[str], kind: str) -> list[Path]:
    """The files that one name stands for."""
    path = Path(name)
    if path.is_dir():
        inside = sorted(file for file in path.iterdir() if file.suffix.lower() in endings)
        if not inside:
            raise DataError(f"the folder {path} holds no {kind}.", f"Known endings: {', '.join(sorted(endings))}.")
        return inside
    if glob.has_magic(name) and not path.exists():
        found = sorted(Path(one) for one in glob.glob(name, recursive=True))
        if not found:
            raise DataError(f"no file fits {name}.", "Check the pattern; ** looks into folders within folders.")
        return found
    return [path]
