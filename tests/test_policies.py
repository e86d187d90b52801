"""Which point answers, and the reason that is given."""

from typing import Any

import pytest

from supple.errors import PointError
from supple.ladder import Ladder, Row
from supple.point import FULL, Point
from supple.policies import choose_point


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
