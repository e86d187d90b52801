"""Files inside a zip, read in place: never unpacked to disk, never larger than declared."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from supple.errors import DataError

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
