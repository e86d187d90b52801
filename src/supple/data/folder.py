"""Any folder of class folders, or a zip of one. Only read, never written to."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from supple.data.archive import members
from supple.data.decode import SUFFIXES
from supple.data.images import Source
from supple.data.parts import Collection, Part, Request
from supple.data.places import find
from supple.data.split import set_aside
from supple.errors import DataError

TRAIN = ("train", "training")
VAL = ("val", "valid", "validation")
TEST = ("test", "testing")
LAYOUT = "Expected train/<class>/<image> and test/<class>/<image> (or val/), or <class>/<image>."

Files = dict[tuple[str, ...], Source]  # by path below the root, in parts
Folders = set[tuple[str, ...]]


def folder(request: Request) -> Collection:
    """Class folders as they are, or split by seed if there is no test part; classes in alphabetical order.

    With `train`, `val` and `test` folders all three are used. With `train` and only one other, that one is the test
    part. Files with other than image suffixes, hidden ones and `__MACOSX` are not looked at.
    """
    if request.root is None:
        raise DataError(
            'data set "folder" needs to know which.', "Set data.root to a folder of class folders or a zip."
        )
    root = find(request.root)
    files, folders = _unwrapped(*(_in_folder(root) if root.is_dir() else _in_zip(root)))
    if not files:
        raise DataError(f"{root} has no images ({' '.join(SUFFIXES)}).", LAYOUT)
    tops = {path[0] for path in [*files, *folders]}
    train, val, test = (
        next((top for top in sorted(tops) if top.lower() in names), None) for names in (TRAIN, VAL, TEST)
    )
    if train is not None and (test or val):
        held_out = val if test else None
        parts = {top: _part(files, folders, f"{root}/{top}", top) for top in (train, test or val, held_out) if top}
        classes = parts[train][1]
        for top, (_, others) in parts.items():
            if others != classes:
                odd = ", ".join(sorted(set(others) ^ set(classes))[:5])
                raise DataError(
                    f"{root}: the classes of {train} and {top} differ: {odd}.", "Give both the same class folders."
                )
        return Collection(
            train=parts[train][0],
            test=parts[test or val or ""][0],
            val=parts[held_out][0] if held_out else None,
            classes=classes,
        )
    everything, classes = _part(files, folders, str(root), None)
    return _split(everything, classes, request)


def image_files(root: Path) -> list[Source]:
    """Every image below a folder or in a zip, whatever folder it lies in, by name."""
    files, _ = _in_folder(root) if root.is_dir() else _in_zip(root)
    return [files[path] for path in sorted(files)]


def _split(part: Part, classes: tuple[str, ...], request: Request) -> Collection:
    if not 0 < request.test_share < 1:
        raise DataError(f"test_share is {request.test_share}.", "Set data.test_share between 0 and 1.")
    test, train = set_aside(part.labels, max(1, round(request.test_share * len(part.labels))), request.seed)
    return Collection(train=part.pick(train), test=part.pick(test), classes=classes)


def _part(files: Files, folders: Folders, where: str, top: str | None) -> tuple[Part, tuple[str, ...]]:
    """The images below `top`, and the class names: the folders right below it."""
    above = () if top is None else (top,)
    inside = [path for path in sorted(files) if path[: len(above)] == above and len(path) > len(above) + 1]
    if not inside:
        raise DataError(f"{where} has no class folders with images.", LAYOUT)
    full = {path[len(above)] for path in inside}
    found = {path[len(above)] for path in folders if path[: len(above)] == above and len(path) > len(above)}
    empty = sorted(found - full)
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise DataError(f"{where}/{empty[0]}{more} has no images.", "Put images in it, or remove the folder.")
    if len(full) == 1:
        raise DataError(
            f"{where} has one class only: {next(iter(full))}.", "A classifier needs two or more class folders."
        )
    classes = tuple(sorted(full))
    number = {name: label for label, name in enumerate(classes)}
    sources: Sequence[Source] = [files[path] for path in inside]
    return Part(sources, torch.tensor([number[path[len(above)]] for path in inside])), classes


def _in_folder(root: Path) -> tuple[Files, Folders]:
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
        files.update({(*path, name): Path(where, name) for name in names if _looked_at(name) and _is_image(name)})
    return files, folders


def _in_zip(archive: Path) -> tuple[Files, Folders]:
    entries, empty = members(archive)
    files: Files = {}
    folders: Folders = set()
    for entry in entries:
        path = tuple(entry.name.split("/"))
        if all(_looked_at(part) for part in path):
            folders.update(path[:depth] for depth in range(1, len(path)))
            if _is_image(path[-1]):
                files[path] = entry
    paths = [tuple(name.rstrip("/").split("/")) for name in empty]
    folders.update(path for path in paths if all(_looked_at(part) for part in path))
    return files, folders


def _unwrapped(files: Files, folders: Folders) -> tuple[Files, Folders]:
    """Drop outer folders that hold everything, as in a zip of `photos/` with `photos/cat/1.jpg` inside."""
    while files and len({path[0] for path in [*files, *folders]}) == 1 and all(len(path) > 2 for path in files):
        files = {path[1:]: source for path, source in files.items()}
        folders = {path[1:] for path in folders if len(path) > 1}
    return files, folders


def _looked_at(name: str) -> bool:
    return bool(name) and not name.startswith(".") and name != "__MACOSX"


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)
