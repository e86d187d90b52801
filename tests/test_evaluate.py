"""Scores of all points from one pass, against figures worked out by hand."""

import math
import random
from collections.abc import Generator, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, tensor

from supple.errors import PointError
from supple.ladder import Ladder
from supple.model import FlexibleModel, Output
from supple.point import FULL, Group, Point
from supple.scoring import Score, evaluate, evaluate_group, mean_loss, mean_score

EXIT, WIDE = Point(exit=1), Point(layers=(1, 2))
L3, L9 = math.log(3), math.log(9)


class Table(FlexibleModel):
    """Logits looked up by sample number: known for every point, and a record of how they were asked for."""

    def __init__(self, logits: dict[Point, list[list[float]]], settled: tuple[Point, ...] = ()) -> None:
        super().__init__()
        self.logits = {point: tensor(rows) for point, rows in logits.items()}
        self.points = tuple(point for point in logits if point not in settled)
        self.settled = settled
        self.anchor = nn.Parameter(torch.zeros(()))
        self.runs: list[tuple[list[str], list[int], bool, bool]] = []

    def run(self, x: Tensor, points: Iterable[Point]) -> Generator[Output, Tensor | None, None]:
        points = self.order(points)
        numbers = x.flatten().long()
        self.runs.append(([*map(str, points)], numbers.tolist(), self.training, torch.is_inference_mode_enabled()))
        for point in points:
            yield Output(point, self.logits[point][numbers])


class Samples:
    """Sample i is the number i; counts what was read."""

    at_once = None

    def __init__(self, targets: list[Any]) -> None:
        self.targets = tensor(targets)
        self.read: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        assert rng is None  # nothing is augmented
        self.read.append(indices.tolist())
        return indices.float().view(-1, 1, 1, 1), self.targets[indices]


def classifier(settled: tuple[Point, ...] = ()) -> Table:
    """Two classes; the targets are 0 0 0 1 1. A logit of log 3 is a chance of 3/4, one of log 9 of 9/10."""
    return Table(
        {
            EXIT: [[L3, 0], [0, L3], [L3, 0], [0, L3], [L3, 0]],  # right, wrong, right, right, wrong
            WIDE: [[0, L3], [0, L3], [0, L3], [L3, 0], [L3, 0]],  # all wrong
            FULL: [[L9, 0], [L9, 0], [L9, 0], [0, L9], [L9, 0]],  # all right but the last
        },
        settled,
    )


TARGETS = [0, 0, 0, 1, 1]
RIGHT, WRONG = -math.log(3 / 4), -math.log(1 / 4)
BY_HAND = {
    "exit=1": (3 / 5, (3 * RIGHT + 2 * WRONG) / 5),
    "layers=1-2": (0.0, WRONG),
    "full": (4 / 5, (4 * -math.log(9 / 10) - math.log(1 / 10)) / 5),
}


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 256])
def test_accuracy_and_loss_of_every_point_by_hand_whatever_the_batch(batch_size: int) -> None:
    scores = evaluate(classifier(), Samples(TARGETS), batch_size=batch_size)
    assert [score.name for score in scores] == ["exit=1", "layers=1-2", "full"]
    for score in scores:
        assert (score.score, score.loss) == pytest.approx(BY_HAND[score.name])
        assert (score.metric, score.n, score.higher_is_better, score.draws) == ("accuracy", 5, True, None)


def test_all_points_are_run_together_in_one_pass_that_reads_every_sample_once() -> None:
    model, data, watched = classifier(), Samples(TARGETS), []
    evaluate(model, data, batch_size=2, on_progress=watched.append)
    assert data.read == [[0, 1], [2, 3], [4]]
    assert watched == [2, 2, 1]
    names = ["exit=1", "layers=1-2", "full"]
    assert model.runs == [(names, batch, False, True) for batch in data.read]  # eval mode, no gradients


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_in_the_mode_it_was_in_also_after_an_error(training: bool) -> None:
    model = classifier().train(training)
    evaluate(model, Samples(TARGETS))
    assert model.training is training
    with pytest.raises(ZeroDivisionError):
        evaluate(model, Samples(TARGETS), on_progress=lambda done: 1 // 0)
    assert model.training is training


def test_only_the_points_asked_for_run_once_each_and_unknown_ones_are_refused() -> None:
    model = classifier()
    scores = evaluate(model, Samples(TARGETS), [FULL, EXIT, FULL])
    assert [score.name for score in scores] == ["exit=1", "full"]
    assert model.runs[0][0] == ["exit=1", "full"]
    with pytest.raises(PointError):
        evaluate(model, Samples(TARGETS), [Point(exit=7)])


def test_settled_points_are_scored_too() -> None:
    scores = evaluate(classifier(settled=(WIDE,)), Samples(TARGETS))
    assert {score.name: score.score for score in scores} == pytest.approx({k: v[0] for k, v in BY_HAND.items()})


def test_channels_last_is_how_the_model_gets_its_input() -> None:
    seen = []

    class Looks(Table):
        def run(self, x: Tensor, points: Iterable[Point]) -> Generator[Output, Tensor | None, None]:
            seen.append(x.is_contiguous(memory_format=torch.channels_last))
            yield from super().run(x[:, 0, 0, 0], points)

    class Images(Samples):
        def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
            x, y = super().batch(indices, rng)
            return x.expand(-1, 3, 4, 4).contiguous(), y

    model = Looks({point: rows.tolist() for point, rows in classifier().logits.items()})
    for wanted in (False, True):
        assert evaluate(model, Images(TARGETS), channels_last=wanted)[0].score == pytest.approx(0.6)
    assert seen == [False, True]


def regressor() -> Table:
    """Errors of 1, 0, 2, 0, 2 for the first exit and 1 everywhere for the full model."""
    model = Table({EXIT: [[1.0], [2.0], [1.0], [4.0], [7.0]], FULL: [[1.0], [3.0], [2.0], [5.0], [4.0]]})
    model.task = "count"
    return model


@pytest.mark.parametrize("targets", [[0.0, 2, 3, 4, 5], [[0.0], [2], [3], [4], [5]]], ids=["flat", "column"])
def test_mean_absolute_error_by_hand_and_less_is_better(targets: list[Any]) -> None:
    first, full = evaluate(regressor(), Samples(targets), batch_size=2)
    assert (first.score, first.loss) == (full.score, full.loss) == pytest.approx((5 / 5, 5 / 5))
    assert first.extra_metrics == pytest.approx({"mse": (1 + 0 + 4 + 0 + 4) / 5})
    assert full.extra_metrics == pytest.approx({"mse": 5 / 5})
    assert first.higher_is_better is full.higher_is_better is False
    assert mean_score([first, full]) == pytest.approx(-1)  # signed: more is better
    assert mean_loss([first, full]) == pytest.approx(1)


def test_mean_score_and_loss_over_points_by_hand() -> None:
    scores = evaluate(classifier(), Samples(TARGETS))
    assert mean_score(scores) == pytest.approx((3 / 5 + 0 + 4 / 5) / 3)
    assert mean_loss(scores) == pytest.approx(sum(loss for _, loss in BY_HAND.values()) / 3)


def drawn(*points: Point) -> Group:
    """A group that draws these points in turn."""
    left = iter(points)
    return Group("some order", lambda rng: next(left))


def test_a_group_has_the_mean_and_deviation_of_its_draws_from_one_pass() -> None:
    model, data = classifier(), Samples(TARGETS)
    # Scores 3/5, 4/5, 3/5, 0: mean 1/2; squares of the differences 1/100, 9/100, 1/100, 25/100: variance 9/100.
    score = evaluate_group(model, data, drawn(EXIT, FULL, EXIT, WIDE), draws=4, batch_size=3)
    assert (score.name, score.draws, score.n, score.metric) == ("some order", 4, 5, "accuracy")
    assert (score.score, score.deviation) == pytest.approx((0.5, 0.3))
    losses = [BY_HAND[name][1] for name in ("exit=1", "full", "exit=1", "layers=1-2")]
    assert score.loss == pytest.approx(sum(losses) / 4)
    assert data.read == [[0, 1, 2], [3, 4]]
    assert [run[0] for run in model.runs] == [["exit=1", "layers=1-2", "full"]] * 2


def test_a_group_that_draws_one_point_has_its_score_and_no_deviation() -> None:
    score = evaluate_group(regressor(), Samples([0.0, 2, 3, 4, 5]), drawn(*[FULL] * 3), draws=3)
    assert (score.score, score.deviation, score.higher_is_better) == (1.0, 0.0, False)


def test_a_group_draws_by_its_seed_and_only_what_the_model_can_run() -> None:
    group = Group("any", lambda rng: rng.choice([EXIT, WIDE, FULL]))

    def scored(seed: int) -> Score:
        return evaluate_group(classifier(), Samples(TARGETS), group, draws=6, seed=seed)

    assert scored(3) == scored(3)
    rng = random.Random("3/any")
    expected = [BY_HAND[str(group.sample(rng))][0] for _ in range(6)]
    assert scored(3).score == pytest.approx(sum(expected) / 6)
    with pytest.raises(PointError):
        evaluate_group(classifier(), Samples(TARGETS), drawn(Point(exit=7)), draws=1)


def test_the_facts_of_a_score_are_the_facts_of_a_ladder_row() -> None:
    ladder = Ladder()
    group = evaluate_group(classifier(), Samples(TARGETS), drawn(EXIT, FULL), draws=2)
    for score in (*evaluate(classifier(), Samples(TARGETS)), group):
        ladder.update(score.name, **score.facts())
    rows = {row.point: (row.metric, row.score, row.n, row.deviation, row.draws) for row in ladder}
    assert rows["full"] == ("accuracy", pytest.approx(4 / 5), 5, None, None)
    assert rows["some order"] == ("accuracy", pytest.approx(0.7), 5, pytest.approx(0.1), 2)
