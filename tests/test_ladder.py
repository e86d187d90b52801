"""Hand-made ladders: what is kept, what is best under a limit, what is marked as dominated."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supple.errors import CheckpointError, PointError
from supple.ladder import Ladder, Row
from supple.point import FULL, Point

M = 10**6
BOX: dict[str, Any] = {"batch": 1, "threads": 2, "machine": "box"}


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supple.ladder.machine", lambda: "box")


def test_times_of_another_machine_do_not_count() -> None:
    there, here = Row("full", batch=1, machine="Cray", p95_ms=0.001), Row("exit=1", batch=1, machine="box", p95_ms=1.0)
    ladder = Ladder([there, here])
    assert ladder.best_under(ms=2) == Point(exit=1)
    assert ladder.best_under(ms=2, machine="Cray") == FULL
    with pytest.raises(PointError, match='no column "thread"'):
        ladder.best_under(ms=2, thread=1)


def row(point: str, macs: float, score: float | None = None, metric: str = "accuracy", **more: Any) -> Row:
    """Costs in millions. Scored on so many samples that whole points are told apart, unless `more` says otherwise."""
    more = {"n": 100_000 if metric == "accuracy" else None, **more}
    return Row(point, macs=round(macs * M), metric=metric, score=score, higher_is_better=metric != "mae", **more)


def four() -> Ladder:
    """exit=2 is dominated by exit=1."""
    return Ladder([row("full", 80, 0.74), row("exit=2", 28, 0.64), row("exit=1", 10, 0.65), row("exit=3", 40, 0.73)])


def timed() -> Ladder:
    ladder = four()
    for point, ms in (("exit=1", 2.0), ("exit=2", 5.0), ("exit=3", 6.0), ("full", 12.0)):
        ladder.time(point, **BOX, p50_ms=ms, p95_ms=1.5 * ms, p99_ms=2 * ms, iqr_ms=0.2 * ms)
    return ladder


def names(rows: Any) -> list[str]:
    return [entry.point for entry in rows]


# --- rows ---


def test_rows_come_cheapest_first_and_unknown_costs_last() -> None:
    ladder = Ladder([Row("exit=9"), *four()])
    assert names(ladder) == ["exit=1", "exit=2", "exit=3", "full", "exit=9"]
    assert len(ladder) == 5


@pytest.mark.parametrize(
    "key",
    [
        *({"point": "full"}, {"engine": "onnx"}, {"precision": "bf16"}),
        *({"batch": 8}, {"threads": 1}, {"machine": "other"}),
    ],
    ids=str,
)
def test_a_row_replaces_only_the_row_with_the_same_key(key: dict[str, Any]) -> None:
    first = row("exit=1", 10, 0.5, **BOX)
    ladder = Ladder([first])
    ladder.put(replace(first, score=0.6))
    assert [entry.score for entry in ladder] == [0.6]
    ladder.put(replace(first, **key))
    assert len(ladder) == 2


def test_update_writes_scores_into_every_timed_row_of_a_point_and_leaves_the_times() -> None:
    ladder = timed()
    ladder.time("exit=1", batch=16, threads=2, machine="box", p50_ms=20.0, p95_ms=30.0)
    ladder.put(row("exit=1", 10, 0.1, engine="onnx"))
    ladder.update("exit=1", score=0.7, n=500)
    torch_rows = list(ladder.where(point="exit=1", engine="torch"))
    assert [(entry.batch, entry.p50_ms, entry.score, entry.n) for entry in torch_rows] == [
        (1, 2.0, 0.7, 500),
        (16, 20.0, 0.7, 500),
    ]
    assert [entry.score for entry in ladder.where(engine="onnx")] == [0.1]
    ladder.update("exit=7", macs=5)  # a point not seen before gets a row
    assert ladder.rows[0] == Row("exit=7", macs=5)


def test_a_timed_row_carries_the_facts_of_its_point_and_takes_the_place_of_the_untimed_one() -> None:
    ladder = timed()
    assert len(ladder) == 4
    assert ladder.rows[0] == row("exit=1", 10, 0.65, **BOX, p50_ms=2.0, p95_ms=3.0, p99_ms=4.0, iqr_ms=0.4)
    slow: dict[str, Any] = {"batch": 16, "threads": 2, "machine": "box"}
    slow |= {"p50_ms": 20.0, "p95_ms": 30.0, "p99_ms": 40.0, "iqr_ms": 1.0}
    ladder.time("exit=1", **slow)
    assert len(ladder) == 5
    (at_16,) = ladder.where(batch=16)
    assert at_16 == row("exit=1", 10, 0.65, **slow)
    ladder.time("exit=1", **BOX, p50_ms=1.0, p95_ms=1.0, p99_ms=1.0)  # measured again
    assert [entry.p95_ms for entry in ladder.where(point="exit=1", batch=1)] == [1.0]


def test_where_keeps_the_rows_that_have_all_the_values() -> None:
    ladder = timed()
    ladder.put(row("full", 80, 0.74, batch=16, threads=2, machine="box"))
    assert names(ladder.where(point="full", batch=1)) == ["full"]
    assert len(ladder.where(threads=2)) == 5
    assert len(ladder.where(batch=2)) == 0
    assert len(ladder) == 5


# --- pareto ---


def test_pareto_drops_what_scores_less_at_more_cost() -> None:
    assert names(four().pareto()) == ["exit=1", "exit=3", "full"]
    assert names(timed().pareto("p50_ms")) == ["exit=1", "exit=3", "full"]


def test_pareto_of_an_error_keeps_the_smaller_errors() -> None:
    ladder = Ladder([row("exit=1", 10, 5.0, "mae"), row("exit=2", 20, 6.0, "mae"), row("full", 40, 4.0, "mae")])
    assert names(ladder.pareto()) == ["exit=1", "full"]


def test_pareto_keeps_twins_and_leaves_out_rows_without_figures() -> None:
    twins = [row("exit=1", 10, 0.5), row("exit=2", 10, 0.5)]
    ladder = Ladder([*twins, row("exit=3", 5), Row("exit=4", score=0.9), row("full", 20, 0.5)])
    assert names(ladder.pareto()) == ["exit=1", "exit=2"]


@st.composite
def ladders(draw: st.DrawFn) -> Ladder:
    higher = draw(st.booleans())
    figures = st.tuples(st.none() | st.integers(0, 6), st.none() | st.integers(0, 6))  # small, so that ties are common
    pairs = draw(st.lists(figures, max_size=12))
    return Ladder(
        Row(f"exit={i}", macs=cost, score=score, higher_is_better=higher) for i, (cost, score) in enumerate(pairs, 1)
    )


@settings(deadline=None, max_examples=300)
@given(ladders())
def test_no_pareto_row_is_beaten_and_every_other_row_is_beaten_by_a_pareto_row(ladder: Ladder) -> None:
    front = ladder.pareto()
    measured = [entry for entry in ladder if entry.macs is not None and entry.score is not None]
    assert bool(front) == bool(measured)
    for entry in measured:
        # Beaten, said without the code under test: as cheap and as good, and one of the two strictly.
        sign = 1 if entry.higher_is_better else -1
        beaten_by = [
            other
            for other in front
            if other.macs <= entry.macs
            and sign * other.score >= sign * entry.score
            and (other.macs, other.score) != (entry.macs, entry.score)
        ]
        assert bool(beaten_by) == (entry not in front)


@settings(deadline=None, max_examples=200)
@given(ladders(), st.integers(0, 6))
def test_the_best_point_under_a_limit_is_within_it_and_no_fitting_point_scores_more(ladder: Ladder, limit: int) -> None:
    fits = [entry for entry in ladder if entry.macs is not None and entry.macs <= limit]
    scores = [entry.score for entry in fits if entry.score is not None]
    if not fits:
        with pytest.raises(PointError):
            ladder.best_under(macs=limit)
        return
    (chosen,) = ladder.where(point=str(ladder.best_under(macs=limit)))
    assert chosen in fits
    if scores:
        assert chosen.score == (max if chosen.higher_is_better else min)(scores)
        assert chosen.macs == min(entry.macs for entry in fits if entry.score == chosen.score)
    else:
        assert chosen.macs == max(entry.macs for entry in fits)


# --- best under a limit ---


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({"macs": 10e6}, "exit=1"),
        ({"macs": 39e6}, "exit=1"),  # exit=2 fits and costs more, but scores less
        ({"macs": 40e6}, "exit=3"),
        ({"macs": 1e9}, "full"),
        ({"ms": 3}, "exit=1"),  # against p95, not p50
        ({"ms": 8.9}, "exit=1"),
        ({"ms": 9}, "exit=3"),
        ({"ms": 18}, "full"),
        ({"ms": 18, "macs": 50e6}, "exit=3"),
        ({"ms": 3, "macs": 1e9}, "exit=1"),
    ],
    ids=str,
)
def test_the_best_scoring_point_within_the_limit_is_chosen(limit: dict[str, float], expected: str) -> None:
    assert timed().best_under(**limit) == Point.parse(expected)


def test_a_smaller_error_is_the_better_score() -> None:
    ladder = Ladder([row("exit=1", 10, 5.0, "mae"), row("exit=2", 20, 6.0, "mae"), row("full", 40, 4.0, "mae")])
    assert ladder.best_under(macs=39e6) == Point(exit=1)
    assert ladder.best_under(macs=40e6) == FULL


def test_limits_hold_in_the_worst_case_where_cost_depends_on_the_data() -> None:
    skipping = row("skip=0.5", 20, 0.9, macs_worst=60 * M)
    ladder = Ladder([row("exit=1", 10, 0.6), skipping])
    assert skipping.ceiling == 60 * M
    assert ladder.best_under(macs=59e6) == Point(exit=1)
    assert ladder.best_under(macs=60e6) == Point(skip=0.5)
    # Equal scores: the one that is cheaper in the worst case, not on average.
    ladder = Ladder([replace(skipping, score=0.6), row("exit=1", 30, 0.6)])
    assert ladder.best_under(macs=100e6) == Point(exit=1)


def test_equal_scores_go_to_the_cheaper_point() -> None:
    ladder = Ladder([row("full", 40, 0.7), row("exit=2", 20, 0.7), row("exit=3", 30, 0.7), row("exit=1", 10, 0.6)])
    assert ladder.best_under(macs=1e9) == Point(exit=2)
    for point, ms in (("exit=1", 1.0), ("exit=2", 9.0), ("exit=3", 3.0), ("full", 4.0)):
        ladder.time(point, **BOX, p95_ms=ms)
    assert ladder.best_under(ms=10) == Point(exit=3)  # cheaper in what was asked for


def test_without_scores_the_most_expensive_point_that_fits_is_taken() -> None:
    ladder = Ladder([row("exit=1", 10), row("exit=2", 20), row("full", 40)])
    assert ladder.best_under(macs=30e6) == Point(exit=2)
    ladder.update("exit=1", score=0.1)  # any score beats none
    assert ladder.best_under(macs=30e6) == Point(exit=1)


def test_groups_and_rows_without_a_cost_are_never_chosen() -> None:
    group = row("any 6 of 12", 5, 0.99, deviation=0.01, draws=10, **BOX, p95_ms=0.1)
    ladder = Ladder([*timed(), group, Row("exit=5", score=0.99, **BOX)])
    assert ladder.best_under(macs=1e9) == FULL
    assert ladder.best_under(ms=1e9) == FULL
    assert ladder.cheapest() == Point(exit=1)


@pytest.mark.parametrize(("limit", "said"), [({"macs": 9e6}, "9 MMACs"), ({"ms": 2.9}, "2.9 ms")], ids=str)
def test_when_nothing_fits_the_error_names_the_limit_and_the_cheapest_point(limit: dict[str, float], said: str) -> None:
    with pytest.raises(PointError) as caught:
        timed().best_under(**limit)
    assert said in caught.value.cause
    assert "exit=1" in caught.value.cure


def test_a_deadline_needs_times_of_the_rows_asked_for() -> None:
    for ladder, key in ((four(), {}), (timed(), {"batch": 16}), (timed(), {"machine": "other"}), (Ladder(), {})):
        with pytest.raises(PointError, match="no times") as caught:
            ladder.best_under(ms=1e9, **key)
        assert "supple bench" in caught.value.cure


def test_times_of_one_image_count_unless_another_batch_is_named() -> None:
    ladder = timed()
    for point in ("exit=1", "full"):
        ladder.time(point, batch=16, threads=2, machine="box", p95_ms=1.0)
    assert ladder.best_under(ms=10) == Point(exit=3)
    assert ladder.best_under(ms=10, batch=16) == FULL


def test_a_limit_is_needed_and_an_empty_ladder_says_so() -> None:
    with pytest.raises(PointError, match="needs a limit"):
        four().best_under()
    for ladder in (Ladder(), Ladder([row("any 6 of 12", 5, 0.9)])):
        for ask in (ladder.cheapest, lambda ladder=ladder: ladder.best_under(macs=1e9)):
            with pytest.raises(PointError, match="no points") as caught:
                ask()
            assert "supple evaluate" in caught.value.cure


# --- files ---


def test_a_ladder_survives_json() -> None:
    group = row("any 6 of 12", 5, 0.5, deviation=0.01, draws=10, n=100)
    ladder = Ladder([*timed(), group, row("skip=0.5", 20, 3.5, "mae", macs_worst=60 * M, branch_params=7)])
    document = json.loads(json.dumps(ladder.to_json(), allow_nan=False))
    assert Ladder.from_json(document).rows == ladder.rows
    accuracies = {entry["point"]: entry["accuracy"] for entry in document["points"]}
    assert accuracies["full"] == 0.74  # a share
    assert accuracies["skip=0.5"] is None  # an error is no accuracy
    later = {"points": [{**document["points"][0], "colour": "blue"}], "weights": "ab"}  # written by a newer version
    assert Ladder.from_json(later).rows == ladder.rows[:1]
    new = ("iqr_ms", "score_error", "lost_error")
    earlier = {"points": [{k: v for k, v in entry.items() if k not in new} for entry in document["points"]]}
    assert [entry.p50_ms for entry in Ladder.from_json(earlier)] == [entry.p50_ms for entry in ladder]


GARBAGE: list[Any] = [
    *(None, 5, "points", [], {}, {"rows": []}, {"points": None}, {"points": 5}, {"points": "full"}),
    *({"points": [entry]} for entry in (None, 5, "full", [], {}, {"macs": 5}, {"point": None}, {"point": ["full"]})),
    *({"points": [{"point": "full", **entry}]} for entry in ({"macs": "many"}, {"score": [1]}, {"batch": {}})),
    *({"points": [{"point": "full", **entry}]} for entry in ({"metric": 5}, {"higher_is_better": "yes"})),
]


@pytest.mark.parametrize("document", GARBAGE, ids=str)
def test_what_is_no_ladder_is_refused_with_a_cure(document: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        Ladder.from_json(document)
    assert "not a valid ladder" in caught.value.cause
    assert "supple evaluate" in caught.value.cure


# --- the table ---


def test_the_table_is_cheapest_first_in_aligned_columns_and_marks_dominated_points() -> None:
    ladder = Ladder(replace(entry, params=entry.macs // 20) for entry in four())
    lines = str(ladder).splitlines()
    assert lines == [
        "point   MMACs  params  top-1 %",
        "exit=1   10.0   500 k     65.0",
        "exit=2   28.0   1.4 M     64.0  -  worse than exit=1 at higher cost",
        "exit=3   40.0     2 M     73.0",
        "full     80.0     4 M     74.0",
    ]


def test_the_table_of_times_shows_batch_threads_and_both_percentiles() -> None:
    ladder = timed()
    ladder.time("exit=1", batch=16, threads=2, machine="box", p50_ms=123.456, p95_ms=200.0)
    ladder.put(row("any 6 of 12", 90, 0.7, deviation=0.0123, draws=10))
    assert str(ladder).splitlines() == [
        "point        MMACs  params  batch  threads  ms p50 / p95     top-1 %",
        "exit=1        10.0       -      1        2         2 / 3        65.0",
        "exit=2        28.0       -      1        2       5 / 7.5        64.0  -  worse than exit=1 at higher cost",
        "exit=3        40.0       -      1        2         6 / 9        73.0",
        "full          80.0       -      1        2       12 / 18        74.0",
        "exit=1        10.0       -     16        2     123 / 200        65.0",
        "any 6 of 12   90.0       -      -        -             -  70.0 ± 1.2",
    ]


def test_the_table_names_other_metrics_and_marks_the_larger_error() -> None:
    rows = [row("exit=1", 10, 3.5, "mae"), row("full", 20, 3.6, "mae"), row("exit=2", 15, None, "mae")]
    ladder = Ladder(replace(entry, score_error=0.03) for entry in rows)  # of the difference: 0.042
    assert str(ladder).splitlines() == [
        "point   MMACs  params  MAE",
        "exit=1   10.0       -  3.5",
        "exit=2   15.0       -    -",
        "full     20.0       -  3.6  -  worse than exit=1 at higher cost",
    ]


def test_rows_of_different_batches_are_not_rivals() -> None:
    ladder = Ladder([row("exit=1", 10, 0.9, **BOX, p50_ms=1.0), row("full", 20, 0.8, **{**BOX, "batch": 16}, p50_ms=9)])
    assert "worse" not in str(ladder)


def test_a_ladder_without_rows_or_scores_still_prints() -> None:
    assert str(Ladder()) == "point  MMACs  params"
    assert str(Ladder([Row("full")])).splitlines()[1].split() == ["full", "-", "-"]


def test_a_point_with_an_equal_score_at_higher_cost_is_marked_too() -> None:
    text = str(Ladder([row("exit=1", 10, 0.5), row("exit=2", 20, 0.5), row("full", 20, 0.5)]))
    marks = [line.split("50.0")[1].strip() for line in text.splitlines()[1:]]
    assert marks == ["", "-  no better than exit=1 at higher cost", "-  no better than exit=1 at higher cost"]


# --- verdicts ---


def two(score: float, other: float, n: int = 998, ms: tuple[float, float] = (1.0, 2.0), iqr_ms: float = 0.0) -> Ladder:
    """exit=1 is cheaper; the second row is judged."""
    pairs = (("exit=1", score, ms[0], 10), ("exit=2", other, ms[1], 20))
    facts: dict[str, Any] = {**BOX, "n": n, "iqr_ms": iqr_ms}
    return Ladder(row(point, macs, share, **facts, p50_ms=p50) for point, share, p50, macs in pairs)


def remarks(ladder: Ladder) -> list[str]:
    return [ladder.remark(entry) for entry in ladder]


def test_a_score_is_called_worse_only_outside_two_standard_errors_of_the_difference() -> None:
    # One right and one wrong of 998 + 2: at a share of 1/2 the error of each is sqrt(1/4 / 1000) = 1.58 %, of the
    # difference 2.24 %, and twice that 4.47 %.
    first, second = two(0.5, 0.5)
    assert first.error_of_difference(second) == pytest.approx(0.0005**0.5)
    assert remarks(two(0.522, 0.478)) == ["", "no better than exit=1 within the error, at higher cost"]  # 4.4 % apart
    assert remarks(two(0.523, 0.477)) == ["", "worse than exit=1 at higher cost"]  # 4.6 % apart
    assert remarks(two(0.477, 0.523)) == ["", ""]  # it costs more and scores more: nothing against either


def test_a_time_is_called_longer_only_outside_the_spread_of_the_calls() -> None:
    # Interquartile ranges of 0.4 ms: the middle halves of the calls overlap up to a difference of 0.4 ms.
    assert remarks(two(0.9, 0.1, ms=(1.0, 1.39), iqr_ms=0.4)) == ["", ""]
    assert remarks(two(0.9, 0.1, ms=(1.0, 1.41), iqr_ms=0.4)) == ["", "worse than exit=1 at higher cost"]
    assert remarks(two(0.9, 0.1, ms=(1.0, 0.5), iqr_ms=0.1)) == ["", ""]  # faster, whatever its MACs say
    unknown = Ladder(replace(entry, iqr_ms=None) for entry in two(0.9, 0.1))  # as ladders had it before
    assert remarks(unknown) == ["", ""]


def test_a_score_within_the_error_is_remarked_upon_only_where_the_cost_is_much_higher() -> None:
    assert remarks(two(0.51, 0.50, ms=(1.0, 1.24), iqr_ms=0.01)) == ["", ""]
    said = "no better than exit=1 within the error, at higher cost"
    assert remarks(two(0.51, 0.50, ms=(1.0, 1.26), iqr_ms=0.01)) == ["", said]
    assert remarks(two(0.51, 0.50, ms=(1.0, 1.26), iqr_ms=0.3)) == ["", ""]


def test_all_of_a_few_samples_are_not_without_error() -> None:
    assert remarks(two(1.0, 0.75, n=4)) == ["", "no better than exit=1 within the error, at higher cost"]
    assert remarks(two(1.0, 0.0, n=4)) == ["", "worse than exit=1 at higher cost"]


def test_a_score_of_unknown_error_gets_no_verdict() -> None:
    unknown = Ladder([row("exit=1", 10, 0.9, n=None), row("full", 20, 0.1, n=None)])
    assert remarks(unknown) == ["", ""]
    assert remarks(Ladder([row("exit=1", 10, 3.5, "mae"), row("full", 20, 9.0, "mae")])) == ["", ""]
    # The mean average precision is not a share of the samples, though it is shown in per cent.
    boxes = Ladder([row("exit=1", 10, 0.9, "box_map", n=900), row("full", 20, 0.1, "box_map", n=900)])
    assert remarks(boxes) == ["", ""]


def test_at_the_same_macs_a_really_lower_score_is_worse() -> None:
    said = "worse than exit=1 at the same cost"
    assert remarks(Ladder([row("exit=1", 10, 0.9), row("exit=2", 10, 0.8)])) == ["", said]
    assert remarks(Ladder([row("exit=1", 10, 0.9), row("exit=2", 10, 0.899)])) == ["", ""]


def test_the_best_of_those_that_are_better_is_named() -> None:
    ladder = Ladder([row("exit=1", 10, 0.6), row("exit=2", 20, 0.7), row("full", 40, 0.5)])
    assert remarks(ladder) == ["", "", "worse than exit=2 at higher cost"]


def test_groups_neither_beat_nor_are_beaten():
    ladder = Ladder([row("any 6 of 12", 5, 0.99, draws=10), row("exit=1", 10, 0.5), row("full", 20, 0.6)])
    assert [found.point for found in ladder.pareto()] == ["exit=1", "full"]
    worse = Ladder([row("exit=1", 10, 0.5), row("any 6 of 12", 20, 0.1, draws=10)])
    assert "worse than" not in str(worse)


def test_the_table_names_the_engines_where_there_are_several():
    rows = [Row("full", macs=1, engine=engine, p50_ms=1.0, p95_ms=2.0) for engine in ("onnxruntime", "openvino")]
    assert "engine" not in str(Ladder(rows[:1]))
    assert ["onnxruntime fp32" in str(Ladder(rows)), "openvino fp32" in str(Ladder(rows))] == [True, True]
