"""The core on hard cases: what the papers' methods will ask of it, with models small enough to check by eye."""

import random

import pytest
import torch
from torch import nn, tensor
from torch.testing import assert_close

from supple.errors import PointError
from supple.methods.exits import Exits
from supple.model import FlexibleModel, Output, Stage, select
from supple.point import FULL, Group, Point
from supple.scoring import evaluate, evaluate_group


class Sums(nn.Module):
    """A state of two tensors in a dict: the value so far, and the untouched input."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(tensor(gain))
        self.calls = 0

    def forward(self, state):
        self.calls += 1
        if not isinstance(state, dict):
            state = {"value": state, "input": state}
        return {"value": self.gain * state["value"] + state["input"], "input": state["input"]}


class Read(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, state):
        self.calls += 1
        return state["value"]


class TwoTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Sums(gain) for gain in (1.0, 2.0, 3.0))
        self.heads = nn.ModuleList(Read() for _ in range(3))


def test_a_state_of_two_tensors_crosses_a_cut_and_loses_the_same_samples():
    model = Exits(TwoTensors())
    x = tensor([[1.0], [10.0], [100.0]])
    run = model.run(x, model.points)
    assert_close(next(run).logits, 2 * x)  # x + x
    assert_close(run.send(tensor([2, 0])).logits, tensor([[500.0], [5.0]]))  # 2 * 2x + x
    assert_close(run.send(tensor([False, True])).logits, tensor([[16.0]]))  # 3 * 5x + x
    with pytest.raises(StopIteration):
        next(run)


def test_a_stopped_run_executes_its_prefix_and_only_the_heads_asked_for():
    backbone = TwoTensors()
    model = Exits(backbone)
    model(torch.ones(1, 1), Point(exit=2))
    assert [block.calls for block in backbone.blocks] == [1, 1, 0]
    assert [head.calls for head in backbone.heads] == [0, 1, 0]
    assert model.check(Point(exit=3)) == FULL


def test_closing_a_run_early_leaves_the_rest_unexecuted():
    backbone = TwoTensors()
    run = Exits(backbone).run(torch.ones(1, 1), [Point(exit=1), FULL])
    next(run)
    run.close()
    assert [block.calls for block in backbone.blocks] == [1, 0, 0]


def test_select_follows_tuples_dicts_and_masks():
    state = {"a": torch.arange(3), "b": (torch.arange(3) * 10, torch.arange(6).view(3, 2))}
    picked = select(state, tensor([True, False, True]))
    assert picked["a"].tolist() == [0, 2]
    assert [part.tolist() for part in picked["b"]] == [[0, 20], [[0, 1], [4, 5]]]


class Layers(FlexibleModel):
    """Regression over an order of layers: layer k maps v to 2v + k. Input: a tuple (image, sound or None)."""

    task = "count"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor(2.0))
        self.points = (Point(layers=(1,)), FULL)
        self.groups = {"any order": Group("any order", lambda rng: Point(layers=tuple(rng.sample((1, 2), 2))))}

    def canonical(self, point):
        return FULL if point.layers == (1, 2) else point

    def validate(self, point):
        """Any order will do."""

    def rank(self, point):
        return len(point.layers or (1, 2))

    def run(self, x, points):
        for point in self.order(points):
            image, sound = x
            value = image if sound is None else image + sound
            for layer in point.layers or (1, 2):
                value = self.weight * value + layer
            yield Output(point, value, aux={"last": value}, cost=torch.full((len(value),), 2.0))


class Pairs:
    """Inputs that are tuples and targets that are numbers."""

    at_once = None

    def __init__(self) -> None:
        self.image, self.target = tensor([[0.0], [1.0]]), tensor([4.0, 9.0])

    def __len__(self):
        return 2

    def batch(self, indices, rng=None):
        return (self.image[indices], None), self.target[indices]


def test_a_regression_with_a_tuple_input_is_evaluated_like_anything_else():
    scores = evaluate(Layers(), Pairs())  # layers=1: 1, 3; full: 2 (2v + 1) + 2 = 4, 8
    assert [(score.name, score.score, score.higher_is_better) for score in scores] == [
        ("layers=1", 4.5, False),
        ("full", 0.5, False),
    ]


def test_a_group_scores_as_mean_and_deviation_over_its_draws():
    model = Layers()
    rng = random.Random(3)
    drawn = [model.groups["any order"].sample(rng) for _ in range(8)]
    assert {point.layers for point in drawn} == {(1, 2), (2, 1)}
    # The order 2-1 gives 2 (2v + 2) + 1 = 5, 9: off by 1 and 0. The order 1-2 gives 4, 8: off by 0 and 1.
    score = evaluate_group(model, Pairs(), model.groups["any order"], draws=8, seed=3)
    assert (score.name, score.score, score.deviation, score.draws) == ("any order", 0.5, 0.0, 8)


def test_a_model_without_cuts_is_a_chain_of_one_stage():
    model = Layers()
    (stage,) = model.stages()
    assert isinstance(stage, Stage)
    _, logits = stage((tensor([[1.0]]), None))
    assert_close(logits, tensor([[8.0]]))
    assert model.compilable_modules() == []
    assert model.trunk is None


def test_a_point_may_be_given_in_its_short_form_wherever_a_point_is():
    model, x = Exits(TwoTensors()), torch.ones(2, 1)
    assert model.check(" exit=3 ") == FULL
    assert_close(model(x, "exit=1"), 2 * x)
    assert [output.point for output in model(x, ["full", "exit=1"])] == [Point(exit=1), FULL]
    assert [output.point for output in model.run(x, "exit=1")] == [Point(exit=1)]
    assert_close(model.extract("exit=1")(x), 2 * x)
    assert [score.name for score in evaluate(Layers(), Pairs(), ["full"])] == ["full"]
    for wrong in ("exit=9", "wide", None, 2):
        with pytest.raises(PointError):
            model.check(wrong)


def test_what_a_method_does_not_declare_it_cannot_do():
    model = Layers()
    assert (model.taps, model.mergeable(), model.backbone, model.policy, model.backbone_spec) == (
        (),
        (),
        None,
        None,
        None,
    )
    assert (model.cached_features(), model.pruning_scores(), model.layer_gates()) == (None, None, None)
    assert model.axes == ("layers",)


def test_a_stage_with_a_head_names_the_point_that_it_answers():
    with pytest.raises(AssertionError, match="answers a point"):
        Stage(nn.Identity(), nn.Identity())


def test_outputs_keep_what_a_penalty_needs():
    (output,) = Layers()((tensor([[1.0]]), tensor([[1.0]])), [FULL])
    assert_close(output.aux["last"], output.logits)
    assert output.cost.tolist() == [2.0]
    assert Layers().penalty([output]) == 0


def test_a_method_that_does_not_write_run_says_so():
    with pytest.raises(NotImplementedError, match="must write run"):
        FlexibleModel().run(None, [FULL])
