"""Any folder of class folders, a zip of one, or a table of paths and labels. Only read, never written to."""

from collections.abc import Sequence
from pathlib import Path

import torch

from supple.data._io.decode import SUFFIXES
from supple.data._io.paths import Files, Folders, Source, files_below, unwrapped, wanted
from supple.data.parts import Collection, Part, labelled
from supple.data.settings import Seed, Share
from supple.data.splits import set_aside_whole
from supple.errors import DataError
from supple.text import first

ROOT = "Set data.root to a folder of class folders, a zip of one, or a .csv of paths and labels."
TRAIN = ("train", "training")
VAL = ("val", "valid", "validation")
TEST = ("test", "testing")


def folder(
    *,
    root: str | None = None,  # a folder, a zip or a .csv; looked for here, in the folders of $SUPPLE_DATA and in ./data
    test_share: Share = 0.2,  # of the images, if there is no test part
    seed: Seed = 0,  # of the splits
) -> Collection:
    """Class folders of images as they are, or split by seed if there is no test part. See `class_folders`."""
    return class_folders("folder", root, SUFFIXES, "image", test_share, seed)


def class_folders(
    name: str, root: str | None, endings: tuple[str, ...], kind: str, test_share: float, seed: int
) -> Collection:
    """Class folders as they are, or split by seed if there is no test part; classes in alphabetical order, or
    by number where all of them are numbers: 2 comes before 10.

    With `train`, `val` and `test` folders all three are used. With `train` and only one other, that one is the test
    part. Files with other endings, hidden ones and `__MACOSX` are not looked at.
    """
    place = wanted(root, name, ROOT)
    files, folders = unwrapped(*files_below(place, endings))
    if not files:
        unread = sorted({Path(path[-1]).suffix.lower() for path in files_below(place, ("",))[0]} - {""})
        seen = f"; it has {first(unread)}" if unread else ""
        raise DataError(f"{place} has no {kind}s ({' '.join(endings)}){seen}.", _layout(kind))
    tops = {path[0] for path in [*files, *folders]}
    train, val, test = (
        next((top for top in sorted(tops) if top.lower() in names), None) for names in (TRAIN, VAL, TEST)
    )
    if test is None:
        val, test = None, val
    if train is not None and test is not None:
        parts = {top: class_part(files, folders, f"{place}/{top}", kind, top) for top in (train, test, val) if top}
        classes = parts[train][1]
        for top, (_, others) in parts.items():
            if others != classes:
                odd = ", ".join(sorted(set(others) ^ set(classes))[:5])
                raise DataError(
                    f"{place}: the classes of {train} and {top} differ: {odd}.", "Give both the same class folders."
                )
        return Collection(
            train=parts[train][0],
            test=parts[test][0],
            val=None if val is None else parts[val][0],
            classes=classes,
        )
    everything, classes = class_part(files, folders, str(place), kind)
    return split_by_seed(everything, classes, test_share, seed)


def image_files(root: Path) -> list[Source]:
    """Every image below a folder or in a zip, whatever folder it lies in, by name."""
    files, _ = files_below(root, SUFFIXES)
    return [files[path] for path in sorted(files)]


def split_by_seed(part: Part, classes: tuple[str, ...], test_share: float, seed: int, channels: int = 3) -> Collection:
    """A test part drawn from everything there is, each stratum in proportion; groups stay whole."""
    if not 0 < test_share < 1:
        raise DataError(f"test_share is {test_share}.", "Set data.test_share between 0 and 1.")
    count = max(1, round(test_share * len(part)))
    test, train = set_aside_whole(part.split_by, part.groups, count, seed)
    return Collection(part.pick(train), part.pick(test), classes, channels)


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
        cure = f"Put {kind}s in it, or remove the folder."
        if full | {*empty} == {"images", "labels"}:
            cure = f"images/ and labels/ are a detector's data (docs/detection.md). A classifier's: <class>/<{kind}>."
        raise DataError(f"{where}/{empty[0]}{more} has no {kind}s.", cure)
    if len(full) == 1:
        raise DataError(
            f"{where} has one class only: {next(iter(full))}.", "A classifier needs two or more class folders."
        )
    numbers = all(name.isascii() and name.isdigit() for name in full)
    classes = tuple(sorted(full, key=lambda name: (int(name) if numbers else 0, name)))
    number = {name: label for label, name in enumerate(classes)}
    sources: Sequence[Source] = [files[path] for path in inside]
    return labelled(sources, torch.tensor([number[path[len(above)]] for path in inside])), classes


def _layout(kind: str) -> str:
    return f"Expected train/<class>/<{kind}> and test/<class>/<{kind}> (or val/), or <class>/<{kind}>."
