"""What exported files say of themselves, and that it is enough to answer without supple."""

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_export import Noise

from supple.checkpoint import load, versions
from supple.data.audio.spectrogram import SpectrogramConfig
from supple.data.preprocess import Preprocess
from supple.exporting import write
from supple.exporting.convert import convert
from supple.exporting.graphs import FlatPoint, Graph, input_names, skip_graphs
from supple.exporting.metadata import metadata, write_metadata
from supple.exporting.write import Held, Wanted, export
from supple.inference.bundle import FORMAT, open_bundle
from supple.inference.select import predictor
from supple.ladder import Ladder
from supple.model import example
from supple.point import FULL, Point
from supple.training.build import data_of
from test_contract import make

onnx = pytest.importorskip("onnx", reason="needs the extra export")
openvino = pytest.importorskip("openvino", reason="needs the extra export")
pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
Names = tuple[list[str], list[str]]  # of inputs and outputs


def names_of(path: Path) -> Names:
    if path.suffix == ".onnx":
        graph = onnx.load(path).graph
        return [entry.name for entry in graph.input], [entry.name for entry in graph.output]
    model = openvino.Core().read_model(path)
    return [name for entry in model.inputs for name in entry.names], [n for out in model.outputs for n in out.names]


def facts_of(path: Path) -> dict[str, str]:
    """The metadata without the prefix of its keys."""
    if path.suffix == ".onnx":
        found = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
        assert all(key.startswith("supple.") for key in found)
        return {key.removeprefix("supple."): value for key, value in found.items()}
    about = openvino.Core().read_model(path).get_rt_info(["supple"]).astype(dict)
    return {key: value.astype(str) for key, value in about.items()}


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_tensors_are_called_by_what_they_hold(precision, traced_once, tmp_path, monkeypatch):
    """Pictures and sounds in, a density out, states between; the first head does not read the sound."""
    monkeypatch.setattr(write, "CALIBRATED_ON", 8)
    model = make("exits", "audiocsrnet")
    model.task = "count"
    noise = Noise(model.input_shape)
    both, state, density = ["image", "audio"], ["state_0", "state_1"], ["density"]
    expected = {"exit-2": (both, density), "body-1": (both, state), "head-1": (state, density)}
    for to, ending in (("onnx", ".onnx"), ("openvino", ".xml")):
        out = tmp_path / to
        wanted = Wanted(to, precision, (Point(exit=2),), max_drop=1e9)
        export(model, "0" * 64, out, wanted, Held(noise, noise, noise))
        for name, (takes, gives) in {**expected, "head-2": (state, density)}.items():
            inputs, outputs = names_of(out / f"{name}{ending}")
            used = takes if to == "onnx" else [one for one in takes if one in inputs]  # OpenVINO drops the others
            assert (inputs, outputs) == (used, gives)
        assert open_bundle(out).inputs[f"head-1{ending}"] == ("state_0", "state_1")


def test_the_first_dimension_is_the_batch_and_no_path_of_this_machine_is_left(folder):
    for path in folder.glob("*.onnx"):
        graph = onnx.load(path).graph
        for entry in (*graph.input, *graph.output):
            first, *others = entry.type.tensor_type.shape.dim
            assert first.dim_param == "batch"
            assert all(side.dim_value for side in others)
        assert b"site-packages" not in path.read_bytes()
        assert b"graphs.py" not in path.read_bytes()


def test_the_layers_of_a_skipping_model_hand_over_states_and_scores():
    model = make("skip", "vit_cifar")
    graphs = skip_graphs(model, example(model.input_shape, 2, torch.randn))
    there = {"image"}
    for graph in graphs:
        assert there.issuperset(graph.takes)
        assert there.isdisjoint(graph.gives)
        there.update(graph.gives)
    assert graphs[0].gives == ("state_0", "scores_0")
    assert graphs[-1].gives == ("logits",)


def test_sounds_are_called_audio():
    model = make("exits", "msdnet")
    assert input_names(model) == ("image",)
    model.preprocess = Preprocess(16, 1, (0.5,), (0.5,), spectrogram=SpectrogramConfig(8000, 1.0, "mel", mels=16))
    assert input_names(model) == ("audio",)


# --- metadata ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(exits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the tests, exported to ONNX up to its second exit."""
    out = tmp_path_factory.mktemp("exported") / "onnx"
    export(load(exits_run), "0" * 64, out, Wanted(points=(Point(exit=2), FULL)), data_of(exits_run))
    return out


def test_a_file_knows_its_preprocessing_its_classes_its_point_and_its_score(folder, exits_run):
    model = load(exits_run)
    [row] = [row for row in model.ladder if row.point == "exit=2"]
    told = facts_of(folder / "exit-2.onnx")
    preprocess = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in model.preprocess.to_json().items()
    }
    assert told.items() >= preprocess.items()
    assert {"mean", "std", "size", "channels", "crop_share", "interpolation"} <= preprocess.keys()
    assert json.loads(told["classes"]) == list(model.classes)
    assert (told["task"], told["role"], told["point"], told["precision"]) == ("classes", "point", "exit=2", "fp32")
    assert (float(told["score"]), told["metric"], int(told["samples"])) == (row.score, "accuracy", row.n)
    assert (told["version"], int(told["format"])) == (versions()["supple"], FORMAT)
    assert facts_of(folder / "head-2.onnx") == {**told, "role": "head"}
    body = facts_of(folder / "body-1.onnx")
    assert told.keys() - body.keys() == {"point", "score", "metric", "samples"}


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_in_int8_the_score_is_the_one_measured_in_int8(to, exits_run, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "CALIBRATED_ON", 8)
    out = tmp_path / to
    export(load(exits_run), "0" * 64, out, Wanted(to, "int8", (Point(exit=2),), max_drop=1.0), data_of(exits_run))
    bundle = open_bundle(out)
    told = facts_of(bundle.path(bundle.graphs.points["exit=2"]))
    row = next(iter(bundle.ladder))
    assert (row.precision, told["precision"]) == ("int8", "int8")
    assert (float(told["score"]), int(told["samples"])) == (row.score, row.n)
    assert "score" not in facts_of(bundle.path(str(bundle.graphs.stages[-1].head)))  # along a chain it may be another
    assert names_of(bundle.path(bundle.graphs.points["exit=2"])) == (["image"], ["logits"])


def test_classes_of_any_name_are_read_back():
    model = make("exits", "msdnet")
    model.classes = ("café", 'a "b"', "caf\udce9")  # the last: a folder whose name is not UTF-8
    told = metadata(model, Graph("full", torch.nn.Identity(), (), FULL), "fp32", Ladder())["classes"]
    assert "café" in told
    assert tuple(json.loads(told.encode().decode())) == model.classes


# --- without supple ---------------------------------------------------------------------------------------------------


@pytest.fixture
def answered(tmp_path, monkeypatch, capsys):
    """Runs the lines of the page: what they print, and what they gave the network."""
    section = PAGE.read_text().partition("\n## Without supple\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert re.findall(r"^(?:import|from) (.*)", code, flags=re.MULTILINE) == [
        "json, sys",
        "numpy, onnxruntime",
        "PIL import Image, ImageOps",
    ]
    (tmp_path / "answer.py").write_text(code)

    def run(graph: Path, picture: Path) -> tuple[str, Any]:
        monkeypatch.setattr(sys, "argv", ["answer.py", str(graph), str(picture)])
        capsys.readouterr()
        left = runpy.run_path(str(tmp_path / "answer.py"))
        return capsys.readouterr().out.strip(), left["x"].transpose(2, 0, 1)[None]

    return run


SIZES = [(16, 16), (9, 5), (16, 40), (40, 30), (333, 217), (100, 1000)]  # width, height; the input is 16 x 16


def pictures(folder: Path) -> list[Path]:
    """Of many sizes, smooth as photos are; one lies on its side and says so."""
    rng, paths = np.random.default_rng(0), []
    for number, size in enumerate(SIZES):
        coarse = Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8))
        paths.append(folder / f"{number}.png")
        coarse.resize(size, Image.Resampling.BICUBIC).save(paths[-1])
    exif = Image.Exif()
    exif[0x0112] = 6
    coarse.resize((60, 90), Image.Resampling.BICUBIC).save(folder / "turned.jpg", exif=exif)
    return [*paths, folder / "turned.jpg"]


def test_ten_lines_without_supple_give_the_label_that_supple_gives(folder, answered, tmp_path):
    with predictor(folder, "onnxruntime", threads=1) as made:
        for path in pictures(tmp_path):
            label, x = answered(folder / "full.onnx", path)
            assert label == made.predict(path).label
            np.testing.assert_allclose(x, made.preprocess.arrays(path)[0], atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("resizing", [{"crop_share": 0.875, "interpolation": "bicubic"}, {"crop_share": 0.7}], ids=str)
def test_the_same_lines_follow_crop_share_interpolation_and_channels(channels, resizing, answered, tmp_path):
    """A network with a class for every pixel, on grey and coloured pictures."""
    model = make("exits", "msdnet")
    model.preprocess = Preprocess(16, channels, (0.4,) * channels, (0.2,) * channels, **resizing)
    model.classes = tuple(map(str, range(channels * 16 * 16)))
    network = torch.nn.Flatten().eval()
    graph = Graph("full", FlatPoint(network), (torch.zeros(2, channels, 16, 16),), FULL)
    (tmp_path / "full.onnx").write_bytes(convert(graph, "onnx")["full.onnx"])
    write_metadata(tmp_path / "full.onnx", metadata(model, graph, "fp32", Ladder()))
    for path in pictures(tmp_path):
        label, x = answered(tmp_path / "full.onnx", path)
        assert label == model.classes[int(x.argmax())]
        np.testing.assert_allclose(x, model.preprocess.arrays(path)[0], atol=1e-5)
