"""Exported folders: a graph for every point, a chain of graphs where a model has stages, and what answering needs.

The manifest has the sha256 of every file and is written last. Nothing here imports torch.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from supple.errors import CheckpointError, PointError, import_cure
from supple.files import as_shape, read_json, sha256
from supple.inference.engines import Graphs, Layer, Stage
from supple.ladder import Ladder
from supple.machine import machine, same_instructions
from supple.point import Point
from supple.policy.policy import Policy

FORMAT = 4
MANIFEST, LADDER = "manifest.json", "ladder.json"
KINDS = {"onnx": ".onnx", "openvino": ".xml", "torch-export": ".pt2"}  # what a folder is exported to: its graphs
CHAIN, LAYERS = ", chain", ", layer by layer"  # behind a point: what else answers at it


@dataclass(frozen=True)
class Check:
    """What was seen of the graphs on one engine in one precision, before the folder stood."""

    engine: str
    precision: str
    machine: str
    difference: float | None = None  # fp32: the largest from PyTorch
    lost: dict[str, float] = field(default_factory=dict)  # int8, bf16: of each point's score, on validation samples
    left_out: tuple[str, ...] = ()  # int8, bf16: points, or the chain, that lost too much
    error: dict[str, float] = field(default_factory=dict)  # int8, bf16: standard errors of `lost`
    samples: int | None = None  # int8, bf16: on how many it was measured

    def holds_here(self, device: str = "cpu") -> bool:
        """What int8 and bf16 have lost is known for the instruction set, or the GPU, that it was measured with."""
        return self.precision == "fp32" or same_instructions(self.machine, machine(device))

    def losing(self, max_drop: float) -> tuple[str, ...]:
        """What loses more than this by more than a standard error: less may be chance."""
        return tuple(what for what, lost in self.lost.items() if lost - self.error.get(what, 0.0) > max_drop)


@dataclass(frozen=True)
class Bundle:
    """What is known of an exported folder."""

    folder: Path
    kind: str  # a key of KINDS
    precision: str  # fp32, bf16 (whose graphs are those of fp32) or int8
    checkpoint: str  # sha256 of the weights that it was made from
    graphs: Graphs = field(repr=False)  # by their files
    inputs: dict[str, tuple[str, ...]] = field(repr=False)  # of each file: what its tensors are called, in order
    task: str
    classes: tuple[str, ...]
    input_shape: tuple[Any, ...]
    preprocess: dict[str, Any] | None = field(repr=False)
    policy: Policy | None = field(repr=False)
    checks: tuple[Check, ...] = field(repr=False)  # one for each engine and precision that the folder may be run with
    asked: tuple[str, ...]  # the points that were asked for; empty: all
    max_drop: float  # int8, bf16: what a point might lose
    ladder: Ladder = field(default_factory=Ladder, compare=False, repr=False)

    def __fspath__(self) -> str:
        return str(self.folder)

    def path(self, file: str) -> Path:
        return self.folder / file

    def check(self, engine: str, precision: str) -> Check | None:
        """What was seen on an engine; None: nothing was."""
        return next((one for one in self.checks if (one.engine, one.precision) == (engine, precision)), None)

    def missing(self) -> list[str]:
        """Points of its policy that there is no graph of, though all points were asked for: it is older than that."""
        dropped = {name.partition(", ")[0] for check in self.checks for name in check.left_out}
        there = {*self.graphs.answering(), *dropped}
        return [str(p) for p in self.policy.points if str(p) not in there] if self.policy and not self.asked else []

    def after(self, check: Check) -> "Bundle":
        """The folder without what lost too much on an engine; along a chain, such stages run on and do not answer."""
        left = check.left_out
        heads = {name.removesuffix(CHAIN) for name in left if name.endswith(CHAIN)}
        layers = any(name.endswith(LAYERS) for name in left)
        return replace(self, graphs=self.graphs.leave_out(set(left), heads, layers))


def is_bundle(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds exported graphs (and no run)."""
    try:
        return read_json(Path(folder) / MANIFEST, "").get("kind") == "export"
    except CheckpointError:
        return False


def open_bundle(folder: str | os.PathLike[str]) -> Bundle:
    """Reads and checks an exported folder: format, and every file against its digest."""
    folder = Path(folder)
    cure = f"Remove {folder}, and export again: supple export RUN."
    manifest = read_json(folder / MANIFEST, cure, "Give a folder that supple export wrote.")
    if manifest.get("kind") != "export":
        raise CheckpointError(f"{folder} is not an exported folder.", "Give one that supple export wrote.")
    if manifest.get("format") != FORMAT:
        cause = f"{folder / MANIFEST} has format {manifest.get('format')!r}; this supple reads format {FORMAT}."
        raise CheckpointError(cause, f"Another version wrote it: update supple, or remove {folder} and export again.")
    try:
        bundle, digests = _read(folder, manifest), dict(manifest["files"])
    except CheckpointError:
        raise
    except PointError as error:
        cause = f"{folder / MANIFEST} names a point that is unknown here: {error.cause}"
        raise CheckpointError(cause, import_cure()) from None
    except Exception as error:
        raise CheckpointError(f"{folder / MANIFEST} is incomplete: {error!r:.200}.", cure) from None
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing.", cure)
        if sha256(path) != digest:
            raise CheckpointError(f"{path} does not match its digest in {MANIFEST}.", cure)
    return bundle


def _read(folder: Path, manifest: dict[str, Any]) -> Bundle:
    graphs = Graphs(
        {str(Point.parse(point)): str(file) for point, file in manifest["points"].items()},
        tuple(Stage(stage["body"], stage["head"], stage["point"]) for stage in manifest["stages"]),
        tuple(Layer(str(layer["role"]), str(layer["file"])) for layer in manifest["layers"]),
    )
    inputs = {str(file): tuple(map(str, names)) for file, names in manifest["inputs"].items()}
    for name in graphs.names():
        if name not in manifest["files"] or Path(name).name != name:
            raise ValueError(f"{name} has no digest")
        if not inputs.get(name):
            raise ValueError(f"the inputs of {name} are unknown")
    if manifest["to"] not in KINDS or not graphs.points:
        raise ValueError("no graphs")
    if graphs.stages and graphs.stages[-1].head is None:
        raise ValueError("the last stage answers nothing")
    if not isinstance(manifest["task"], str) or not manifest["input_shape"]:
        raise ValueError(f"task {manifest['task']!r}, input_shape {manifest['input_shape']!r}")
    for point in graphs.answering():
        Point.parse(point)
    return Bundle(
        folder,
        manifest["to"],
        manifest["precision"],
        manifest["checkpoint"],
        graphs,
        inputs,
        manifest["task"],
        tuple(manifest["classes"]),
        as_shape(manifest["input_shape"]),
        manifest["preprocess"],
        None if manifest["policy"] is None else Policy.from_json(manifest["policy"]),
        tuple(map(_check, manifest["checks"])),
        tuple(manifest["asked"]),
        float(manifest["max_drop"]),
        read_ladder(folder, manifest),
    )


def _check(given: dict[str, Any]) -> Check:
    lost = {str(what): float(lost) for what, lost in given["lost"].items()}
    difference = None if given["difference"] is None else float(given["difference"])
    names = tuple(map(str, given["left_out"]))
    error = {str(what): float(error) for what, error in given.get("error", {}).items()}
    where = str(given["engine"]), str(given["precision"]), str(given["machine"])
    return Check(*where, difference, lost, names, error, given.get("samples"))


def read_ladder(folder: Path, manifest: dict[str, Any]) -> Ladder:
    """The ladder measured for these graphs; empty if there is none, or if it belongs to other ones."""
    if not (folder / LADDER).is_file():
        return Ladder()
    document = read_json(folder / LADDER, "Delete it, and measure again.")
    return Ladder.from_json(document) if document.get("checkpoint") == manifest["checkpoint"] else Ladder()
