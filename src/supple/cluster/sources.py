"""What a batch reads: files, Parquet files and WebDataset shards, cut into parts that are answered one by one."""

import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from supple.data._io.paths import MAX_MEMBER
from supple.errors import DataError
from supple.text import one_line

PART = 1000  # samples, about: of a tar, all
TOGETHER = 64  # samples that are read, and answered, together
PARQUET, TARS = ".parquet", (".tar", ".tar.gz", ".tgz")
SHARDS = (PARQUET, *TARS)
PLACE = pa.schema({"part": pa.int32(), "place": pa.int64(), "last": pa.bool_()})
READ = pa.schema([*PLACE, *pa.schema({"path": pa.string(), "content": pa.large_binary(), "error": pa.string()})])


@dataclass(frozen=True)
class Part:
    """Some files, or some row groups of a Parquet file, or a tar: what is written together."""

    number: int
    files: tuple[str, ...] = ()
    shard: str = ""
    groups: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Part":
        saved = json.loads(text)
        return cls(saved["number"], tuple(saved["files"]), saved["shard"], tuple(saved["groups"]))


class Sample(NamedTuple):
    path: str  # of a shard's sample, behind that of the shard
    content: bytes | None = None  # None: the file at the path
    error: str | None = None  # why it cannot be read


def parts_of(found: Sequence[Path], size: int = PART) -> list[Part]:
    """The same files in the same order give the same parts."""
    files = [str(path) for path in found if not _is_shard(path)]
    made: list[dict[str, Any]] = [{"files": tuple(files[at : at + size])} for at in range(0, len(files), size)]
    for path in filter(_is_shard, found):
        if path.suffix == PARQUET:
            made += [{"shard": str(path), "groups": groups} for groups in _groups(path, size)]
        else:
            made.append({"shard": str(path)})
    return [Part(number, **one) for number, one in enumerate(made)]


def _is_shard(path: Path) -> bool:
    return path.name.lower().endswith(SHARDS)


def _groups(path: Path, size: int) -> Iterator[tuple[int, ...]]:
    """Row groups that follow one another, until they have so many rows."""
    with _parquet(path) as file:
        columns(path, file.schema_arrow)
        rows, groups = 0, list[int]()
        for group in range(file.num_row_groups):
            rows, groups = rows + file.metadata.row_group(group).num_rows, [*groups, group]
            if rows >= size or group + 1 == file.num_row_groups:
                yield tuple(groups)
                rows, groups = 0, []


def _parquet(path: Path | str) -> Any:
    try:
        return parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {one_line(error)}", "Write it again.") from None


def columns(path: Path | str, schema: Any) -> tuple[str, str | None]:
    """The column with the bytes of a file, and the one with its name, if there is any. Bytes may be inside another
    column, as `bytes`, with a name beside them, as `path`: what Hugging Face's data sets have."""

    def holds_bytes(kind: Any) -> bool:
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    found = [field.name for field in schema if holds_bytes(field.type)]
    inside = [field for field in schema if pa.types.is_struct(field.type) and "bytes" in _fields(field.type)]
    found += [field.name for field in inside]
    if len(found) != 1:
        has = f"{len(found)} columns of files ({', '.join(found)})" if found else "no column of files"
        cure = "Give it one column of bytes, such as `image`; a column `path` may name them."
        raise DataError(f"{path} has {has}: {', '.join(schema.names)}.", cure)
    return found[0], "path" if "path" in schema.names else None


def _fields(kind: Any) -> list[str]:
    return [kind.field(k).name for k in range(kind.num_fields)]


def read(part: Part, endings: Sequence[str]) -> Iterator[Sample]:
    """The samples of a part, in order. A shard that is damaged ends with a sample that says so. endings: of the files
    of a tar that are samples."""
    if part.files:
        for file in part.files:
            shown = file.encode(errors="replace").decode()
            yield Sample(file) if shown == file else Sample(shown, error=f"the name of {shown} is not UTF-8: rename it")
        return
    seen = False
    try:
        for sample in _rows(part) if part.groups else _members(part.shard, tuple(endings)):
            seen = True
            yield sample
    except (OSError, EOFError, zlib.error, tarfile.TarError, pa.ArrowException, DataError) as error:
        yield Sample(part.shard, error=f"{part.shard} cannot be read to its end: {one_line(error)}")
        return
    if not seen:
        yield Sample(part.shard, error=f"{part.shard} holds no file that ends with {', '.join(endings)}")


def _members(shard: str, endings: tuple[str, ...]) -> Iterator[Sample]:
    with tarfile.open(shard, "r|*") as tar:
        for member in tar:
            name = f"{shard}/{member.name}"
            if not member.isfile() or not member.name.lower().endswith(endings):
                continue
            if member.size > MAX_MEMBER:
                yield Sample(name, error=f"{name} has {member.size:,} bytes; the limit is {MAX_MEMBER:,}")
                continue
            file = tar.extractfile(member)
            assert file is not None
            yield Sample(name, file.read())


def _rows(part: Part) -> Iterator[Sample]:
    with _parquet(part.shard) as file:
        content, name = columns(part.shard, file.schema_arrow)
        row = sum(file.metadata.row_group(group).num_rows for group in range(part.groups[0]))
        wanted = [content] if name is None else [content, name]
        for batch in file.iter_batches(TOGETHER, row_groups=[*part.groups], columns=wanted):
            for value in batch.to_pylist():
                held = value[content]
                inside = held if isinstance(held, dict) else {"bytes": held}
                path = str((name and value[name]) or inside.get("path") or f"{part.shard}#{row}")
                known = inside["bytes"] is not None
                yield Sample(path, inside["bytes"], None if known else f"{path} has no bytes")
                row += 1


def read_parts(batch: dict[str, Any], endings: tuple[str, ...]) -> Iterator[Any]:
    """Of a task: the rows of some parts."""
    for text in batch["part"]:
        part = Part.from_json(str(text))
        yield from tables(part, read(part, endings))


def tables(part: Part, samples: Iterable[Sample]) -> Iterator[Any]:
    """Samples as tables of a few rows, each with its place in the part; the last of all says that it is."""
    rows: list[dict[str, Any]] = []
    for place, sample in enumerate(samples):
        if len(rows) == TOGETHER:
            yield pa.Table.from_pylist(rows, READ)
            rows = []
        rows.append({"part": part.number, "place": place, "last": False, **sample._asdict()})
    rows[-1]["last"] = True
    yield pa.Table.from_pylist(rows, READ)
