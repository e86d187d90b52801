"""The official CIFAR-10 and CIFAR-100 files: python or binary version, unpacked or as the tar.gz they come in.

The python version is made of pickles: they are safe to read here, because STAND_INS is all that they can call.
"""

import io
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supple.data._io.paths import find, search_paths
from supple.data.parts import Collection, Part, labelled
from supple.errors import DataError

CURE = "Take the files from the CIFAR page of the University of Toronto again, and set data.root to them."


class Type:
    """Stands in for numpy.dtype: remembers its code, builds nothing."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass


class Array:
    """Stands in for numpy.ndarray: remembers shape, type and bytes; becomes an array only if they fit together."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state

    def to_numpy(self, where: str) -> np.ndarray[Any, Any]:
        match getattr(self, "state", None):
            case (_, (int() as rows, int() as columns), Type(code="u1" | "|u1"), False | 0, bytes() as data) if (
                rows * columns == len(data)
            ):
                return np.frombuffer(data, np.uint8).reshape(rows, columns)
        raise DataError(f"{where}: its array is not rows of uint8.", CURE)


def _encode(text: object, coding: object = "latin1") -> bytes:
    """Stands in for _codecs.encode, by which Python 3 writes bytes in old pickle formats: always as latin1."""
    if not isinstance(text, str) or coding != "latin1":
        raise pickle.UnpicklingError("bytes are expected as latin1")
    return text.encode("latin1")


STAND_INS: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy._core.multiarray", "_reconstruct"): Array,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Type,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise DataError(f"it asks to run {module}.{name}, which no CIFAR file needs; nothing of it was run.", CURE)
        return STAND_INS[module, name]


def unpickle(data: bytes, where: str) -> dict[str, Any]:
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as refusal:
        raise DataError(f"{where} was refused: {refusal.cause}", refusal.cure) from None
    except Exception as problem:  # a damaged pickle raises nearly anything
        raise DataError(f"{where} is damaged: {problem}.", CURE) from None
    if not isinstance(content, dict):
        raise DataError(f"{where} does not hold a dictionary.", CURE)
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


PIXELS = 3 * 32 * 32
MAX_FILE = 400_000_000  # bytes; the largest official file has 155 MB


@dataclass(frozen=True)
class Layout:
    """One published version of a data set."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    names: str  # file of class names
    label_bytes: int = 0  # bytes before the pixels, the label last (binary version); 0: this is the python version


BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
BINARY = tuple(f"{name}.bin" for name in BATCHES)
LAYOUTS = {
    10: (
        Layout("cifar-10-batches-py", "cifar-10-python.tar.gz", BATCHES, "test_batch", "batches.meta"),
        Layout("cifar-10-batches-bin", "cifar-10-binary.tar.gz", BINARY, "test_batch.bin", "batches.meta.txt", 1),
    ),
    100: (
        Layout("cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test", "meta"),
        Layout("cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin",), "test.bin", "fine_label_names.txt", 2),
    ),
}
PREFIX = {10: "", 100: "fine_"}  # of the keys in the pickles: CIFAR-100 has coarse labels too


def cifar10(
    *,
    root: str | None = None,  # the folder or archive, or a folder that holds it; None: looked for in the usual places
) -> Collection:
    """CIFAR-10: 60,000 images of 32 x 32 pixels, ten classes."""
    return _cifar(10, root)


def cifar100(
    *,
    root: str | None = None,  # the folder or archive, or a folder that holds it; None: looked for in the usual places
) -> Collection:
    """CIFAR-100: 60,000 images of 32 x 32 pixels, with its 100 fine labels."""
    return _cifar(100, root)


def _cifar(classes: int, root: str | None) -> Collection:
    layout, path = _locate(classes, root)
    wanted = {*layout.train, layout.test, layout.names}
    files = _from_folder(path, wanted) if path.is_dir() else _from_archive(path, wanted)

    def part(*names: str) -> Part:
        pixels, labels = [], []
        for name in names:
            if name not in files:
                raise DataError(f"{path} has no file {name}.", CURE)
            found, true = _read(files[name], f"{path}: {name}", layout, classes)
            pixels.append(found)
            labels += true
        planes = torch.from_numpy(np.concatenate(pixels))  # red, green and blue of each image, row by row
        return labelled(planes.view(-1, 3, 32, 32), torch.tensor(labels))

    names = _class_names(files.get(layout.names), f"{path}: {layout.names}", layout, classes)
    return Collection(train=part(*layout.train), test=part(layout.test), classes=names)


def _locate(classes: int, root: str | None) -> tuple[Layout, Path]:
    """The version at root: the archive, the folder, or a folder with either inside; without root, in any place."""
    tops = search_paths() if root is None else [find(root)]
    for top in tops:
        for layout in LAYOUTS[classes]:
            if top.is_file() and (top.name == layout.archive or _holds(top, layout)):
                return layout, top
            for candidate in (top, top / layout.folder):
                if (candidate / layout.test).is_file():
                    return layout, candidate
            if (top / layout.archive).is_file():
                return layout, top / layout.archive
    looked = ", ".join(str(top) for top in tops)
    expected = " or ".join(f"{layout.folder} ({layout.archive})" for layout in LAYOUTS[classes])
    raise DataError(
        f"no CIFAR-{classes} files; looked in: {looked}.",
        f'Expected {expected}; set data.root to it. Class folders of images are data.name "folder".',
    )


def _holds(archive: Path, layout: Layout) -> bool:
    """Whether an archive under another name has this layout: told by its folder."""
    try:
        with tarfile.open(archive) as tar:
            first = tar.next()
            return first is not None and Path(first.name).parts[:1] == (layout.folder,)
    except (tarfile.TarError, OSError, EOFError):
        return False


def _from_folder(folder: Path, wanted: set[str]) -> dict[str, bytes]:
    found = [folder / name for name in sorted(wanted) if (folder / name).is_file()]
    for file in found:
        if file.stat().st_size > MAX_FILE:
            raise DataError(f"{file} has {file.stat().st_size:,} bytes: no CIFAR file is so large.", CURE)
    return {file.name: file.read_bytes() for file in found}


def _from_archive(archive: Path, wanted: set[str]) -> dict[str, bytes]:
    """Read the wanted files straight from the tar: nothing is written to disk, no path in it is followed."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if not member.isfile() or name not in wanted:
                    continue
                if member.size > MAX_FILE:
                    raise DataError(
                        f"{archive}: {name} declares {member.size:,} bytes: no CIFAR file is so large.", CURE
                    )
                content = tar.extractfile(member)
                assert content is not None  # it is a regular file
                files[name] = content.read()
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise DataError(f"{archive} is not a readable tar.gz: {problem}.", CURE) from None
    return files


def _read(data: bytes, where: str, layout: Layout, classes: int) -> tuple[np.ndarray[Any, Any], list[int]]:
    """The images of one file, as rows of bytes, and their labels."""
    if layout.label_bytes:
        record = layout.label_bytes + PIXELS
        if not data or len(data) % record:
            raise DataError(f"{where} has {len(data):,} bytes, not a multiple of {record}.", CURE)
        rows = np.frombuffer(data, np.uint8).reshape(-1, record)
        pixels, labels = rows[:, layout.label_bytes :], rows[:, layout.label_bytes - 1].tolist()
    else:
        content, key = unpickle(data, where), f"{PREFIX[classes]}labels"
        array, labels = content.get("data"), content.get(key)
        if not isinstance(array, Array) or not isinstance(labels, list):
            raise DataError(f"{where} lacks data or {key}.", CURE)
        pixels = array.to_numpy(where)
    if pixels.shape != (len(labels), PIXELS) or not labels:
        raise DataError(
            f"{where}: data of shape {pixels.shape} for {len(labels)} labels; expected (n, {PIXELS}).", CURE
        )
    if not all(type(label) is int and 0 <= label < classes for label in labels):
        raise DataError(f"{where}: labels that are not whole numbers in 0..{classes - 1}.", CURE)
    return pixels, labels


def _class_names(data: bytes | None, where: str, layout: Layout, classes: int) -> tuple[str, ...]:
    if data is None:
        return tuple(str(label) for label in range(classes))
    if layout.label_bytes:
        names: Any = data.decode("utf-8", "replace").split()
    else:
        names = unpickle(data, where).get(f"{PREFIX[classes]}label_names")
    if not isinstance(names, list) or len(names) != classes:
        raise DataError(f"{where} does not list {classes} class names.", CURE)
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names)
