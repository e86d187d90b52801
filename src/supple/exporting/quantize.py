"""Eight-bit graphs by post-training quantization, from the values that real inputs give."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from supple.errors import RecipeError
from supple.exporting.convert import saved
from supple.exporting.graphs import Graph

Inputs = list[tuple[Tensor, ...]]  # of a graph, sample by sample


def quantize(graph: Graph, files: dict[str, bytes], to: str, inputs: Inputs, attention: bool) -> dict[str, bytes]:
    """The files of a graph in int8."""
    if to == "onnx":
        (name, content), *_ = files.items()
        return {name: with_onnxruntime(content, inputs)}
    if to == "openvino":
        return with_nncf(graph, files, inputs, attention)
    raise RecipeError(f"int8 is not for {to}.", "Use --to onnx or --to openvino.")


def with_onnxruntime(content: bytes, inputs: Inputs) -> bytes:
    import onnx
    from onnxruntime import quantization

    names = [entry.name for entry in onnx.load_from_string(content).graph.input]

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows: Iterator[dict[str, np.ndarray]] = iter(
                [{name: part.numpy() for name, part in zip(names, row)} for row in inputs]
            )

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    with tempfile.TemporaryDirectory() as folder, _quiet():
        source, ready, target = (Path(folder, name) for name in ("a.onnx", "b.onnx", "c.onnx"))
        source.write_bytes(content)
        quantization.quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        # Seven bits: where a processor has no 8-bit dot product, sums of pairs of products of eight bits overflow.
        quantization.quantize_static(ready, target, Reader(), per_channel=True, reduce_range=True)
        return target.read_bytes()


def with_nncf(graph: Graph, files: dict[str, bytes], inputs: Inputs, attention: bool) -> dict[str, bytes]:
    import nncf
    import openvino

    model = openvino.Core().read_model(files[f"{graph.name}.xml"], files[f"{graph.name}.bin"])
    used = {name for entry in model.inputs for name in entry.names}  # OpenVINO drops the others
    rows = [{name: part.numpy() for name, part in zip(graph.takes, row) if name in used} for row in inputs]
    kind = nncf.ModelType.TRANSFORMER if attention else None
    # Seven bits, as above, and for all layers: what was scored with an 8-bit dot product must hold without it.
    further = nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE)
    settings = {"model_type": kind, "subset_size": len(inputs), "advanced_parameters": further}
    with _quiet():
        return saved(graph.name, nncf.quantize(model, nncf.Dataset(rows), **settings))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Both libraries talk much, and to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
