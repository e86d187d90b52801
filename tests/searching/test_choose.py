"""Which points are published: by hand, on a few rows."""

import pytest

from supple.ladder import Row
from supple.searching.choose import best_within, choose, spread


def timed(point: str, ms: float, score: float, p95: float | None = None, **more) -> Row:
    return Row(point, p50_ms=ms, p95_ms=ms if p95 is None else p95, score=score, **more)


ROWS = [
    timed("exit=1", 1, 0.5),
    timed("exit=2", 2, 0.6),
    timed("exit=3", 3, 0.55),  # exit=2 is faster and better
    timed("exit=4", 4, 0.7),
    timed("full", 8, 0.8),
]


def names(rows) -> list[str]:
    return [row.point for row in rows]


def test_the_best_within_a_limit_is_the_best_score_and_of_equal_ones_the_fastest():
    assert best_within(ROWS, 5, "p50_ms") == ROWS[3]
    assert best_within(ROWS, 3.5, "p50_ms") == ROWS[1]
    assert best_within(ROWS, 0.9, "p50_ms") is None
    assert best_within([timed("a", 2, 0.5), timed("b", 1, 0.5)], 9, "p50_ms").point == "b"


def test_a_limit_of_time_is_for_nearly_all_calls_and_one_of_macs_for_the_worst_sample():
    unsteady = timed("exit=9", 1, 0.9, p95=20)
    assert best_within([*ROWS, unsteady], 5, "p50_ms") == ROWS[3]
    assert best_within([Row("a", macs=5, macs_worst=9, score=1.0), Row("b", macs=6, score=0.5)], 8, "macs").point == "b"


def test_where_less_is_better_the_lowest_score_is_the_best():
    rows = [timed("exit=1", 1, 9.0, higher_is_better=False), timed("full", 2, 7.0, higher_is_better=False)]
    assert best_within(rows, 5, "p50_ms") == rows[1]
    chosen, _ = choose(rows, (), "p50_ms")
    assert names(chosen) == ["exit=1", "full"]


def test_points_that_another_one_beats_are_not_published():
    chosen, best = choose(ROWS, (3.5, 100), "p50_ms")
    assert names(chosen) == ["exit=1", "exit=2", "exit=4", "full"]
    assert {limit: row.point for limit, row in best.items()} == {3.5: "exit=2", 100: "full"}


def test_the_full_model_is_published_though_a_cheaper_one_is_better():
    chosen, best = choose([timed("exit=1", 1, 0.9), timed("full", 8, 0.8)], (100,), "p50_ms")
    assert (names(chosen), best[100].point) == (["exit=1", "full"], "exit=1")


def test_of_points_that_are_equal_in_both_one_is_published():
    chosen, _ = choose([timed("exit=1", 1, 0.5), timed("exit=2", 1, 0.5), timed("full", 8, 0.8)], (), "p50_ms")
    assert len(chosen) == 2


def test_many_are_thinned_out_evenly_over_the_ratios_of_their_costs():
    rows = [Row(f"exit={k}", macs=2**k, score=float(k)) for k in range(9)]
    assert names(spread(rows, 3, "macs", (rows[0], rows[8]))) == ["exit=0", "exit=4", "exit=8"]
    assert names(spread(rows, 5, "macs", (rows[0], rows[8]))) == ["exit=0", "exit=2", "exit=4", "exit=6", "exit=8"]
    assert spread(rows, 20, "macs") == rows


def test_what_must_stay_stays_when_others_are_thinned_out():
    rows = [Row(f"exit={k}", macs=100 + k, score=float(k)) for k in range(1, 100)]
    rows.append(Row("full", macs=1000, score=100.0))
    chosen, best = choose(rows, (103, 142), "macs", count=5)
    assert len(chosen) == 5
    assert {"exit=1", "exit=3", "exit=42", "full"} < set(names(chosen))
    assert best[142].point == "exit=42"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_more_budgets_than_room_are_all_kept(count):
    limits = (1, 2, 4, 8)
    chosen, _ = choose(ROWS, limits, "p50_ms", count)
    assert names(chosen) == ["exit=1", "exit=2", "exit=4", "full"]
