"""Points of a real model, scored and timed: in PyTorch, and as graphs that are thrown away afterwards."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import supple
from supple import FULL, Point
from supple.errors import CheckpointError, RecipeError
from supple.searching import measure
from supple.searching.measure import check_engine, time_points, tools_of, with_points

SHAPE = (3, 16, 16)
DATA = TensorDataset(torch.randn(12, *SHAPE), torch.arange(12) % 4)
UNPUBLISHED = [Point(exit=2, width=0.5), FULL]


@pytest.fixture(scope="module")
def model() -> supple.FlexibleModel:
    """Four points that can be run, two of them published."""
    settings = {"widths": (0.5, 1.0), "at": ["2"], "points": ("exit=1,width=0.5", "full")}
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 4),
    )
    return supple.elastic(network, input_shape=SHAPE, num_classes=4, **settings).eval()


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr(measure, "ROUNDS", 5)


def test_a_view_has_other_points_and_the_same_weights(model):
    view = with_points(model, ["width=0.5"])
    assert [str(point) for point in view.points] == ["width=0.5", "full"]
    assert [str(point) for point in model.points] == ["exit=1,width=0.5", "full"]
    assert next(view.parameters()) is next(model.parameters())
    x = torch.randn(2, *SHAPE)
    assert torch.equal(view(x, "width=0.5"), model(x, "width=0.5"))


def test_the_tools_of_a_model_count_score_and_time_points_that_are_not_published(model):
    tools = tools_of(model, DATA, engine="torch", threads=1, device="cpu")
    points, done = [Point(width=0.5), FULL], []
    rows = supple.profile(model, points)
    assert [tools.macs(point) for point in points] == [row.macs for row in rows]
    scores = tools.score(points, done.append)
    assert [(score.name, score.n) for score in scores] == [("width=0.5", 12), ("full", 12)]
    assert sum(done) == 12
    timed = {row.point: row for row in tools.time(points)}
    assert set(timed) == {"width=0.5", "full"}
    assert all(row.p95_ms >= row.p50_ms > 0 and row.batch == 1 and row.engine == "torch" for row in timed.values())
    assert len(model.ladder) == 0, "the model's own ladder is left alone"


@pytest.mark.system
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_an_engine_times_graphs_that_are_gone_afterwards(model, engine, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    view = with_points(model, [Point(width=0.5), FULL])
    rows = time_points(view, [Point(width=0.5), FULL], DATA, engine=engine, threads=1, device="cpu")
    assert {(row.point, row.engine, row.precision, row.folder) for row in rows} == {
        (point, engine, "fp32", None) for point in ("width=0.5", "full")
    }
    assert list(tmp_path.iterdir()) == []


def test_a_point_that_cannot_be_exported_is_named_and_left_out_but_the_full_model_must_be(model, monkeypatch, capsys):
    write = measure.write_graphs

    def refusing(model, weights, out: Path, wanted, data):
        if wanted.points != allowed:
            raise CheckpointError("it has a part that no exporter knows.", "Leave it out.")
        return write(model, weights, out, wanted, data)

    monkeypatch.setattr(measure, "write_graphs", refusing)
    view = with_points(model, [Point(width=0.5), FULL])
    allowed = (FULL,)
    rows = time_points(view, [Point(width=0.5), FULL], DATA, engine="onnxruntime", threads=1, device="cpu")
    assert [row.point for row in rows] == ["full"]
    assert "width=0.5 is left out: it has a part" in capsys.readouterr().err
    allowed = (Point(width=0.5),)
    with pytest.raises(CheckpointError, match="no exporter knows"):
        time_points(view, [FULL, Point(width=0.5)], DATA, engine="onnxruntime", threads=1, device="cpu")


def test_an_engine_that_is_not_here_is_refused(model, monkeypatch):
    with pytest.raises(RecipeError, match='no engine "openvio"') as caught:
        check_engine(model, "openvio", "cpu")
    assert "openvino" in caught.value.cure
    monkeypatch.setattr(measure, "available", lambda kind: [])
    with pytest.raises(RecipeError, match="openvino is not installed") as caught:
        check_engine(model, "openvino", "cpu")
    assert "pip install" in caught.value.cure
