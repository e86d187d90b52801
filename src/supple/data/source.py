"""What a file of a data set may be: its bytes, its path, or something that is read, such as a member of a zip."""

from pathlib import Path
from typing import Protocol


class Readable(Protocol):
    """A file that is not on disk by itself, such as a member of a zip; `str()` names it in messages."""

    def read(self) -> bytes: ...


Source = bytes | str | Path | Readable


def content(source: Source, max_pixels: int) -> tuple[bytes | str | Path, int, str | None]:
    """The arguments of `decode` for a source of any kind."""
    if isinstance(source, bytes | str | Path):
        return source, max_pixels, None
    return source.read(), max_pixels, str(source)


def read_bytes(source: Source) -> bytes:
    """All bytes of a source of any kind."""
    if isinstance(source, bytes):
        return source
    return Path(source).read_bytes() if isinstance(source, str | Path) else source.read()
