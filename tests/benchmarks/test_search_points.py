"""A search held against chance, and axes held against their mixtures: on a model whose scores and times are known."""

import pytest

import search_points
from search_points import alone, document_of, measured, page, random_points
from subsets import Subsets, macs
from supple.ladder import Row
from supple.point import FULL, Point
from supple.policy.fitting import Target
from supple.scoring import Score
from supple.searching.measure import Measurements, Tools
from supple.searching.memory import Memory
from supple.searching.search import search


def score(model: Subsets, point: Point) -> float:
    """Layer k is worth k; every token that is merged costs a hundredth."""
    return sum(model.layers_run(point)) / sum(model.all) - 0.01 * point.tokens


def measurements(model: Subsets, ms: float = 1e-6) -> Measurements:
    def scored(points, on_progress) -> list[Score]:
        return [Score(str(point), "accuracy", score(model, point), 0.0, 10) for point in points]

    def timed(points) -> list[Row]:
        return [Row(str(p), p50_ms=ms * macs(model, p), p95_ms=ms * macs(model, p)) for p in points]

    tools = Tools(lambda point: macs(model, point), scored, timed)
    return Measurements(tools, Memory("weights"), samples=10, scored_on="some", timed_on="here")


def test_points_of_an_axis_alone_differ_in_nothing_else_and_spread_over_the_costs():
    model = Subsets(8, 3)
    found = alone(model, random_points(model, 150), lambda point: macs(model, point))
    assert {str(point) for point in found["tokens"]} == {"tokens=1", "tokens=2", "tokens=3"}
    assert len(found["layers"]) == search_points.ALONE
    assert all([*point.chosen()] == ["layers"] for point in found["layers"])
    assert {len(point.layers) for point in found["layers"]} == set(range(1, 8))


def test_what_was_found_is_held_against_the_best_random_point_that_keeps_the_budget():
    model = Subsets(10, 1)
    result = search(model, measurements(model), [Target.parse("budget_ms", "3.3")], scored=60, seed=0)
    rows, groups = measured(model, result, measurements(model, 2e-6), 150)  # twice as slow by now
    assert len(groups["random"]) == 150
    document = document_of(result, rows, groups)
    (budget,) = document["budgets"]
    assert budget["ms"] == pytest.approx(6.6)
    keep = [row for row in rows if row.point in groups["random"] and row.p95_ms <= 6.6]
    assert budget["best"]["random"]["accuracy"] == 100 * max(row.score for row in keep)
    assert budget["best"]["search"]["point"] == result.best[0].row.point
    assert budget["best"]["mixed"]["accuracy"] >= max(
        found["accuracy"] for found in budget["best"].values() if found is not None
    )


def entry(point: str, accuracy: float) -> dict:
    return {"point": point, "accuracy": accuracy, "p95_ms": 5.0}


def test_the_tables_say_what_was_missed_and_what_mixing_adds():
    mixed = entry("width=0.5,tokens=2", 72.0)
    best = {"search": entry("width=0.5", 70.9), "random": mixed, "width": entry("width=0.5", 70.9), "tokens": None}
    budgets = [{"given": "0.5x", "ms": 5.0, "best": {**best, "mixed": mixed}}]
    about = {"name": "deit_elastic", "machine": "a machine", "engine": "openvino", "threads": 2, "n": 2000}
    document = {**about, "search_minutes": 30.0, "budgets": budgets, "full": entry(str(FULL), 77.0)}
    lines = page(document | {"points": {"random": 150, "width": 2, "tokens": 1}}).splitlines()
    (chance,) = [line for line in lines if line.startswith("| 0.5x")]
    assert "-1.10 | at most 1 below: **missed**" in chance
    assert "| width alone | 2 | 70.90 % (width=0.5) |" in lines
    assert "| tokens alone | 1 | none |" in lines
    assert "| mixing adds | | +1.10 |" in lines
