"""What is asked: the limits, the files, and those of them that got no answer. Nothing here imports torch."""

import glob
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from supple.data._io.paths import files_below
from supple.errors import DataError, PointError
from supple.text import size

STDIN = "-"
MOST = 100_000_000  # bytes that are read from stdin
# How files begin, by kind.
_FILES = {
    kind: re.compile(start, re.DOTALL)
    for kind, start in {
        "PNG": rb"\x89PNG\r\n\x1a\n",
        "JPEG": rb"\xff\xd8\xff",
        "WebP": rb"RIFF....WEBP",
        "BMP": rb"BM",
        "GIF": rb"GIF8[79]a",
        "TIFF": rb"II\*\0|MM\0\*|II\+\0|MM\0\+",
        "PPM": rb"P[1-6]\s",
        "WAV": rb"(RIFF|RF64)....WAVE",
        "FLAC": rb"fLaC",
        "Ogg": rb"OggS",
        "MP3": rb"ID3|\xff[\xe2-\xff]",
        "AIFF": rb"FORM....AIF[FC]",
        "AU": rb"\.snd",
    }.items()
}
_NETPBM = re.compile(rb"P[1-6]\s+(#[^\n]*\n\s*)*\d+\s+\d+\s")  # may be text throughout
_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Refusal:
    """A file that got no answer."""

    file: str
    cause: str
    cure: str

    @classmethod
    def of(cls, file: "Path | Piped", error: DataError) -> "Refusal":
        """Its file is named, if the error does not do so."""
        named = error.cause.startswith(f"{file} ") or (str(file) != STDIN and str(file) in error.cause)
        return cls(str(file), error.cause if named else f"{file}: {error.cause}", error.cure)


@dataclass(frozen=True)
class Piped:
    """A file that came through stdin; in messages it is named `-`."""

    content: bytes = field(repr=False)

    def __str__(self) -> str:
        return STDIN

    def read(self) -> bytes:
        return self.content


def gather(names: Iterable[str], endings: Iterable[str], kind: str) -> list[Path | Piped]:
    """The files named, those that patterns such as *.jpg fit, those inside the folders named and the folders within,
    and for `-` the file that stdin is, or those that it names line by line; in order. kind: of the files, in a word.
    """
    found: list[Path | Piped] = []
    for name in names:
        if name == STDIN:
            found += _piped()
            continue
        try:
            found += _fitting(name, tuple(endings), kind)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{name[:80]} cannot be looked for: {why}.", "Give files, folders or patterns.") from None
    return found


def _piped() -> list[Path] | list[Piped]:
    """What stdin is: the bytes of one file, known by how they begin, or names."""
    content = sys.stdin.buffer.read(MOST + 1)
    if len(content) > MOST:
        raise DataError(f"stdin holds more than {size(MOST)}.", "Give the names of files instead, or a smaller one.")
    binary = _CONTROL.search(content) is not None  # names are text, even where they begin as a file might
    if _NETPBM.match(content) or (binary and any(start.match(content) for start in _FILES.values())):
        return [Piped(content)]
    if binary:
        cause = f"stdin is neither names of files nor a file of a known kind ({', '.join(_FILES)})."
        raise DataError(cause, "Give one such file, or a path on each line.")
    paths = [Path(os.fsdecode(line)) for line in re.split(rb"\r?\n", content) if line.strip()]
    if not paths:
        raise DataError("stdin named no file.", "Give a path on each line.")
    return paths


def _fitting(name: str, endings: tuple[str, ...], kind: str) -> list[Path]:
    """The files that one name stands for."""
    path = Path(name)
    if glob.has_magic(name) and not path.exists():
        found = sorted(Path(one) for one in glob.glob(name, recursive=True))
        if not found:
            raise DataError(f"no file fits {name}.", "Check the pattern; ** looks into folders within folders.")
    else:
        found = [path]
    inside = {one: _below(one, endings) if one.is_dir() else [one] for one in found}
    if not any(inside.values()):
        empty = ", ".join(map(str, found[:3]))
        cure = f"Known endings: {', '.join(sorted(endings))}. Hidden files are not read."
        raise DataError(f"the folder {empty} holds no {kind}.", cure)
    return list(dict.fromkeys(file for files in inside.values() for file in files))


def _below(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Files with these endings in a folder and the folders within, by name; hidden ones are not looked at."""
    files, _ = files_below(folder, endings)
    return [folder.joinpath(*parts) for parts in sorted(files)]


def must_be_limits(**given: float | None) -> None:
    """Limits are numbers from 0; a confidence is at most 1."""
    for name, value in given.items():
        most = 1.0 if name == "min_confidence" else sys.float_info.max
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 <= value <= most):
            raise PointError(f"{name} is {value!r}.", f"Give a number from 0{' to 1' if most == 1 else ''}.")
        if name == "budget_macs" and value is not None and value < 1:
            cure = f'Give a share of the full model, budget_macs="{value:g}x", or a number of MACs, such as 2e6.'
            raise PointError(f"budget_macs is {value!r}, less than one MAC.", cure)
