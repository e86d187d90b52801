"""Figures of runs, worked out by hand."""

import json
from typing import Any

import numpy as np
import pytest

from serve_client import Outcome, Request
from serve_count import (
    Phase,
    Row,
    about,
    arrivals,
    at_least,
    became,
    between,
    figures,
    grown,
    lag_row,
    phased,
    quantiles,
    read,
    table,
)


def outcome(
    status: int | None,
    took_ms: float,
    body: Any = None,
    *,
    due: float = 0.0,
    lag_ms: float = 0.0,
    deadline: float = 100.0,
) -> Outcome:
    request = Request(b"", truth="cat", deadline_ms=deadline)
    raw = b"" if body is None else json.dumps(body).encode()
    trouble = "the connection was closed" if status is None else ""
    return Outcome(request, due, due + lag_ms / 1000, due + took_ms / 1000, status, raw, trouble)


def answer(label: str, point: str, reason: str = "full") -> dict[str, Any]:
    return {"predictions": [{"label": label, "point": point, "reason": reason}]}


RUN = [
    outcome(200, 50, answer("cat", "full"), lag_ms=1),
    outcome(200, 90, answer("dog", "exit=1", "load"), lag_ms=2),
    outcome(200, 130, answer("cat", "full"), lag_ms=3),
    outcome(503, 2, {"error": {"code": "overloaded", "message": "x"}}, lag_ms=4),
    outcome(504, 140, {"error": {"code": "late", "message": "x"}}),
    outcome(None, 10),
    outcome(500, 10, {"error": {"code": "internal"}}),
]


def test_every_request_becomes_one_thing() -> None:
    assert [became(one) for one in RUN] == ["in time", "in time", "late", "rejected", "late", "lost", "lost"]


def test_the_figures_of_a_run_by_hand() -> None:
    found = figures(RUN)
    assert (found.sent, found.in_time, found.late, found.rejected, found.lost) == (7, 2, 2, 1, 2)
    assert (found.answered, found.right, found.accuracy) == (3, 2, 2 / 3)
    assert found.share == 2 / 7
    assert found.answer_ms == pytest.approx((90, 90 + 0.98 * 40))
    assert found.refusal_ms == pytest.approx((2, 2, 2))
    assert found.late_by_ms == pytest.approx((30, 30))
    assert found.points == {"exit=1": 1, "full": 2}
    assert found.reasons == {"full": 2, "load": 1}
    assert found.codes == {"500 internal": 1, "503 overloaded": 1, "504 late": 1, "the connection was closed": 1}


def test_a_run_without_any_answer_has_figures_and_a_table() -> None:
    found = figures([outcome(None, 5)])
    assert found.answer_ms is None
    assert found.refusal_ms is None
    assert "0, 0, 0, 1 of 1" in table(about(found))


def test_answers_of_plain_servers_are_read_as_well() -> None:
    assert read(outcome(200, 1, {"label": "cat", "point": "full"})) == {"label": "cat", "point": "full"}
    assert read(outcome(200, 1, [1, 2])) == {}
    assert read(outcome(200, 1)) == {}


def test_arrivals_are_a_poisson_process_that_a_seed_repeats() -> None:
    due = arrivals(50, 20_000, 1e9, seed=1)
    gaps = np.diff([0.0, *due])
    assert due == arrivals(50, 20_000, 1e9, seed=1)
    assert due != arrivals(50, 20_000, 1e9, seed=2)
    assert due == sorted(due)
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.05)  # of an exponential: equal to its mean


def test_arrivals_end_at_a_count_or_a_time() -> None:
    assert len(arrivals(50, 10, 1e9, seed=0)) == 10
    assert max(arrivals(50, 10_000, 2.0, seed=0)) < 2.0
    with pytest.raises(SystemExit):
        arrivals(0, 10, 1, seed=0)


def test_phases_follow_one_another_each_with_its_rate() -> None:
    due, begins = phased([Phase("calm", 10, 20), Phase("rush", 100, 10), Phase("calm", 10, 20)], seed=0)
    assert begins == [0, 20, 30, 50]
    counts = [sum(low <= one < high for one in due) for low, high in zip(begins, begins[1:])]  # noqa: RUF007
    assert counts[1] > 4 * counts[0]
    assert counts[1] == pytest.approx(1000, rel=0.15)
    assert sum(counts) == len(due)


def test_a_stretch_of_a_run_goes_by_when_requests_were_due() -> None:
    run = [outcome(200, 1, due=100 + second) for second in range(5)]
    assert between(run, start=100, begin=1, end=3) == run[1:3]


def test_a_goal_that_is_missed_is_marked_and_one_that_is_met_is_not() -> None:
    assert "**missed**" in table([at_least("in time", 0.94, 0.95)])
    assert "**missed**" not in table([at_least("in time", 0.95, 0.95), Row("points", "full")])


def test_a_run_whose_sends_lag_does_not_count() -> None:
    late = figures([outcome(200, 50, answer("cat", "full"), lag_ms=6)])
    assert lag_row(late).met is False
    assert lag_row(figures(RUN)).met is True


def test_growth_is_that_of_the_ends_and_not_of_a_peak() -> None:
    assert grown([10, 10, 10, 90, 10, 10, 10, 10, 12, 12]) == 2
    assert grown([]) == 0
    assert quantiles([], 50) == ()
