"""Running a policy on a batch: who leaves early, and that nobody notices."""

import math

import pytest
import torch
from torch.testing import assert_close

from supple import FULL, Point, load
from supple.assemble import data_of
from supple.early import run_anytime, run_policy, stopping_at, time_exits, time_policy
from supple.model import FlexibleModel
from supple.policies import Confident, sure_above


@pytest.fixture(scope="module")
def model(exits_run) -> FlexibleModel:
    return load(exits_run)


@pytest.fixture(scope="module")
def images(exits_run) -> torch.Tensor:
    return data_of(exits_run).test.batch(torch.arange(40))[0]


@pytest.fixture(scope="module")
def policy(model, images) -> Confident:
    """Thresholds at the medians of what these images give: some stop at every point."""
    levels = [output.logits.softmax(1).amax(1).median().item() for output in model(images, model.points)]
    return Confident(model.points, (levels[0] + 1e-4, levels[1] + 1e-4), (1.0, 1.0, 1.0))


def watched(model: FlexibleModel, monkeypatch) -> list[int]:
    """Records how many samples each head is asked about."""
    sizes: list[int] = []
    for stage in model.stages():
        head = stage.head
        forward = head.forward

        def counted(state, forward=forward):
            logits = forward(state)
            sizes.append(len(logits))
            return logits

        monkeypatch.setattr(head, "forward", counted)
    return sizes


def test_a_batch_gives_each_image_the_answer_it_gets_alone(model, images, policy):
    together = run_policy(model, images, policy)
    assert len(set(together.exits.tolist())) == 3
    assert sum(together.shares()) == pytest.approx(1)
    for i, image in enumerate(images):
        alone = run_policy(model, image[None], policy)
        assert alone.exits.tolist() == [together.exits[i]]
        assert_close(alone.logits[0], together.logits[i])
        assert_close(together.logits[i], model(image[None], policy.points[together.exits[i]])[0])


def test_those_who_stop_leave_the_batch(model, images, policy, monkeypatch):
    sizes = watched(model, monkeypatch)
    stopped = run_policy(model, images, policy)
    counts = torch.bincount(stopped.exits, minlength=3).tolist()
    assert sizes == [40, 40 - counts[0], counts[2]]


@pytest.mark.parametrize(("least", "exits", "heads"), [(0.0, 0, [40]), (1.5, 2, [40, 40, 40])])
def test_all_at_once_or_nobody_before_the_end(model, images, monkeypatch, least, exits, heads):
    sizes = watched(model, monkeypatch)
    stopped = run_policy(model, images, sure_above(model.points, least))
    assert stopped.exits.tolist() == [exits] * 40
    assert sizes == heads
    assert_close(stopped.logits, model(images, model.points[exits]))


def test_points_left_out_are_not_looked_at(model, images, policy, monkeypatch):
    sizes = watched(model, monkeypatch)
    only = Confident((Point(exit=1), FULL), policy.thresholds[:1], (1.0, 1.0))
    stopped = run_policy(model, images, only)
    assert sizes == [40, int(stopped.exits.sum())]
    assert run_policy(model, images, Confident((FULL,), (), (1.0,))).exits.tolist() == [0] * 40


def test_an_empty_batch_gives_empty_answers(model, images, policy):
    stopped = run_policy(model, images[:0], policy)
    assert stopped.logits.shape == (0, 4)
    assert stopped.exits.tolist() == []
    assert stopped.shares() == [0.0, 0.0, 0.0]


def test_a_policy_runs_on_widths_too_where_every_point_starts_anew(slim_run):
    slim = load(slim_run)
    images = data_of(slim_run).test.batch(torch.arange(16))[0]
    level = slim(images, Point(width=0.5)).softmax(1).amax(1).median().item() + 1e-4
    stopped = run_policy(slim, images, sure_above(slim.points, level))
    assert 0 < int(stopped.exits.sum()) < 16
    for i, place in enumerate(stopped.exits.tolist()):
        assert_close(stopped.logits[i], slim(images[i : i + 1], slim.points[place])[0])


def test_anytime_answers_from_the_last_point_that_the_clock_allows(model, images):
    costs_ms = [2.0, 5.0, 9.0]
    for budget, expected in ((0.0, "exit=1"), (4.9, "exit=1"), (5.0, "exit=2"), (9.0, "full")):
        spent = iter([0.0, *(ms / 1000 for ms in costs_ms)])  # the clock, as planned
        output = run_anytime(model, images, budget, costs_ms, now=lambda spent=spent: next(spent))
        assert str(output.point) == expected
        assert_close(output.logits, model(images, output.point))
    late = iter([0.0, 0.004, 0.008])  # the first stage took 4 instead of 2: the next would end at 7
    assert str(run_anytime(model, images, 6.5, costs_ms, now=lambda: next(late)).point) == "exit=1"


def test_a_forced_stop_takes_the_same_way_and_ends_where_it_is_told(model, images, policy):
    for place in range(3):
        forced = stopping_at(policy, place)
        assert run_policy(model, images, forced).exits.tolist() == [place] * 40
        assert (forced.points, forced.temperatures) == (policy.points, policy.temperatures)
    assert stopping_at(policy, 2).thresholds == (math.inf, math.inf)


def test_times_come_per_policy_and_per_point(model, images, policy):
    times = time_exits(model, [stopping_at(policy, place) for place in range(3)], images[:1], rounds=5)
    assert len(times) == 3
    assert min(times) > 0
    real, forced = time_policy(model, policy, images.split(1))
    stopped = run_policy(model, images, policy).exits.tolist()
    assert [ms is not None for ms in real] == [place in stopped for place in range(3)]
    assert min(forced) > 0
    real, forced = time_policy(model, stopping_at(policy, 0), images.split(1))
    assert real[1:] == [None, None]
