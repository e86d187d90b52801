"""Who stops where, and what of a policy is kept in a file."""

import json
import math

import numpy as np
import pytest
import torch

from supple.errors import CheckpointError
from supple.point import FULL, Point
from supple.policy.policy import MEASURES, Policy, confidence, first_sure, probabilities, read_policy, stop_above

POINTS = (Point(exit=1), Point(exit=2), FULL)


# --- confidence -------------------------------------------------------------------------------------------------------


def test_three_measures_by_hand():
    logits = np.array([[math.log(3.0), 0.0]])  # probabilities 3/4 and 1/4
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    for measure, expected in (("max_probability", 0.75), ("margin", 0.5), ("entropy", 1 - entropy / math.log(2))):
        assert confidence(logits, measure) == pytest.approx([expected])
    # At temperature 1/2 the odds of 3 become 9: probabilities 0.9 and 0.1.
    assert confidence(logits, "max_probability", 0.5) == pytest.approx([0.9])


def test_probabilities_are_those_of_pytorch():
    logits = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    for temperature in (0.3, 1.0, 4.0):
        expected = (torch.from_numpy(logits) / temperature).softmax(1).numpy()
        np.testing.assert_allclose(probabilities(logits, temperature), expected, atol=1e-6)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("classes", [1, 2, 10, 1000])
def test_confidence_lies_in_0_to_1_with_a_certain_answer_at_1_and_a_flat_one_lowest(measure, classes):
    rng = np.random.default_rng(classes)
    some = confidence(100 * rng.normal(size=(200, classes)), measure)
    assert ((some >= 0) & (some <= 1)).all()
    certain = np.full((1, classes), -1e4)
    certain[0, 0] = 0
    assert confidence(certain, measure) == pytest.approx([1.0])
    flat = confidence(np.zeros((1, classes)), measure)
    lowest = 1.0 if classes == 1 else {"max_probability": 1 / classes}.get(measure, 0.0)
    assert flat == pytest.approx([lowest], abs=1e-6)


@pytest.mark.parametrize("measure", MEASURES)
def test_logits_that_are_not_numbers_are_not_sure_at_all(measure):
    assert confidence(np.array([[math.nan, 0.0], [math.inf, 0.0]]), measure).tolist() == [0.0, 0.0]


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_a_sample_stops_at_the_first_exit_that_is_sure():
    confidences = np.array([[0.9, 0.1], [0.5, 0.9], [0.5, 0.7], [0.6, 0.8]])
    assert first_sure(confidences, (0.6, 0.8)).tolist() == [0, 1, 2, 0]  # a threshold that is reached is enough
    assert first_sure(confidences, (math.inf, 0.0)).tolist() == [1, 1, 1, 1]
    assert first_sure(confidences, (math.inf, math.inf)).tolist() == [2, 2, 2, 2]
    assert first_sure(np.empty((3, 0)), ()).tolist() == [0, 0, 0]
    assert first_sure(np.empty((0, 2)), (0.5, 0.5)).tolist() == []


def test_the_mask_of_a_policy_agrees_with_its_temperature_and_threshold():
    logits = np.array([[math.log(3.0), 0.0], [math.log(9.0), 0.0]])  # 0.75 and 0.9; at temperature 2, 0.63 and 0.75
    policy = Policy(POINTS, (0.75, 0.74), (1.0, 2.0, 1.0))
    assert policy.stops(0, logits + np.array([1e-6, 0.0])).tolist() == [True, True]
    assert policy.stops(1, logits).tolist() == [False, True]
    assert policy.stops(2, logits).tolist() == [True, True]  # the last answers whatever is left
    assert stop_above(POINTS, 0.8).stops(1, logits).tolist() == [False, True]


# --- kept in a file ---------------------------------------------------------------------------------------------------


def test_a_policy_survives_json_and_never_is_null():
    policy = Policy(POINTS, (math.inf, 0.25), (1.5, 1.0, 0.5), "margin", (0.0, 0.75, 0.25))
    document = json.loads(json.dumps(policy.to_json(), allow_nan=False))
    assert document["thresholds"] == [None, 0.25]
    assert Policy.from_json(document) == policy


@pytest.mark.parametrize(
    "change",
    [
        {"points": ["full"]},
        {"points": 3},
        {"thresholds": [0.5, "high"]},
        {"thresholds": [0.5, float("nan")]},
        {"temperatures": [1, 1, 0]},
        {"temperatures": [1, True, 1]},
        {"shares": [0.5]},
        {"measure": "mood"},
        {"measure": ["margin"]},
    ],
)
def test_what_is_not_a_policy_is_refused_with_a_cure(change):
    document = stop_above(POINTS, 0.5).to_json() | change
    with pytest.raises(CheckpointError, match="not a valid policy") as caught:
        Policy.from_json(document)
    assert "supple calibrate" in caught.value.cure
    with pytest.raises(CheckpointError):
        Policy.from_json([])


@pytest.mark.parametrize(("imports", "cure"), [({}, "--import MODULE"), ({"imports": ["a", "thin"]}, "--import thin")])
def test_a_policy_with_a_field_of_another_module_asks_for_the_module_before_it_is_deleted(tmp_path, imports, cure):
    document = stop_above(POINTS, 0.5).to_json() | {"points": ["thin=1", "exit=2", "full"], "weights": "0"}
    (tmp_path / "policy.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match='"thin=1" is not a valid point') as caught:
        read_policy(tmp_path, imports)
    assert cure in caught.value.cure.partition("delete")[0]
    assert read_policy(tmp_path / "none") is None
