"""The files below a folder or in a zip, by their paths. Only read, never written to."""

import os
from pathlib import Path

from supple.data.archive import members
from supple.data.source import Source

Files = dict[tuple[str, ...], Source]  # by path below the root, in parts
Folders = set[tuple[str, ...]]


def files_below(root: Path, endings: tuple[str, ...]) -> tuple[Files, Folders]:
    """Files whose names end so, and all folders; hidden ones and `__MACOSX` are not looked at."""
    return _in_folder(root, endings) if root.is_dir() else _in_zip(root, endings)


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
