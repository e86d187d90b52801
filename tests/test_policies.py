"""Which point answers, and the reason that is given; who stops where."""

import json
import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from supple.errors import CheckpointError, PointError
from supple.ladder import Ladder, Row
from supple.point import FULL, Point
from supple.policies import (
    Confident,
    choose_point,
    first_sure,
    last_finished,
    random_budgets,
    share_budget,
    sure_above,
    worth_going_on,
)

POINTS = (Point(exit=1), Point(exit=2), FULL)


def ladder() -> Ladder:
    """One image takes 2, 6, 12 ms; a batch of 16 takes ten times as long; another machine is a hundred times slower."""
    facts = (("exit=1", 10, 0.6, 2.0), ("exit=2", 30, 0.7, 6.0), ("full", 60, 0.8, 12.0))
    places = ((1, "here", 1), (16, "here", 10), (1, "there", 100))
    return Ladder(
        Row(name, macs=macs * 10**6, score=score, batch=batch, threads=2, machine=machine, p95_ms=ms * slower)
        for name, macs, score, ms in facts
        for batch, machine, slower in places
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, ("full", "full")),
        ({"asked": Point(exit=2)}, ("exit=2", "asked")),
        ({"asked": Point(exit=2), "deadline_ms": 1}, ("exit=2", "asked")),  # what is asked for is done
        ({"deadline_ms": 6}, ("exit=2", "deadline")),
        ({"deadline_ms": 100}, ("full", "deadline")),
        ({"budget_macs": 30e6}, ("exit=2", "budget")),
        ({"budget_macs": 1e9}, ("full", "budget")),
        ({"deadline_ms": 100, "budget_macs": 30e6}, ("exit=2", "deadline")),  # both hold
        ({"deadline_ms": 1}, ("exit=1", "deadline")),  # late is better than never
        ({"budget_macs": 1}, ("exit=1", "budget")),
        ({"deadline_ms": 60, "batch": 16}, ("exit=2", "deadline")),
        ({"deadline_ms": 600, "machine": "there"}, ("exit=2", "deadline")),
        ({"deadline_ms": 60, "machine": "there"}, ("exit=1", "deadline")),
    ],
    ids=str,
)
def test_the_best_point_within_the_limit_answers_and_the_reason_is_told(
    request_: dict[str, Any], expected: tuple[str, str]
) -> None:
    if "deadline_ms" in request_:
        request_ = {"machine": "here", **request_}
    point, reason = choose_point(ladder(), **request_)
    assert (str(point), reason) == expected


def test_a_deadline_without_times_is_an_error_not_a_guess() -> None:
    untimed = Ladder([Row("full", macs=5, score=0.5)])
    for rows, key in ((untimed, {}), (Ladder(), {}), (ladder(), {"machine": "elsewhere"})):
        with pytest.raises(PointError) as caught:
            choose_point(rows, deadline_ms=10, **key)
        assert "supple bench" in caught.value.cure


def test_a_budget_for_a_ladder_without_points_is_an_error_with_a_cure() -> None:
    with pytest.raises(PointError) as caught:
        choose_point(Ladder(), budget_macs=1e9)
    assert "supple evaluate" in caught.value.cure


def test_without_limits_no_ladder_is_needed() -> None:
    assert choose_point(Ladder()) == (FULL, "full")
    assert choose_point(Ladder(), asked=Point(exit=3)) == (Point(exit=3), "asked")


def test_the_quickest_point_answers_a_deadline_that_nothing_meets() -> None:
    slow, quick = Row("exit=1", batch=1, macs=10, p95_ms=4.0), Row("full", batch=1, macs=20, p95_ms=3.0)
    assert choose_point(Ladder([slow, quick]), deadline_ms=1.0) == (FULL, "deadline")


# --- confident --------------------------------------------------------------------------------------------------------


def test_a_sample_stops_at_the_first_exit_that_is_sure():
    confidences = torch.tensor([[0.9, 0.1], [0.5, 0.9], [0.5, 0.7], [0.6, 0.8]])
    assert first_sure(confidences, (0.6, 0.8)).tolist() == [0, 1, 2, 0]  # a threshold that is reached is enough
    assert first_sure(confidences, (math.inf, 0.0)).tolist() == [1, 1, 1, 1]
    assert first_sure(confidences, (math.inf, math.inf)).tolist() == [2, 2, 2, 2]
    assert first_sure(torch.empty(3, 0), ()).tolist() == [0, 0, 0]


def test_the_mask_of_a_policy_agrees_with_its_temperature_and_threshold():
    logits = torch.tensor([[math.log(3.0), 0.0], [math.log(9.0), 0.0]])  # 0.75 and 0.9; at temperature 2, 0.63 and 0.75
    policy = Confident(POINTS, (0.75, 0.74), (1.0, 2.0, 1.0))
    assert policy.sure(0, logits + 1e-6).tolist() == [True, True]
    assert policy.sure(1, logits).tolist() == [False, True]
    assert policy.sure(2, logits).tolist() == [True, True]  # the last answers whatever is left
    assert sure_above(POINTS, 0.8).sure(1, logits).tolist() == [False, True]


def test_a_policy_survives_json_and_never_is_null():
    policy = Confident(POINTS, (math.inf, 0.25), (1.5, 1.0, 0.5), "margin")
    document = json.loads(json.dumps(policy.to_json(), allow_nan=False))
    assert document["thresholds"] == [None, 0.25]
    assert Confident.from_json(document) == policy


@pytest.mark.parametrize(
    "change",
    [
        {"points": ["exit=0", "exit=2", "full"]},
        {"points": ["full"]},
        {"points": 3},
        {"thresholds": [0.5, "high"]},
        {"thresholds": [0.5, float("nan")]},
        {"temperatures": [1, 1, 0]},
        {"temperatures": [1, True, 1]},
        {"measure": "mood"},
        {"measure": ["margin"]},
    ],
)
def test_what_is_no_policy_is_refused_with_a_cure(change):
    document = sure_above(POINTS, 0.5).to_json() | change
    with pytest.raises(CheckpointError, match="no policy") as caught:
        Confident.from_json(document)
    assert "supple calibrate" in caught.value.cure
    with pytest.raises(CheckpointError):
        Confident.from_json([])


# --- budgeted ---------------------------------------------------------------------------------------------------------


def test_a_shared_budget_is_kept_used_and_given_to_the_least_sure():
    rng = torch.Generator().manual_seed(0)
    confidences, costs = torch.rand(200, 2, generator=rng), [1.0, 2.0, 4.0]
    spent = []
    for budget in (200, 300, 500, 700, 800):
        exits = share_budget(confidences, costs, budget)
        spent.append(sum(costs[k] for k in exits.tolist()))
        assert spent[-1] <= budget
        early, rest = confidences[exits == 0, 0], confidences[exits > 0, 0]
        assert len(rest) == 0 or len(early) == 0 or early.min() >= rest.max()
    assert spent == sorted(spent)
    assert spent[0] == 200  # all at the first exit
    assert spent[-1] == 800  # all at the last
    assert min(s / b for s, b in zip(spent, (200, 300, 500, 700, 800))) > 0.97


def test_a_shared_budget_below_the_cheapest_is_refused_with_the_least():
    with pytest.raises(PointError, match="too small") as caught:
        share_budget(torch.rand(10, 1), [2.0, 3.0], 19)
    assert "20" in caught.value.cure
    assert share_budget(torch.empty(0, 1), [2.0, 3.0], 0).tolist() == []


# --- anytime ----------------------------------------------------------------------------------------------------------


def test_the_last_exit_finished_within_a_budget():
    costs = [2, 5, 9]
    assert [last_finished(costs, budget) for budget in (1, 2, 4.9, 5, 9, 100)] == [None, 0, 0, 1, 2, 2]


def test_between_stages_only_what_can_be_finished_is_begun():
    costs = [2.0, 5.0, 9.0]  # the second stage takes 3, the third 4
    assert worth_going_on(2.0, costs, 0, budget=5)
    assert not worth_going_on(2.1, costs, 0, budget=5)  # it has begun late
    assert not worth_going_on(5.0, costs, 1, budget=8.9)
    assert not worth_going_on(0.0, costs, 2, budget=1e9)  # there is no next one


def test_random_budgets_are_the_mean_over_exits_and_pay_for_the_chosen_exit_only():
    """SL-ViT, Table 13: CNN branches with 71.27, 80.64 and 96.48 % give (71.27 + 80.64 + 96.48) / 3."""
    n, shares = 30_000, (0.7127, 0.8064, 0.9648)
    right = torch.stack([torch.arange(n) < share * n for share in shares], 1).float()
    right = right[torch.randperm(n, generator=torch.Generator().manual_seed(1))]
    score, cost = random_budgets(right, (1.0, 2.0, 6.0), torch.Generator().manual_seed(0))
    assert score == pytest.approx(0.8280, abs=3 * math.sqrt(0.83 * 0.17 / n))
    assert cost == pytest.approx(3.0, abs=0.05)
    # An exit that is always right at no cost, and one that never is: the draws decide both alike.
    sure, paid = random_budgets(
        torch.tensor([[1.0, 0.0]]).expand(1000, 2), (0.0, 1.0), torch.Generator().manual_seed(2)
    )
    assert_close(sure + paid, 1.0)
