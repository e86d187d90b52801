"""The search itself, on a model whose scores and times are known for every point."""

from collections import Counter

import pytest

from subsets import Subsets, macs
from supple.errors import PointError, RecipeError
from supple.ladder import Row
from supple.point import FULL, Point
from supple.policy.fitting import Target
from supple.scoring import Score
from supple.searching import measure
from supple.searching.measure import Measurements, Tools
from supple.searching.memory import Memory
from supple.searching.search import SearchResult, search


def score(model: Subsets, point: Point) -> float:
    """Layer k is worth k; tokens that are merged cost a little."""
    return sum(model.layers_run(point)) / sum(model.all) - 0.01 * point.tokens


class Bench:
    """Measures a model, and counts how often."""

    def __init__(
        self, model: Subsets, memory: Memory | None = None, interrupt: int = 10**9, drift: float = 1.0
    ) -> None:
        self.model, self.memory, self.left = model, memory or Memory("weights"), interrupt
        self.ms, self.drift = 1e-6, drift  # a MAC takes so long, and after each group of points so many times that
        self.scored: Counter[str] = Counter()
        self.timed: Counter[str] = Counter()

    def score(self, points, on_progress) -> list[Score]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        self.scored.update(map(str, points))
        on_progress(10)
        return [Score(str(point), "accuracy", score(self.model, point), 0.0, 10) for point in points]

    def time(self, points) -> list[Row]:
        self.timed.update(map(str, points))
        ms = {point: self.ms * macs(self.model, point) for point in points}
        self.ms *= self.drift
        return [Row(str(point), p50_ms=ms[point], p95_ms=1.1 * ms[point]) for point in points]

    @property
    def measurements(self) -> Measurements:
        tools = Tools(lambda point: macs(self.model, point), self.score, self.time)
        return Measurements(tools, self.memory, samples=10, scored_on="some", timed_on="here")

    def search(self, *budgets: str, kind: str = "budget_ms", scored: int = 60, seed: int = 0) -> SearchResult:
        targets = [Target.parse(kind, text) for text in budgets]
        how = {"timed": kind == "budget_ms", "scored": scored, "seed": seed}
        return search(self.model, self.measurements, targets, **how)


def best_of_all(model: Subsets, ms: float) -> float:
    return max(score(model, point) for point in model.mixtures() if 1.1e-6 * macs(model, point) <= ms)


def test_few_points_are_all_scored_and_the_best_within_a_budget_is_the_best_there_is():
    bench = Bench(Subsets(4))  # 15 points
    result = bench.search("2.5", "0.8x")
    assert result.exhaustive
    assert len(bench.scored) == len(bench.timed) == 15
    assert [str(one.point) for one in result.best] == ["layers=3-4", "layers=2-3-4"]
    assert [one.budget for one in result.best] == [2.5, pytest.approx(0.8 * 4.4)]
    assert [str(point) for point in result.points] == ["layers=4", "layers=3-4", "layers=2-3-4", "full"]


def test_many_points_are_guessed_at_and_what_is_chosen_was_measured():
    model = Subsets(10, 1)  # 2046 points
    bench = Bench(model)
    result = bench.search("3.3", "6.7")
    assert not result.exhaustive
    assert 60 <= len(bench.scored) <= 75
    assert len(bench.timed) <= 30
    assert set(map(str, result.points)) <= set(bench.scored) & set(bench.timed)
    assert len(result.points) <= 14
    for one in result.best:
        assert one.row.score == score(model, one.point) >= best_of_all(model, one.budget) - 0.03
        assert one.row.p95_ms <= one.budget
    drawn = [row.score for row in result.ladder if row.p95_ms is None and 1.1e-6 * row.macs <= 3.3]
    assert result.best[0].row.score > max(drawn), "a random point was as good"


def test_a_machine_that_becomes_slower_meanwhile_changes_nothing():
    model = Subsets(10, 1)
    steady, drifting = Bench(model), Bench(model, drift=1.3)
    expected, found = steady.search("3.3", "6.7"), drifting.search("3.3", "6.7")
    assert found.points == expected.points
    for row in found.ladder:
        if row.p50_ms is not None:
            assert row.p50_ms == pytest.approx(1e-6 * row.macs)
            assert row.p95_ms == pytest.approx(1.1e-6 * row.macs)


def test_macs_need_no_clock():
    bench = Bench(Subsets(10))
    result = bench.search("4e6", "0.8x", kind="budget_macs")
    assert not bench.timed
    assert result.unit == "macs"
    assert [one.budget for one in result.best] == [4e6, 8e6]
    assert all(macs(bench.model, one.point) <= one.budget for one in result.best)
    assert result.best[0].row.score >= (10 + 9 + 8 + 7) / 55 - 0.03


def test_without_a_budget_the_points_spread_over_the_times():
    result = Bench(Subsets(4)).search()
    assert result.best == ()
    assert [str(point) for point in result.points] == ["layers=4", "layers=3-4", "layers=2-3-4", "full"]


def test_a_search_made_again_measures_nothing_and_finds_the_same(tmp_path):
    model, path = Subsets(10, 1), tmp_path / "search.json"
    first = Bench(model, Memory("weights", path)).search("3.3")
    model.publish(first.points)
    again = Bench(model, Memory("weights", path))
    second = again.search("3.3")
    assert not again.scored
    assert not again.timed
    assert (second.points, second.best, second.ladder.rows) == (first.points, first.best, first.ladder.rows)


def test_an_interrupted_search_goes_on_and_scores_nothing_twice(tmp_path):
    model, path = Subsets(10, 1), tmp_path / "search.json"
    interrupted = Bench(model, Memory("weights", path), interrupt=4)
    with pytest.raises(KeyboardInterrupt):
        interrupted.search("3.3")
    assert len(interrupted.scored) == 4 * measure.TOGETHER
    resumed = Bench(model, Memory("weights", path))
    result = resumed.search("3.3")
    assert max((interrupted.scored + resumed.scored).values()) == 1
    assert {times for point, times in resumed.timed.items() if point != "full"} == {1}
    assert result.points == Bench(Subsets(10, 1)).search("3.3").points


def test_another_seed_looks_at_other_points_and_knows_the_old_ones():
    bench = Bench(Subsets(10, 1))
    first = bench.search("3.3")
    second = bench.search("3.3", seed=1)
    assert max(bench.scored.values()) == 1
    assert len(second.ladder) > len(first.ladder)
    assert second.best[0].row.score >= first.best[0].row.score


def test_the_same_seed_finds_the_same_points():
    assert Bench(Subsets(10, 1)).search("3.3").points == Bench(Subsets(10, 1)).search("3.3").points


def test_a_budget_that_nothing_keeps_is_refused_with_the_cheapest_and_its_time():
    with pytest.raises(PointError, match=r"0\.5 ms: the cheapest is layers=\d, which takes 1\.1 ms") as caught:
        Bench(Subsets(4)).search("3", "0.5")
    assert "--budget-ms" in caught.value.cure
    with pytest.raises(PointError, match="budget of 10 MACs: .*, which takes 1 MMACs"):
        Bench(Subsets(4)).search("10", kind="budget_macs")


def test_a_single_point_is_nothing_to_search():
    with pytest.raises(RecipeError, match="single point"):
        Bench(Subsets(1)).search("3")


def test_points_that_cost_as_much_as_the_full_model_are_never_published():
    class Costly(Subsets):
        def rank(self, point: Point) -> float:
            return 9e9 if point.layers == (2,) else super().rank(point)

    model = Costly(3)
    bench = Bench(model)
    tools = Tools(lambda point: int(model.rank(point)), bench.score, bench.time)
    found = Measurements(tools, bench.memory, samples=10, scored_on="some", timed_on="here")
    result = search(model, found, [], timed=False, scored=60, seed=0)
    assert "layers=2" not in bench.scored
    assert result.points[-1] == FULL


def test_the_document_says_of_every_point_whether_it_was_chosen_and_for_which_budgets():
    document = Bench(Subsets(4)).search("2.5").to_json()
    assert len(document["points"]) == 15
    chosen = {row["point"]: row["budgets"] for row in document["points"] if row["chosen"]}
    assert chosen == {"layers=4": [], "layers=3-4": [2.5], "layers=2-3-4": [], "full": []}
    assert document["budgets"] == [{"budget": 2.5, "given": "2.5", "point": "layers=3-4"}]
    assert {"macs", "p50_ms", "p95_ms", "score"} < set(document["points"][0])
