"""Precisions: what is computed in fp32, bf16 and int8, on which processors, and who may choose it."""

from pathlib import Path

import numpy as np
import openvino
import pytest
import torch

from supple.export import convert
from supple.export.graphs import FlatPoint, Graph, one_by_one
from supple.export.quantize import with_nncf
from supple.machine import has_bf16
from supple.point import FULL
from supple.runtime.bundle import Bundle, Stage
from supple.runtime.engine import open_engine

pytest.importorskip("openvino", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")

needs_bf16 = pytest.mark.skipif(not has_bf16(), reason="this processor does not multiply bf16")


# --- OpenVINO is told the precision -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> Path:
    """One small graph, for both kinds of folders."""
    folder = tmp_path_factory.mktemp("graphs")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    graph = Graph("full", FlatPoint(network).eval(), (torch.zeros(2, 3, 8, 8),), FULL)
    for to in ("onnx", "openvino"):
        for name, content in convert.convert(graph, to).items():
            (folder / name).write_bytes(content)
    return folder


def bundle_of(folder: Path, kind: str, precision: str, role: str = "stage") -> Bundle:
    file = "full.onnx" if kind == "onnx" else "full.xml"
    stages = (Stage(file, None, role),)
    facts = {"task": "classes", "classes": ("a",), "input_shape": (3, 8, 8), "preprocess": None, "policy": None}
    rest = {"checks": (), "asked": (), "most_lost": 0.01}
    return Bundle(folder, kind, precision, "0" * 64, {"full": file}, stages, **facts, **rest)


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
@pytest.mark.parametrize(("precision", "hint"), [("fp32", "f32"), ("int8", "f32"), ("bf16", "bf16")])
def test_no_graph_is_compiled_without_its_precision(kind, precision, hint, graphs, monkeypatch):
    monkeypatch.setattr("supple.runtime.engine.has_bf16", lambda: True)
    told = []

    class Core:
        """Writes down what it is asked for, and compiles in fp32."""

        def __init__(self) -> None:
            self.core = OpenVino()

        def read_model(self, *given):
            return self.core.read_model(*given)

        def compile_model(self, model, device, settings):
            told.append(settings.get("INFERENCE_PRECISION_HINT"))
            return self.core.compile_model(model, device, {"INFERENCE_PRECISION_HINT": "f32"})

    OpenVino = openvino.Core
    monkeypatch.setattr("supple.runtime.openvino_engine.openvino.Core", Core)
    x = (np.zeros((1, 3, 8, 8), np.float32),)
    engine = open_engine("openvino", bundle_of(graphs, kind, precision), 1)
    engine.run_point("full", x)
    engine.run_point("full", (x[0].repeat(2, 0),))
    assert told == [hint, hint]
    gate = open_engine("openvino", bundle_of(graphs, kind, precision, "gate"), 1)
    gate.run_stage(0, x)
    assert told == [hint, hint, "f32"]  # a score must not shift


@needs_bf16
@pytest.mark.parametrize(("precision", "name"), [("fp32", "f32"), ("int8", "f32"), ("bf16", "bf16")])
def test_a_compiled_graph_has_the_precision_that_it_was_told(precision, name, graphs):
    engine = open_engine("openvino", bundle_of(graphs, "onnx", precision), 1)
    engine.run_point("full", (np.zeros((1, 3, 8, 8), np.float32),))
    [compiled] = engine._compiled.values()
    assert compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == name


# --- int8 -------------------------------------------------------------------------------------------------------------


def test_weights_of_all_layers_have_seven_bits_in_openvino():
    """With eight, sums of two products overflow where there is no 8-bit dot product, not in the first layer only."""
    network = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)).eval()
    x = torch.rand(4, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    graph = Graph("full", FlatPoint(network), (x[:2],), FULL)
    files = with_nncf("full", convert.convert(graph, "openvino"), one_by_one((x,)), attention=False)
    model = openvino.Core().read_model(files["full.xml"], files["full.bin"])
    weights = [op.data for op in model.get_ops() if op.get_type_name() == "Constant" and op.data.dtype == np.int8]
    weights = [part for part in weights if part.ndim == 4]
    assert len(weights) == 2
    assert all(np.abs(part.astype(int)).max() <= 64 for part in weights)
