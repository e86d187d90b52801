"""Any folder of class folders, or a zip of one. Only read, never written to."""

from collections.abc import Sequence
from pathlib import Path

import torch

from supple.data.decode import SUFFIXES
from supple.data.parts import Collection, Part, Request
from supple.data.places import find
from supple.data.source import Source
from supple.data.split import set_aside_whole
from supple.data.tree import Files, Folders, files_below, unwrapped
from supple.errors import DataError

TRAIN = ("train", "training")
VAL = ("val", "valid", "validation")
TEST = ("test", "testing")


def folder(request: Request) -> Collection:
    """Class folders of images as they are, or split by seed if there is no test part: see `class_folders`."""
    return class_folders(request, "folder", SUFFIXES, "image")


def class_folders(request: Request, name: str, endings: tuple[str, ...], kind: str) -> Collection:
    """Class folders as they are, or split by seed if there is no test part; classes in alphabetical order.

    With `train`, `val` and `test` folders all three are used. With `train` and only one other, that one is the test
    part. Files with other endings, hidden ones and `__MACOSX` are not looked at.
    """
    root = wanted_root(request, name)
    files, folders = unwrapped(*files_below(root, endings))
    if not files:
        raise DataError(f"{root} has no {kind}s ({' '.join(endings)}).", _layout(kind))
    tops = {path[0] for path in [*files, *folders]}
    train, val, test = (
        next((top for top in sorted(tops) if top.lower() in names), None) for names in (TRAIN, VAL, TEST)
    )
    if train is not None and (test or val):
        held_out = val if test else None
        wanted = (train, test or val, held_out)
        parts = {top: class_part(files, folders, f"{root}/{top}", kind, top) for top in wanted if top}
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
    everything, classes = class_part(files, folders, str(root), kind)
    return split_by_seed(everything, classes, request)


def image_files(root: Path) -> list[Source]:
    """Every image below a folder or in a zip, whatever folder it lies in, by name."""
    files, _ = files_below(root, SUFFIXES)
    return [files[path] for path in sorted(files)]


def wanted_root(request: Request, name: str) -> Path:
    """Where the request says that the data are."""
    if request.root is None:
        raise DataError(
            f'data set "{name}" needs to know which.', "Set data.root to a folder of class folders or a zip."
        )
    return find(request.root)


def split_by_seed(part: Part, classes: tuple[str, ...], request: Request) -> Collection:
    """A test part drawn from everything there is, each class in proportion; groups stay whole."""
    if not 0 < request.test_share < 1:
        raise DataError(f"test_share is {request.test_share}.", "Set data.test_share between 0 and 1.")
    count = max(1, round(request.test_share * len(part.labels)))
    test, train = set_aside_whole(part.labels, part.groups, count, request.seed)
    return Collection(train=part.pick(train), test=part.pick(test), classes=classes)


def class_part(
    files: Files, folders: Folders, where: str, kind: str, top: str | None = None
) -> tuple[Part, tuple[str, ...]]:
    """The files below `top`, and the class names: the folders right below it."""
    above = () if top is None else (top,)
    inside = [path for path in sorted(files) if path[: len(above)] == above and len(path) > len(above) + 1]
    if not inside:
        raise DataError(f"{where} has no class folders with {kind}s.", _layout(kind))
    full = {path[len(above)] for path in inside}
    found = {path[len(above)] for path in folders if path[: len(above)] == above and len(path) > len(above)}
    empty = sorted(found - full)
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise DataError(f"{where}/{empty[0]}{more} has no {kind}s.", f"Put {kind}s in it, or remove the folder.")
    if len(full) == 1:
        raise DataError(
            f"{where} has one class only: {next(iter(full))}.", "A classifier needs two or more class folders."
        )
    classes = tuple(sorted(full))
    number = {name: label for label, name in enumerate(classes)}
    sources: Sequence[Source] = [files[path] for path in inside]
    return Part(sources, torch.tensor([number[path[len(above)]] for path in inside])), classes


def _layout(kind: str) -> str:
    return f"Expected train/<class>/<{kind}> and test/<class>/<{kind}> (or val/), or <class>/<{kind}>."
