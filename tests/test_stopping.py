"""What a calibrated policy promises of images that it has not seen, on made-up outputs of all kinds."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from supple.judge import Half, find_dominated, judge, standard_error
from supple.point import FULL, Point
from supple.policies import first_sure
from supple.stopping import SPARE, Aim, fit

POINTS = (Point(exit=1), Point(exit=2), Point(exit=3), FULL)
ALONE, HEAD = dict(zip(POINTS, (10.0, 25.0, 45.0, 100.0))), 3.0


def costs(points: tuple[Point, ...]) -> list[float]:
    """Of a chain of exits: every head passed costs a little."""
    return [ALONE[point] + HEAD * place for place, point in enumerate(points)]


def outputs(kind: str, n: int, classes: int, seed: int) -> tuple[list[Tensor], Tensor]:
    """Logits of every point for 2n samples, and the labels."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (2 * n,), generator=rng)
    draw = lambda: torch.randn(2 * n, classes, generator=rng)
    if kind == "untrained":
        return [draw() for _ in POINTS], labels
    if kind == "coarse":  # many equal logits, and so many equal confidences
        return [torch.randint(0, 3, (2 * n, classes), generator=rng).float() for _ in POINTS], labels
    if kind == "same":  # every exit says the same: all but the first are dominated
        return [draw()] * len(POINTS), labels
    ease, common = torch.randn(2 * n, generator=rng), draw()
    truth = torch.nn.functional.one_hot(labels, classes)
    logits = []
    for depth in range(len(POINTS)):
        signal = (1.2 * classes**0.15 * (2 + ease) + 0.6 * depth).clamp(min=0)
        logits.append((1 + depth / 2) * (0.8 * common + 0.6 * draw() + signal[:, None] * truth))  # later: too sure
    return logits, labels


def halves(kind: str, n: int = 300, classes: int = 10, seed: int = 0) -> tuple[Half, Half]:
    logits, labels = outputs(kind, n, classes, seed)
    return tuple(Half(POINTS, [part[rows] for part in logits], labels[rows]) for rows in (slice(n), slice(n, None)))


# --- the promise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [10, 100, 1000])
@pytest.mark.parametrize("kind", ["trained", "untrained", "coarse", "same"])
def test_a_budget_holds_on_the_other_half(kind, classes):
    for seed, budget in itertools.product(range(2), (20.0, 40.0, 80.0)):
        first, second = halves(kind, classes=classes, seed=seed)
        fitted = fit(first, Aim(budget=budget), costs)
        expected, achieved = judge(fitted, first), judge(fitted, second)
        assert expected.cost + SPARE * expected.cost_error <= budget * (1 + 1e-6)
        off = achieved.cost - budget
        assert off <= max(0.02 * budget, 3 * achieved.cost_error)
        if kind == "trained" and budget < 50:  # more would not help beyond: what is allowed is used
            assert -off <= max(0.02 * budget, 3 * math.hypot(expected.cost_error, achieved.cost_error))


@pytest.mark.parametrize("classes", [10, 100, 1000])
@pytest.mark.parametrize("kind", ["trained", "untrained", "coarse", "same"])
def test_an_accuracy_holds_on_the_other_half_or_the_full_model_answers_everything(kind, classes):
    for seed, drop in itertools.product(range(2), (0.0, 0.01, 0.03)):
        first, second = halves(kind, classes=classes, seed=seed)
        fitted = fit(first, Aim(drop=drop), costs)
        achieved = judge(fitted, second)
        assert achieved.full_accuracy - achieved.accuracy <= drop + 2 * achieved.drop_error + 1e-9
        assert achieved.cost <= costs((FULL,))[0] * 1.01 or fitted.policy.points == (FULL,)
        if fitted.policy.points == (FULL,):
            assert achieved.accuracy == achieved.full_accuracy


def test_a_trained_network_saves_most_of_its_cost_for_a_point_of_accuracy():
    for seed in range(2):
        first, second = halves("trained", n=500, seed=seed)
        achieved = judge(fit(first, Aim(drop=0.01), costs), second)
        assert achieved.cost < 0.6 * costs((FULL,))[0]


def test_more_budget_never_means_less_cost_expected_and_a_generous_one_reaches_the_full_accuracy():
    first, _ = halves("trained", n=400)
    spent = [judge(fit(first, Aim(budget=budget), costs), first) for budget in (12.0, 30.0, 60.0, 1e6)]
    assert [outcome.cost for outcome in spent] == sorted(outcome.cost for outcome in spent)
    assert spent[-1].accuracy >= spent[-1].full_accuracy - spent[-1].drop_error


def test_one_point_that_the_labels_prefer_answers_everything():
    """Exits that are sure and mostly wrong foretell much and keep little: full is within the budget, and better."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (400,), generator=rng)
    truth = torch.nn.functional.one_hot(labels, 10).float()
    guess = torch.nn.functional.one_hot(torch.randint(10, (400,), generator=rng), 10).float()
    sure = torch.rand(400, 1, generator=rng)
    first = 2 * guess * (sure < 0.9) + 2 * truth * (sure >= 0.9)
    half = Half((Point(exit=1), FULL), [first, 0.5 * truth + 0.1 * guess], labels)
    fitted = fit(half, Aim(budget=1e9), lambda points: [10.0, 100.0][-len(points) :])
    outcome = judge(fitted, half)
    assert outcome.accuracy >= outcome.full_accuracy - outcome.drop_error


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aim", [Aim(budget=40.0), Aim(drop=0.02)])
def test_labels_decide_nothing_when_a_policy_runs(aim):
    first, second = halves("trained")
    fitted = fit(first, aim, costs)
    mixed = Half(second.points, second.logits, second.labels[torch.randperm(300)])
    assert torch.equal(judge(fitted, mixed).exits, judge(fitted, second).exits)


def test_the_second_half_decides_nothing_at_all():
    first, second = halves("trained")
    fitted = fit(first, Aim(budget=40.0), costs)
    judge(fitted, second)
    assert fit(first, Aim(budget=40.0), costs) == fitted


# --- which exits are looked at ----------------------------------------------------------------------------------------


def test_an_exit_is_dominated_by_an_earlier_one_that_is_no_less_accurate():
    points = tuple(Point(exit=k) for k in range(1, 6))
    # 2 is worse than 1, 4 equals 3, 5 is worse than 3 though better than 4 was thought to be.
    assert find_dominated(points, [0.5, 0.4, 0.6, 0.6, 0.55]) == {
        points[1]: points[0],
        points[3]: points[2],
        points[4]: points[2],
    }
    assert find_dominated(points, [0.1, 0.2, 0.3, 0.4, 0.5]) == {}


def test_dominated_exits_are_left_out_unless_they_are_to_be_kept():
    first, _ = halves("trained", n=400)
    worse = first.logits[1].clone()
    worse[:200] = worse[:200].roll(1, 1)  # exit 2 becomes worse than exit 1, and no less sure
    first = Half(POINTS, [first.logits[0], worse, *first.logits[2:]], first.labels)
    fitted = fit(first, Aim(budget=40.0), costs)
    assert fitted.dominated == {Point(exit=2): Point(exit=1)}
    assert Point(exit=2) not in fitted.policy.points
    seen = []
    fit(first, Aim(budget=40.0), lambda points: seen.append(points) or costs(points), keep_dominated=True)
    assert any(Point(exit=2) in points for points in seen)


def test_exits_whose_heads_cost_more_than_they_save_are_left_out():
    first, _ = halves("trained", n=400)
    dear = lambda points: [ALONE[point] + 1e6 * place for place, point in enumerate(points)]  # of every exit passed
    free = lambda points: [ALONE[point] for point in points]
    assert fit(first, Aim(budget=45.0), dear).policy.points == (Point(exit=3),)
    assert len(fit(first, Aim(budget=45.0), free).policy.points) > 1


def test_everybody_at_the_first_exit_when_the_budget_allows_no_more():
    first, second = halves("trained")
    fitted = fit(first, Aim(budget=10.0), costs)
    assert (fitted.policy.points, fitted.policy.thresholds) == ((Point(exit=1),), ())
    assert judge(fitted, second).cost == 10.0


def test_exits_are_chosen_by_the_costs_given_for_it_and_thresholds_by_the_others():
    first, _ = halves("trained")
    asked = []
    milliseconds = lambda points: asked.append(points) or [cost / 10 for cost in costs(points)]
    fitted = fit(first, Aim(budget=4.0), milliseconds, choosing=(Aim(budget=40.0), costs))
    assert len(asked) <= 2  # measuring is slow
    assert fitted.costs == [cost / 10 for cost in costs(fitted.policy.points)]
    assert judge(fitted, first).cost <= 4.0


# --- how it is judged -------------------------------------------------------------------------------------------------


def test_an_outcome_by_hand():
    # Two classes; exit 1 is sure of the first two samples and right about one of them, full is right about all.
    sure, unsure = [5.0, 0.0], [0.1, 0.0]
    logits = [torch.tensor([sure, sure, unsure, unsure]), torch.tensor([[5.0, 0], [0, 5], [5, 0], [0, 5]])]
    half = Half((Point(exit=1), FULL), logits, torch.tensor([0, 1, 0, 1]))
    fitted = fit(half, Aim(budget=100.0), lambda points: [10.0, 100.0][-len(points) :])
    policy = type(fitted.policy)(half.points, (0.9,), (1.0, 1.0))
    outcome = judge(type(fitted)(policy, [10.0, 100.0], [1.0, 1.0], {}), half)
    assert outcome.exits.tolist() == [0, 0, 1, 1]
    assert (outcome.n, outcome.cost, outcome.accuracy, outcome.full_accuracy) == (4, 55.0, 0.75, 1.0)
    assert outcome.cost_error == pytest.approx(45 / 2)  # deviation 45 over the root of 4
    assert outcome.drop_error == pytest.approx(math.sqrt(3) / 4 / 2)  # of 0, 1, 0, 0
    assert standard_error(torch.tensor([0.0, 1.0, 0.0, 0.0]).numpy()) == pytest.approx(outcome.drop_error)


def test_judging_takes_the_decisions_that_running_takes():
    first, second = halves("coarse")
    fitted = fit(first, Aim(budget=40.0), costs, measure="entropy")
    exits = judge(fitted, second).exits
    places = [POINTS.index(point) for point in fitted.policy.points]
    for sample in range(20):
        masks = [bool(fitted.policy.sure(k, second.logits[p][sample][None])) for k, p in enumerate(places)]
        assert masks.index(True) == exits[sample]
    assert first_sure(torch.empty(0, 2), (0.5, 0.5)).tolist() == []
