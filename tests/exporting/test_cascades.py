"""A cascade in an exported folder: its points have graphs, and answer on ONNX Runtime as they do in PyTorch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from supple.errors import RecipeError
from supple.exporting.write import Held, Wanted, export, up_to_date
from supple.inference.bundle import open_bundle
from supple.inference.select import Choice, checked, predictor, within
from supple.point import FULL, Point
from supple.policy.policy import Policy
from test_contract import make

pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")

SMALL = Point(exit=1, width=0.5)
WEIGHTS = "0" * 64


@pytest.fixture
def model():
    """Exits at two widths, of which few points are published."""
    made = make("elastic", "fastnet")
    made.points = (Point(width=0.5), FULL)
    return made


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(4))


@pytest.mark.system
def test_a_cascade_answers_on_onnxruntime_what_its_points_answer_in_pytorch(model, traced_once, tmp_path):
    x, points = images(12), (SMALL, Point(width=0.5), FULL)
    with torch.no_grad():
        logits = [output.logits for output in model(x, points)]
    sure = [one.softmax(1).amax(1) for one in logits]
    levels = tuple((one.sort().values[5:7].mean().item()) for one in sure[:-1])  # between the 6th and the 7th of 12
    model.policy = Policy(points, levels, (1.0,) * 3)
    assert SMALL not in model.points
    export(model, WEIGHTS, tmp_path / "onnx", Wanted(), Held())
    bundle = open_bundle(tmp_path / "onnx")
    assert list(bundle.graphs.points) == ["exit=1,width=0.5", "width=0.5", "full"]
    assert [stage.point for stage in bundle.graphs.stages] == ["exit=1", "exit=2", "exit=3", "full"]  # as ever
    assert bundle.ladder.rows[0].point == "exit=1,width=0.5"
    with predictor(tmp_path / "onnx", "onnxruntime", threads=1) as made:
        answers = made.predict(x.numpy(), confident=True)
    for i, answer in enumerate(answers):
        stops = [bool(model.policy.stops(place, one[i : i + 1].numpy())[0]) for place, one in enumerate(logits)]
        assert answer.point == str(points[stops.index(True)])
        np.testing.assert_allclose(answer.logits, logits[stops.index(True)][i].numpy(), atol=1e-4)
    assert len({answer.point for answer in answers}) > 1


@pytest.mark.system
def test_a_folder_without_a_point_that_was_named_since_is_not_up_to_date(model, traced_once, tmp_path):
    folder = tmp_path / "onnx"
    export(model, WEIGHTS, folder, Wanted(), Held())
    model.policy = Policy((Point(width=0.5), FULL), (0.5,), (1.0, 1.0))
    assert up_to_date(folder, model, WEIGHTS, Wanted()).policy == model.policy
    model.policy = Policy((SMALL, FULL), (0.5,), (1.0, 1.0))
    with pytest.raises(RecipeError, match="made without exit=1,width=0.5, which supple calibrate has named") as caught:
        up_to_date(folder, model, WEIGHTS, Wanted())
    assert "--out" in caught.value.cure
    choice: Choice = checked(open_bundle(folder))[0]
    assert within(choice, 0.01)
    older = replace(choice.source, policy=model.policy)  # as RUN/export follows the run's own
    assert older.missing() == ["exit=1,width=0.5"]
    assert not within(replace(choice, source=older), 0.01)
    assert replace(older, asked=("full",)).missing() == []  # somebody wanted no other points
