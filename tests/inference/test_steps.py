"""Steps that somebody else puts in order: states kept between stages, joined and taken apart; and what many cost."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import supple
from supple import load
from supple.inference.engines import join, take
from supple.inference.latency import LATEST, LatencyEstimator
from supple.inference.predictor import Predictor
from supple.inference.walk import ends_late
from supple.training.build import data_of


@pytest.fixture(scope="module", params=["torch", "onnxruntime", "openvino"])
def predictor(request, exits_run, tmp_path_factory) -> Predictor:
    if request.param == "torch":
        return supple.predictor(exits_run, "torch", threads=1, warm=False)
    pytest.importorskip("onnxscript", reason="needs the extra export")
    data = data_of(exits_run).train
    folder = supple.export(load(exits_run), tmp_path_factory.mktemp("exported") / "onnx", calibration=data).folder
    return supple.predictor(folder, request.param, threads=1, warm=False)


def test_samples_that_meet_on_the_way_get_the_answers_they_get_alone(predictor):
    x = (torch.randn(5, *predictor.shape, generator=torch.Generator().manual_seed(1)).numpy(),)
    expected = predictor.run_point("full", x)
    last = len(predictor.stages) - 1
    first = predictor.run_body(0, take(x, np.arange(2)))
    second = predictor.run_body(0, take(x, np.arange(2, 5)))  # the engine may not write over the first
    together = join((first, second))
    middle = predictor.run_head(0, together)
    assert_close(middle, predictor.run_point("exit=1", x), atol=1e-4, rtol=1e-4)
    for k in range(1, last):
        together = predictor.run_body(k, together)
    rows = np.array([4, 0])
    found = predictor.run_head(last, take(together, rows))
    assert_close(found, expected[rows], atol=1e-4, rtol=1e-4)


def test_a_part_that_is_missing_stays_missing_when_states_are_joined():
    one, two = (np.zeros((1, 2)), None), (np.ones((2, 2)), None)
    joined, missing = join((one, two))
    assert (joined[:, 0].tolist(), missing) == ([0, 1, 1], None)
    assert join((one,)) is one


def test_the_mean_of_the_latest_steps_follows_the_machine():
    latency = LatencyEstimator()
    latency.learn("a", [10.0, 10.0, 10.0])
    assert latency.mean == 1.0
    for _ in range(LATEST):
        latency.note("a", 20.0)
    assert latency.mean == pytest.approx(2.0)
    latency.observe(4.0)
    assert latency.mean == pytest.approx(2.0 + 2 / LATEST)
    assert latency.spread == 2.0  # one in 128 is an exception
    for _ in range(10 * LATEST):
        latency.observe(1.0)
    assert latency.mean == pytest.approx(1.0)


@pytest.mark.parametrize(("expected", "left", "late"), [(5, 5, False), (5.1, 5, True), (0, -1, True)])
def test_the_rule_of_time(expected, left, late):
    assert ends_late(expected, left) is late
