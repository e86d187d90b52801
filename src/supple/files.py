"""Files written whole or not at all, and held by one process at a time."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from supple.errors import CheckpointError, SaveError

if TYPE_CHECKING:
    from torch import Tensor

Content = bytes | str | dict[str, "Tensor"]  # tensors are written as safetensors


def write(path: Path, content: Content) -> Path:
    """Writes a file whole or not at all: temporary file, sync, rename."""
    with staged(path, content) as temporary:
        temporary.replace(path)
    return path


@contextmanager
def staged(path: Path, content: Content) -> Iterator[Path]:
    """The content in a synced temporary file beside `path`, to be renamed by the caller, or else removed."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(as_bytes(content))
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp makes it private; a run is meant to be shared
        yield temporary
        _sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        cure = "Make room or choose another folder; what was there before is untouched."
        raise SaveError(f"{path} could not be written: {reason}.", cure) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def as_bytes(content: Content) -> bytes:
    if isinstance(content, dict):
        from safetensors.torch import save  # an exported folder answers without it

        return save(content)
    return content.encode("utf-8", "replace") if isinstance(content, str) else content


@contextmanager
def folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, its name with a dot before it, that takes its place if all goes well."""
    path, part = path.absolute(), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        part.chmod(0o755)
        yield part
        part.rename(path)
    except OSError as error:
        raise SaveError(
            f"{path} could not be written: {error.strerror}.", "Choose another folder with --out."
        ) from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def locked(path: Path, *, wait: bool = True, remove: bool = False) -> Iterator[None]:
    """Holds a file that stands for something only one process may do at a time, on Windows too.

    wait: until another process lets go of it; else that is a BlockingIOError. remove: the file, in the end.
    """
    with path.open("w") as file:
        _lock(file, wait)
        try:
            yield
        finally:
            if remove and os.name != "nt":
                path.unlink(missing_ok=True)  # while it is held: afterwards it may be another's
            _unlock(file)
    if remove and os.name == "nt":
        with suppress(PermissionError):  # Windows removes no file that is open, be it by another
            path.unlink(missing_ok=True)


def _lock(file: IO[str], wait: bool) -> None:
    fcntl, msvcrt = _modules()
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    while True:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            return
        except PermissionError as error:
            if not wait:
                raise BlockingIOError(error.errno, error.strerror) from None
            time.sleep(0.1)  # LK_LOCK would give up after ten seconds


def _unlock(file: IO[str]) -> None:
    fcntl, msvcrt = _modules()
    if fcntl is None:  # elsewhere closing the file is enough
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def _modules() -> tuple[Any, Any]:
    """fcntl, which Windows lacks, or else msvcrt, which only Windows has."""
    found: list[Any] = []
    for name in ("fcntl", "msvcrt"):
        try:
            found.append(import_module(name))
        except ImportError:
            found.append(None)
    if not any(found):
        cause = "this Python cannot lock files: it has neither fcntl nor msvcrt."
        raise SaveError(cause, "Use a usual Python of Linux, macOS or Windows.")
    return found[0], found[1]


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """The tensors of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError) as error:
        cure = "It is truncated, or not a safetensors file (pickled ones are never opened). Restore it, or train again."
        raise CheckpointError(f"{path} cannot be read: {error}.", cure) from None


def read_json(path: Path, cure: str, missing: str | None = None) -> dict[str, Any]:
    """A document of named values. missing: the cure where there is no such file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing.", missing or cure) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.", cure) from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds a {type(document).__name__}, not named values.", cure)
    return document


def as_shape(sides: Any) -> Any:
    """A shape as JSON has it: lists, perhaps of lists."""
    return tuple(map(as_shape, sides)) if isinstance(sides, list) else sides


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
