"""The figures of the networks worth having, and of token merging: goals and tables by hand."""

from types import SimpleNamespace

import numpy as np
import torch
from torch.utils.data import TensorDataset

import compare_measure
from supple.data.parts import labelled
from supple.experiments.results import pack, unpack
from token_merging import joined, table
from zoo import FLOOR, MET, early_enough, full_at_least, near_enough, page, policy_pays


def right(share: float) -> dict:
    return pack(np.arange(200) < 200 * share)


DOCUMENT = {
    "name": "cifar10_anytime",
    "machine": "a machine",
    "threads": 2,
    "minutes": 90.0,
    "n": 200,
    "checkpoint_bytes": 2_000_000,
    "points": [
        {"point": "exit=1", "macs": 10, "answers": right(0.87)},
        {"point": "exit=2", "macs": 20, "answers": right(0.91)},
        {"point": "full", "macs": 40, "answers": right(0.935)},
    ],
    "times": [
        {"point": name, "engine": "torch", "p50_ms": 10 * share, "share": share}
        for name, share in (("exit=1", 0.28), ("exit=2", 0.6), ("full", 1.0))
    ],
    "policies": [
        {"engine": "torch", "batch": batch, "reference_ms": 100.0, "mean_ms": ms, "answers": right(0.93), "where": {}}
        for batch, ms in ((1, 40.0), (32, 60.0))
    ],
}


def verdicts(goal) -> list[str]:
    return [row[-1] for row in goal(DOCUMENT)]


def met(goal) -> list[bool]:
    return [said == MET for said in verdicts(goal)]


def test_a_floor_that_is_kept_does_not_meet_the_goal():
    assert verdicts(full_at_least(94.0, 93.5)) == [FLOOR]
    assert verdicts(full_at_least(93.5, 93.0)) == [MET]
    assert verdicts(full_at_least(95.0, 94.0)) == ["**missed**, and so is the floor"]
    assert verdicts(full_at_least(94.0)) == ["**missed**"]


def test_a_point_is_early_enough_where_it_is_good_enough():
    assert verdicts(early_enough(87, 0.25, 0.30)) == [FLOOR]
    assert met(early_enough(87, 0.28, 0.30)) == [True]
    assert verdicts(early_enough(91, 0.50, 0.55)) == ["**missed**, and so is the floor"]
    assert met(early_enough(99, 1.0)) == [False]


def test_the_best_point_within_a_share_of_the_time_must_be_near_the_full_model():
    assert met(near_enough(0.5, 7.0)) == [True]
    assert met(near_enough(0.5, 6.0)) == [False]
    assert met(near_enough(0.1, 50.0)) == [False]


def test_a_policy_pays_where_it_is_fast_and_right():
    assert met(policy_pays({1: 2.2, 32: 1.8})) == [True, False]
    assert met(policy_pays({1: 2.2, 32: 1.6}, lost=0.4)) == [False, False]


def test_the_page_names_what_was_missed():
    rows = [line for line in page(DOCUMENT).splitlines() if "**missed**" in line]
    names = [row.split("|")[1].strip() for row in rows]
    assert names == ["accuracy at full", "a point of 87 %", "a point of 91 %", "the policy, batch 32"]
    assert [row for row in rows if FLOOR in row] == rows[:2]


class Answering:
    """A predictor that knows every answer; the policy's are late, but for the first ones."""

    classes, policy = ("a", "b"), None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def warm(self, batch: int) -> None:
        pass

    def predict(self, x, point=None, confident=False):
        self.asked.append("policy" if confident else point)
        return [SimpleNamespace(label=self.classes[int(one.mean())], point="exit=1") for one in x]


def test_a_policy_answers_every_picture_and_is_timed_where_the_full_network_is(monkeypatch):
    monkeypatch.setattr(compare_measure, "TIMED_BATCHES", 2)
    labels = torch.tensor([0, 1, 1, 0, 1, 0, 0, 0])
    pixels = labels.float()[:, None, None, None].expand(-1, 1, 2, 2)
    one = Answering()
    found = compare_measure.follow(one, TensorDataset(pixels, labels), 2)
    assert one.asked == ["policy", "full", "full", "policy", "policy", "policy"]  # each is first as often
    assert unpack(found["answers"]).tolist() == [100.0] * 8
    assert found["where"] == {"exit=1": 8}
    assert found["mean_ms"] > 0 < found["reference_ms"]


def test_points_of_token_merging_that_lose_little_are_named():
    times = {"torch 1": {"p50_ms": 10.0, "p95_ms": 11.0}}
    half = {"torch 1": {"p50_ms": 5.0, "p95_ms": 6.0}}
    points = [
        {"point": "tokens=16", "accuracy": 0.60, "macs": 1e6, "times": half},
        {"point": "tokens=8", "accuracy": 0.715, "macs": 2e6, "times": half},
        {"point": "full", "accuracy": 0.72, "macs": 4e6, "times": times},
    ]
    text = table({"points": points, "remarks": []})
    assert "| 8 | 71.50 % | +0.50 | 2 | 5.0 | 0.50 |" in text
    assert "| 16 | 60.00 % | +12.00 |" in text
    assert text.rstrip().endswith("At most 1 point less than the full model: tokens=8.")


def test_parts_of_a_folder_become_one_set_in_the_order_of_the_classes():
    first, second = labelled(["0/b", "1/a"], torch.tensor([0, 1])), labelled(["0/a"], torch.tensor([0]))
    both = joined(first, second)
    assert list(map(str, both.images)) == ["0/a", "0/b", "1/a"]
    assert both.targets.tolist() == [0, 0, 1]
