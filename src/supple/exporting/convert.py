"""One graph as the bytes of its files: ONNX, OpenVINO's IR, or torch.export's archive."""

import inspect
import io
import re
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from supple.errors import RecipeError
from supple.exporting.graphs import Graph
from supple.text import one_line

LARGEST_BATCH = 4096


def convert(graph: Graph, to: str) -> dict[str, bytes]:
    """The files of a graph, by name; the batch stays open."""
    if to == "torch-export":
        return {f"{graph.name}.pt2": to_archive(graph)}
    content = to_onnx(graph)
    return {f"{graph.name}.onnx": content} if to == "onnx" else to_openvino(graph.name, content)


def to_archive(graph: Graph) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(traced(graph), buffer)
    return buffer.getvalue()


def to_onnx(graph: Graph) -> bytes:
    program = traced(graph)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                optimize=True,
                input_names=graph.takes,
                output_names=graph.gives,
                dynamic_shapes=tuple({0: "batch"} for _ in graph.inputs),  # here: the name of the dimension
            )
            assert made is not None
            model = made.model_proto
    except Exception as error:
        raise refused(graph, error) from error
    for node in model.graph.node:
        kept = [fact for fact in node.metadata_props if not fact.key.startswith("pkg.")]  # files of this machine
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    return bytes(model.SerializeToString())


def to_openvino(name: str, content: bytes) -> dict[str, bytes]:
    import openvino

    return saved(name, openvino.Core().read_model(content))


def saved(name: str, model: object) -> dict[str, bytes]:
    """The two files of an OpenVINO model."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        openvino.save_model(model, f"{folder}/{name}.xml", compress_to_fp16=False)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def traced(graph: Graph) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=LARGEST_BATCH)
    shapes: tuple[Any, ...] = tuple({0: batch} for _ in graph.inputs)
    if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(graph.module.forward).parameters.values()):
        shapes = (shapes,)  # they are one argument
    try:
        with torch.no_grad():
            return torch.export.export(graph.module, graph.inputs, dynamic_shapes=shapes)
    except Exception as error:
        raise refused(graph, error) from error


def refused(graph: Graph, error: BaseException) -> RecipeError:
    """Names the innermost cause and, where the exporter does, the operator and the layer."""
    text = one_line(error, 10_000)
    while error.__cause__ is not None:
        error = error.__cause__
        text += f" {one_line(error, 10_000)}"
    operator = re.search(r"(aten|torchvision|prims)[.:]+[\w.:]+", text)
    layer = re.search(r"(?:network|stage)[.\w]*", text)
    where = f" ({operator.group()}{f' in {layer.group()}' if layer else ''})" if operator else ""
    cure = "Leave this point out with --point, or use --to torch-export. --debug shows all that the exporter said."
    return RecipeError(f"{graph.name} cannot be exported{where}: {one_line(error).rstrip('.')}.", cure)
