"""Answers for many files, over Ray Data, as a folder of Parquet files.

Tasks read the parts of the source, actors with a Predictor each answer, and this process writes: a part whose answers
are all here becomes a file, whole or not at all. So a batch that was interrupted goes on where it stopped, and needs
no disk that the machines share, save for what it reads.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from supple import files
from supple.cluster.ray_local import RayError, connect, import_modules
from supple.cluster.sources import PART, PLACE, SHARDS, TOGETHER, Part, Sample, parts_of, read_parts
from supple.errors import IMPORTED, CheckpointError, DataError
from supple.inference.bundle import MANIFEST, is_bundle, open_bundle
from supple.inference.engines import join
from supple.inference.inputs import must_read_files, zeros
from supple.inference.inputs import parts_of as shapes_of
from supple.inference.predictor import Predictor
from supple.inference.request import Piped, gather
from supple.inference.result import Prediction
from supple.inference.select import Path_, predictor
from supple.machine import cores
from supple.networks import located
from supple.progress import counting

JOB = "_job.json"  # what reads a folder as Parquet passes over such names
ACTOR, READER = 0.75, 0.25  # CPUs: actors of a whole one each would leave none for those that read
BLOCK = 16 << 20  # bytes that an actor gets at once, about
SCORES = pa.list_(pa.struct({"label": pa.string(), "score": pa.float32()}))
TEXT = pa.string()
WRITTEN = pa.schema(
    {"path": TEXT, "label": TEXT, "scores": SCORES, "point": TEXT, "reason": TEXT, "details": TEXT, "error": TEXT}
)
PLACED = pa.schema([*PLACE, *WRITTEN])


@dataclass(frozen=True)
class Written:
    """What a folder of answers holds."""

    folder: Path
    parts: int
    rows: int
    errors: int  # rows that have one instead of an answer
    found: int = 0  # parts that were there already

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}


@dataclass(frozen=True)
class Setup:
    """What an actor needs to answer as the others do."""

    source: str
    engine: str
    precision: str
    threads: int
    device: str | None
    limits: dict[str, Any]  # of `Predictor.predict`
    imports: tuple[str, ...] = ()

    def open(self) -> Predictor:
        return predictor(self.source, self.engine, self.threads, self.precision, warm=False, device=self.device)


def predict_batch(
    source: Path_,
    names: Iterable[str],
    out: Path_,
    *,
    address: str | None = None,
    workers: int | None = None,
    engine: str = "auto",
    threads: int = 1,
    device: str | None = None,
    size: int = PART,
    progress: bool = False,
    on_part: Callable[[int], None] = lambda rows: None,
    **limits: Any,
) -> Written:
    """Answers for all files that the names stand for, and for those in Parquet files and tars among them, in a new
    folder; or the rest of them, where the same batch was interrupted. workers: actors; None: one per CPU. size: samples
    that are written together. on_part is told of every file that is written, with its rows.
    """
    made = predictor(source, engine, threads, warm=False, progress=progress, device=device)
    with made:
        must_read_files(made.preprocess)
        if limits.get("deadline_ms") is not None:
            raise DataError("a deadline is for one answer, not for a batch.", "Limit its cost: --budget-macs 0.5x.")
        blank = zeros(made.shape, 1) if made.task.exportable else made.preprocess.blank_file()
        made.predict(blank, **limits)  # refuses here what every actor would refuse
        name = str(Path(source).absolute() if Path(source).exists() else source)
        setup = Setup(name, made.engine.name, made.engine.precision, threads, device, limits, tuple(IMPORTED))
        endings, kind = tuple(made.preprocess.endings), made.preprocess.kind
        policy = made.policy.to_json() if limits.get("confident") and made.policy is not None else None
    names, folder = [*names], Path(out)
    inside = [Path(name) for name in names if folder.resolve().is_relative_to(Path(name).resolve())]
    if any(path.is_dir() for path in inside):
        raise DataError(f"{folder} would lie in what is read, {inside[0]}.", "Choose another folder with --out.")
    found = gather(names, (*endings, *SHARDS), kind)
    paths = [path for path in found if not isinstance(path, Piped)]
    if len(paths) < len(found):
        raise DataError("stdin is one file.", "Give folders, files, or their names, one per line.")
    if address is not None:  # its processes work in other folders
        paths = [path.absolute() for path in paths]
    parts = parts_of(paths, size)
    job = {
        "weights": _weights(source),
        "engine": f"{setup.engine} {setup.precision}",
        "limits": {name: str(value) for name, value in sorted(limits.items()) if value not in (None, False)},
        "policy": policy,
        "source": _fingerprint(paths),
        "parts": len(parts),
    }
    begin(folder, job)
    try:
        with files.locked(folder / ".lock", wait=False, remove=True):
            there = done(folder, job)
            left = [part for part in parts if part.number not in there]
            with counting(len(parts), "predicting", quiet=not progress) as advance:
                advance(len(there))
                for number, table in _over_ray(left, endings, setup, workers, address) if left else ():
                    write(folder, number, table, job)
                    advance(1)
                    on_part(len(table))
            return summary(folder, job, len(there))
    except BlockingIOError:
        raise CheckpointError(f"another batch is being written to {folder}.", "Wait for it.") from None


def _weights(source: Path_) -> str:
    """The sha256 of the weights that answer."""
    path = Path(located(source))
    if is_bundle(path):
        return open_bundle(path).checkpoint
    return str(files.read_json(path / MANIFEST, "Train it again.")["files"]["model.safetensors"])


def _fingerprint(paths: Sequence[Path]) -> str:
    """Changes with the names, sizes and times of what is read."""
    found = hashlib.sha256()
    for path in paths:
        try:
            about = path.stat()
            found.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\n".encode(errors="surrogateescape"))
        except OSError:  # an answer will say so
            found.update(f"{path}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


# --- the folder that is written ---------------------------------------------------------------------------------------


def begin(folder: Path, job: dict[str, Any]) -> None:
    """Makes the folder; refuses one that holds anything but a part of the same job."""
    known = folder / JOB
    if not known.is_file():
        from supple.checkpoint import check_out  # needs torch, which actors may do without

        check_out(folder)
        files.write(known, json.dumps(job, indent=1))
        return
    before = files.read_json(known, "Choose another folder with --out.")
    differs = [name for name in job if before.get(name) != job[name]]
    if differs:
        cause = f"{folder} holds the answers of another batch: other {' and '.join(differs)}."
        raise CheckpointError(cause, "Choose another folder with --out, or make the same call to go on with it.")


def file_of(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _mark(job: dict[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(job).encode()).hexdigest().encode()


def write(folder: Path, number: int, table: Any, job: dict[str, Any]) -> None:
    """The answers of a part, with the mark of their job; whole or not at all."""
    errors = len(table) - table["error"].null_count
    about = {b"supple.job": _mark(job), b"supple.errors": str(errors).encode()}
    content = BytesIO()
    parquet.write_table(table.replace_schema_metadata(about), content)
    files.write(file_of(folder, number), content.getvalue())


def done(folder: Path, job: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """Rows and errors of every part of the job that is there."""
    found, mark = {}, _mark(job)
    for number in range(job["parts"]):
        try:
            about = parquet.read_metadata(file_of(folder, number))
            if (about.metadata or {}).get(b"supple.job") == mark:
                found[number] = about.num_rows, int(about.metadata[b"supple.errors"])
        except (OSError, pa.ArrowException):
            continue  # not there, or damaged: it is made again
    return found


def summary(folder: Path, job: dict[str, Any], found: int) -> Written:
    counts = done(folder, job).values()
    return Written(folder, len(counts), sum(rows for rows, _ in counts), sum(bad for _, bad in counts), found)


@dataclass
class Gathered:
    """Answers as they come, in any order, until all of a part are here."""

    tables: dict[int, list[Any]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)  # of parts whose last row has come

    def add(self, table: Any) -> Iterator[tuple[int, Any]]:
        """The parts that are complete with these rows, in order and as they are written."""
        for number in pc.unique(table["part"]).to_pylist():
            some = table.filter(pc.equal(table["part"], number))
            self.tables.setdefault(number, []).append(some)
            for place in some.filter(some["last"])["place"].to_pylist():
                self.sizes[number] = place + 1
            if sum(map(len, self.tables[number])) == self.sizes.get(number):
                whole = pa.concat_tables(self.tables.pop(number)).sort_by("place")
                yield number, whole.select(WRITTEN.names)


# --- answering --------------------------------------------------------------------------------------------------------


def answers(made: Predictor, samples: Sequence[Sample], limits: dict[str, Any]) -> list[Prediction | str]:
    """An answer for every sample, or why there is none. What has one size is answered as one batch, which samples
    leave when they are sure."""
    found: dict[int, Prediction | str] = {}
    inputs: dict[int, tuple[Any, ...]] = {}
    expected = shapes_of(made.shape)
    for place, (path, content, error) in enumerate(samples):
        if error is not None:
            found[place] = error
            continue
        given = path if content is None else content
        try:
            parts = made.preprocess.arrays(given)
            if [part is not None and part.shape[1:] for part in parts] == expected:
                inputs[place] = parts
            else:  # of its own size, or without a part that some networks can do without
                found[place] = _one(made.predict(given, **limits))
        except DataError as problem:
            found[place] = problem.cause
    for places in ([*inputs], *([place] for place in inputs)):  # all together; one by one, where that fails
        missing = [place for place in places if place not in found]
        if missing:
            try:
                batch = tuple(map(np.ascontiguousarray, join([inputs[place] for place in missing])))
                together = made.predict(batch, **limits)
                assert isinstance(together, list)
                found.update(zip(missing, together))
            except DataError as problem:
                if len(missing) == 1:
                    found[missing[0]] = problem.cause
    return [found[place] for place in range(len(samples))]


def _one(answer: Prediction | list[Prediction]) -> Prediction:
    return answer[0] if isinstance(answer, list) else answer


def as_row(path: str, answer: Prediction | str) -> dict[str, Any]:
    """Of the table that is written."""
    if isinstance(answer, str):
        return {"path": path, "error": answer}
    scores = [{"label": label, "score": score} for label, score in answer.scores.items()]
    row = {"path": path, "label": answer.label, "scores": scores, "point": answer.point, "reason": answer.reason}
    return row | ({"details": json.dumps(answer.details)} if answer.details else {})


class Answerer:
    """Of an actor: a Predictor that is opened once."""

    def __init__(self, setup: Setup) -> None:
        import_modules(setup.imports)
        self.made, self.limits = setup.open(), setup.limits

    def __call__(self, table: Any) -> Any:
        rows = table.to_pylist()
        samples = [Sample(row["path"], row["content"], row["error"]) for row in rows]
        found = answers(self.made, samples, self.limits)
        placed = [{name: row[name] for name in ("part", "place", "last")} for row in rows]
        return pa.Table.from_pylist(
            [where | as_row(sample.path, one) for where, sample, one in zip(placed, samples, found)], PLACED
        )


def _over_ray(
    parts: Sequence[Part], endings: tuple[str, ...], setup: Setup, workers: int | None, address: str | None
) -> Iterator[tuple[int, Any]]:
    """The answers of each part, as soon as they are all here."""
    with connect(address, workers or cores()) as ray:
        count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        data = import_module("ray.data")
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what fails is raised
        context = data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.target_max_block_size = BLOCK
        rows = data.from_items([{"part": part.to_json()} for part in parts], override_num_blocks=len(parts))
        rows = rows.map_batches(read_parts, batch_size=1, fn_kwargs={"endings": endings}, num_cpus=READER)
        rows = rows.map_batches(
            Answerer,
            fn_constructor_args=(setup,),
            batch_size=TOGETHER,
            batch_format="pyarrow",
            compute=data.ActorPoolStrategy(size=min(count, len(parts))),
            num_cpus=ACTOR,
            num_gpus=1 if (setup.device or "").startswith("cuda") else 0,
        )
        gathered = Gathered()
        try:
            for table in rows.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from gathered.add(table)
        except Exception as error:  # Ray Data raises what failed inside errors of its own
            cure = "What is written stays, and the same call goes on with it. See why: --debug."
            last = [type(error).__name__, *str(error).strip().splitlines()][-1]  # behind what Ray says of itself
            raise RayError(f"Ray gave up: {last.strip()[:300]}", cure) from error
