"""Where data is looked for, and the files below a folder or in a zip. They are only read, never written to."""

import csv
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from supple.errors import DataError


def search_paths() -> list[Path]:
    """The folders a relative name is looked for in: here, those of $SUPPLE_DATA (separated as in PATH), data."""
    named = filter(None, os.environ.get("SUPPLE_DATA", "").split(os.pathsep))
    return [Path("."), *(Path(folder).expanduser() for folder in named), Path("data")]


def wanted(root: str | None, name: str, cure: str) -> Path:
    """What data.root stands for, which the data set cannot do without."""
    if root is None:
        raise DataError(f'data set "{name}" needs data.root.', cure)
    return find(root)


def find(root: str) -> Path:
    """The existing file or folder that `root` means: as it stands, or below a folder of $SUPPLE_DATA or data."""
    given = Path(root).expanduser()
    candidates = [given] if given.is_absolute() else [place / given for place in search_paths()]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise DataError(
        f"no data at {root!r}; looked at: {looked}.", "Set data.root, or SUPPLE_DATA to the folder it is in."
    )


class Readable(Protocol):
    """A file that is not on disk by itself, such as a member of a zip; `str()` names it in messages."""

    def read(self) -> bytes: ...


Source = bytes | str | Path | Readable


def read_bytes(source: Source) -> bytes:
    """All bytes of a source of any kind."""
    if isinstance(source, bytes):
        return source
    return Path(source).read_bytes() if isinstance(source, str | Path) else source.read()


MAX_MEMBER = 100_000_000  # bytes
ENCRYPTED = 0x1  # flag bit


@dataclass(frozen=True)
class Member:
    """One file of a zip. It holds no open file, so threads and forked processes may read at the same time."""

    archive: Path
    name: str
    offset: int
    stored: int  # bytes in the archive
    size: int  # bytes of the file
    deflated: bool
    crc: int

    def __str__(self) -> str:
        return f"{self.archive.name}/{self.name}"

    def read(self) -> bytes:
        try:
            with open(self.archive, "rb") as file:
                file.seek(self.offset)
                head = file.read(30)
                # The local header repeats the name, but its extra field may have another length than the directory's.
                skip = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
                file.seek(skip, 1)
                data = file.read(self.stored)
            if self.deflated:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, self.size + 1)
        except (OSError, zlib.error) as problem:
            raise DataError(f"{self} cannot be read: {problem}.", "Copy or make the zip again.") from None
        if head[:4] != b"PK\x03\x04" or len(data) != self.size or zlib.crc32(data) != self.crc:
            raise DataError(f"{self} is damaged: its bytes do not match the zip's checksum.", "Make the zip again.")
        return data


def members(archive: Path) -> tuple[list[Member], list[str]]:
    """The files and the folders of a zip, as its directory lists them."""
    try:
        with zipfile.ZipFile(archive) as directory:
            entries = directory.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError) as problem:
        raise DataError(
            f"{archive} is not a readable zip: {problem}.", "Give a folder of class folders or a zip of one."
        ) from None
    return [_member(archive, e) for e in entries if not e.is_dir()], [e.filename for e in entries if e.is_dir()]


def _member(archive: Path, entry: zipfile.ZipInfo) -> Member:
    where = f"{archive}: {entry.filename}"
    if entry.file_size > MAX_MEMBER or entry.compress_size > MAX_MEMBER:
        size = max(entry.file_size, entry.compress_size)
        raise DataError(
            f"{where} declares {size:,} bytes; the limit is {MAX_MEMBER:,}.",
            "Remove it from the zip, or unpack the zip.",
        )
    if entry.flag_bits & ENCRYPTED:
        raise DataError(f"{where} is encrypted.", "Make the zip without a password.")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{where} uses compression method {entry.compress_type}.", "Use a plain (deflate) zip.")
    deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    return Member(
        archive, entry.filename, entry.header_offset, entry.compress_size, entry.file_size, deflated, entry.CRC
    )


Files = dict[tuple[str, ...], Source]  # by path below the root, in parts
Folders = set[tuple[str, ...]]


def files_below(root: Path, endings: tuple[str, ...]) -> tuple[Files, Folders]:
    """Files whose names end so, and all folders; hidden ones and `__MACOSX` are not looked at.

    A table of files (.csv) is taken for the class folders that it describes.
    """
    if root.is_dir():
        return _in_folder(root, endings)
    return _in_table(root, endings) if root.suffix.lower() == ".csv" else _in_zip(root, endings)


def unwrapped(files: Files, folders: Folders) -> tuple[Files, Folders]:
    """Drop outer folders that hold everything, as in a zip of `photos/` with `photos/cat/1.jpg` inside."""
    while files and len({path[0] for path in [*files, *folders]}) == 1 and all(len(path) > 2 for path in files):
        files = {path[1:]: source for path, source in files.items()}
        folders = {path[1:] for path in folders if len(path) > 1}
    return files, folders


def _in_folder(root: Path, endings: tuple[str, ...]) -> tuple[Files, Folders]:
    files: Files = {}
    folders: Folders = set()
    seen: set[str] = set()  # a link to a folder above would never end
    for where, below, names in os.walk(root, followlinks=True):
        real = os.path.realpath(where)
        below[:] = [] if real in seen else [name for name in below if _looked_at(name)]
        if real in seen:
            continue
        seen.add(real)
        path = Path(where).relative_to(root).parts
        folders.update((*path, name) for name in below)
        wanted = (name for name in names if _looked_at(name) and name.lower().endswith(endings))
        files.update({(*path, name): Path(where, name) for name in wanted})
    return files, folders


def _in_table(table: Path, endings: tuple[str, ...]) -> tuple[Files, Folders]:
    """The files that a table names: path, label and, if it has a third column, train, val or test.

    Paths are relative to the table. A first line that names no file is a heading.
    """
    layout = "Each line has a path and a label, and may have a part (train, val, test), with commas: cat/1.jpg,cat"
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file) if any(line)]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{table} cannot be read as a table: {problem}.", layout) from None
    if lines and lines[0] and not lines[0][0].lower().endswith(endings):
        del lines[0]
    files: Files = {}
    for number, line in enumerate(lines, 1):
        entry = f"{table}: entry {number} is {','.join(line)[:80]!r}"
        if len(line) not in (2, 3) or not all(line):
            signs = {";": ", separated by semicolons", "\t": ", separated by tabs"}
            odd = [words for sign, words in signs.items() if len(line) == 1 and sign in line[0]]
            raise DataError(f"{entry}{odd[0] if odd else f': {len(line)} of 2 or 3 columns'}.", layout)
        path, *place = line
        if path.lower().endswith(endings):
            files[(*reversed(place), path)] = table.parent / Path(path).expanduser()
        elif any(cell.lower().endswith(endings) for cell in place):
            raise DataError(f"{entry}: its path is not in the first column.", layout)
    return files, {path[:depth] for path in files for depth in range(1, len(path))}


def _in_zip(archive: Path, endings: tuple[str, ...]) -> tuple[Files, Folders]:
    entries, empty = members(archive)
    files: Files = {}
    folders: Folders = set()
    for entry in entries:
        path = tuple(entry.name.split("/"))
        if all(_looked_at(part) for part in path):
            folders.update(path[:depth] for depth in range(1, len(path)))
            if path[-1].lower().endswith(endings):
                files[path] = entry
    paths = [tuple(name.rstrip("/").split("/")) for name in empty]
    folders.update(path for path in paths if all(_looked_at(part) for part in path))
    return files, folders


def _looked_at(name: str) -> bool:
    return bool(name) and not name.startswith(".") and name != "__MACOSX"
