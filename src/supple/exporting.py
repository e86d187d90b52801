"""Exporting: every point of a run as a graph for a fast runtime, checked against PyTorch before it is written."""

import io
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supple import checkpoint, files
from supple.errors import CheckpointError, RecipeError
from supple.model import FlexibleModel
from supple.point import Point
from supple.runtime.bundle import FORMAT, KINDS, MANIFEST, open_bundle
from supple.runtime.engine import Array, open_engine
from supple.runtime.graphs import Graph, chain_of, graphs_of

TOLERANCE = 1e-4  # of the largest output, or of 1
SUFFIX = {"onnx": ".onnx", "openvino": ".onnx", "torch-export": ".pt2"}  # what PyTorch itself writes


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    to: str = "onnx"
    points: tuple[Point, ...] = ()  # none: all
    chain: bool = True


def export(
    run: Path, out: Path, wanted: Wanted, x: Tensor, seen_on: str, watch: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Writes the graphs of a run and a manifest that vouches for them; gives the manifest.

    x: real inputs, at least two, on which every graph must agree with PyTorch. A graph that does not is named, and
    nothing is written.
    """
    model = checkpoint.load(run)
    digest = checkpoint.read_manifest(run)["files"][checkpoint.WEIGHTS]
    points = model.order(wanted.points or (*model.points, *model.settled))
    graphs = graphs_of(model, points, x[:2])
    chain = chain_of(model, x[:2]) if wanted.chain else []
    made: dict[str, dict[str, bytes]] = {}
    for graph in (*graphs, *chain):
        made[graph.name] = convert(graph, wanted.to)
        if watch is not None:
            watch(1)
    contents = {name: content for parts in made.values() for name, content in parts.items()}
    manifest = {
        "format": FORMAT,
        "kind": "export",
        "to": wanted.to,
        "precision": "fp32",
        "checkpoint": digest,
        "task": getattr(model, "task", "classes"),
        "classes": list(model.classes),
        "input_shape": model.input_shape,
        "preprocess": model.preprocess.to_json() if model.preprocess is not None else None,
        "points": {str(graph.point): {"file": _main(made[graph.name], wanted.to)} for graph in graphs},
        "stages": [{"file": _main(made[g.name], wanted.to), "point": g.point and str(g.point)} for g in chain],
        "policy": None if model.policy is None else model.policy.to_json(),
        "versions": checkpoint.versions(),
    }
    write_folder(out, contents, manifest)
    try:
        manifest["checked"] = {"on": seen_on, **check(model, out, x)}
        files.write(out / MANIFEST, json.dumps({**manifest, "files": _digests(out, contents)}, indent=1))
    except BaseException:
        remove(out, contents)
        raise
    return manifest


# --- one graph --------------------------------------------------------------------------------------------------------


def convert(graph: Graph, to: str) -> dict[str, bytes]:
    """The files of a graph, by name."""
    if to == "torch-export":
        return {f"{graph.name}.pt2": exported(graph)}
    content = to_onnx(graph)
    return {f"{graph.name}.onnx": content} if to == "onnx" else to_openvino(graph.name, content)


def exported(graph: Graph) -> bytes:
    program = _traced(graph)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, buffer)
    return buffer.getvalue()


def to_onnx(graph: Graph) -> bytes:
    """The bytes of an ONNX file whose batch is open."""
    program = _traced(graph)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            model = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
            assert model is not None
            return bytes(model.model_proto.SerializeToString())
    except Exception as error:
        raise _refused(graph, error) from error


def to_openvino(name: str, content: bytes) -> dict[str, bytes]:
    import tempfile

    import openvino

    with tempfile.TemporaryDirectory() as folder:
        model = openvino.Core().read_model(content)
        openvino.save_model(model, f"{folder}/{name}.xml", compress_to_fp16=False)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def _traced(graph: Graph) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=4096)
    shapes = (tuple({0: batch} for _ in graph.inputs),)
    try:
        with torch.no_grad():
            return torch.export.export(graph.module, graph.inputs, dynamic_shapes=shapes)
    except Exception as error:
        raise _refused(graph, error) from error


def _refused(graph: Graph, error: Exception) -> RecipeError:
    said = " ".join(str(error).split())
    return RecipeError(f"{graph.name} cannot be exported: {said[:400]}.", "Leave this point out with --point.")


# --- checking and writing ---------------------------------------------------------------------------------------------


@torch.no_grad()
def check(model: FlexibleModel, folder: Path, x: Tensor) -> dict[str, float]:
    """Every graph, and the chain, against the model on real inputs, alone and in a batch: the largest difference."""
    bundle = open_bundle(folder)
    name = {"onnx": "onnxruntime", "openvino": "openvino", "torch-export": "torch"}[bundle.kind]
    engine, largest = open_engine(name, bundle, torch.get_num_threads()), 0.0
    expected = {str(point): model(x, point).numpy() for point in bundle.points}
    for batch in (x, x[:1]):
        given = (batch.numpy(),)
        for point in bundle.graphs:
            largest = max(largest, _apart(engine.run_point(point, given), expected[point][: len(batch)], point))
        state = given
        for k, stage in enumerate(bundle.stages):
            state, logits = engine.run_stage(k, state)
            if stage.point in expected and logits is not None:
                largest = max(largest, _apart(logits, expected[stage.point][: len(batch)], f"stage {k + 1}"))
    engine.close()
    return {"difference": largest}


def _apart(found: Array, expected: Array, what: str) -> float:
    difference = float(np.abs(found - expected).max())
    limit = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if not difference <= limit:
        cause = f"{what}: the exported graph differs from PyTorch by {difference:.1e}, more than {limit:.1e}."
        raise CheckpointError(cause, "Nothing was written. Leave this point out, and please report it.")
    return difference


def write_folder(out: Path, contents: dict[str, bytes], manifest: dict[str, Any]) -> None:
    try:
        for name, content in contents.items():
            files.write(out / name, content)
        files.write(out / MANIFEST, json.dumps({**manifest, "files": _digests(out, contents)}, indent=1))
    except BaseException:
        remove(out, contents)
        raise


def remove(out: Path, names: Sequence[str] | dict[str, bytes]) -> None:
    for name in (*names, MANIFEST):
        (out / name).unlink(missing_ok=True)
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()


def _digests(out: Path, contents: dict[str, bytes]) -> dict[str, str]:
    return {name: files.sha256(out / name) for name in contents}


def _main(parts: dict[str, bytes], to: str) -> str:
    """Of the files of one graph, the one that is opened."""
    return next(name for name in parts if name.endswith(KINDS[to]))
