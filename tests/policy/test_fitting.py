"""What a calibrated policy promises of images that it has not seen, on made-up outputs of all kinds."""

import itertools
import math

import numpy as np
import pytest
import torch

from supple.errors import RecipeError
from supple.point import FULL, Point
from supple.policy.fitting import (
    COLDEST,
    HOTTEST,
    SPARE,
    Fitted,
    LogitSet,
    Target,
    evaluate_policy,
    find_dominated,
    fit,
    fit_temperature,
    geometric,
    standard_error,
    thresholds_for,
)
from supple.policy.policy import Policy

POINTS = (Point(exit=1), Point(exit=2), Point(exit=3), FULL)
ALONE, HEAD = dict(zip(POINTS, (10.0, 25.0, 45.0, 100.0))), 3.0


def costs(points: tuple[Point, ...]) -> list[float]:
    """Of a chain of exits: every head passed costs a little."""
    return [ALONE[point] + HEAD * place for place, point in enumerate(points)]


def outputs(kind: str, n: int, classes: int, seed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
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


def halves(kind: str, n: int = 300, classes: int = 10, seed: int = 0) -> tuple[LogitSet, LogitSet]:
    logits, labels = outputs(kind, n, classes, seed)
    both = (slice(n), slice(n, None))
    return tuple(LogitSet(POINTS, [part[rows].numpy() for part in logits], labels[rows].numpy()) for rows in both)


# --- the family of policies -------------------------------------------------------------------------------------------


def test_shares_fall_or_rise_by_one_factor_and_sum_to_one():
    assert geometric(0.0, 4) == pytest.approx([0.25] * 4)
    assert geometric(math.log(2), 3) == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert geometric(-math.log(2), 3) == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert geometric(700.0, 3) == pytest.approx([0, 0, 1])
    assert geometric(-700.0, 3) == pytest.approx([1, 0, 0])


def test_thresholds_part_the_samples_at_the_shares_the_surest_first():
    confidences = np.array([[0.9, 0.2], [0.8, 0.9], [0.5, 0.6], [0.4, 0.8]])
    # Half stop at exit 1: 0.9 and 0.8. Of the two left, one stops at exit 2: the one that is surer there.
    assert thresholds_for(confidences, (0.5, 0.25, 0.25)) == pytest.approx((0.65, 0.7))
    assert thresholds_for(confidences, (0.0, 0.0, 1.0)) == (math.inf, math.inf)
    assert thresholds_for(confidences, (1.0, 0.0, 0.0))[0] == 0.0
    equal = np.full((4, 1), 0.7)  # nobody is surer than another: they stop together
    assert thresholds_for(equal, (0.5, 0.5)) == (0.7,)


def test_a_target_is_read_as_people_write_it():
    assert Target.parse("budget_macs", "0.5x") == Target("budget_macs", 0.5, True, "0.5x")
    assert Target.parse("budget_ms", " 4 ") == Target("budget_ms", 4.0, False, "4")
    assert Target.parse("max_drop", "0.01").unit == "macs"
    for kind, text in (("budget_macs", "half"), ("budget_ms", "0"), ("max_drop", "1"), ("max_drop", "0.1x")):
        with pytest.raises(RecipeError, match=text):
            Target.parse(kind, text)


# --- temperatures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hot", [0.3, 1.0, 4.0])
def test_the_temperature_that_the_labels_were_drawn_with_is_found(hot):
    rng = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20_000, 5, generator=rng)
    labels = torch.multinomial((logits / hot).softmax(1), 1, generator=rng).squeeze(1)
    assert fit_temperature(logits.numpy(), labels.numpy()) == pytest.approx(hot, rel=0.05)
    shifted = (logits + 1000).numpy()  # only differences matter
    assert fit_temperature(shifted, labels.numpy()) == pytest.approx(hot, rel=0.05)


def test_no_other_temperature_is_likelier():
    rng = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(300, 4, generator=rng), torch.randint(4, (300,), generator=rng)
    logits[torch.arange(300), labels] += 1
    found = fit_temperature(logits.numpy(), labels.numpy())
    loss = lambda t: torch.nn.functional.cross_entropy(logits.double() / t, labels)
    assert all(loss(found) <= loss(t) + 1e-9 for t in (0.1, 0.5, 0.9 * found, 1.1 * found, 2.0, 10.0))


def test_extreme_temperatures_stay_within_bounds():
    logits, right = np.eye(4), np.arange(4)
    assert fit_temperature(logits, right) == pytest.approx(COLDEST, rel=1e-3)  # always right: as sure as can be
    assert fit_temperature(logits, np.roll(right, 1)) == pytest.approx(HOTTEST, rel=1e-3)  # always wrong
    assert fit_temperature(np.full((4, 3), math.nan), np.zeros(4, int)) == 1.0
    broken = np.concatenate([logits, np.full((1, 4), math.inf)])
    assert fit_temperature(broken, np.arange(5) % 4) == pytest.approx(COLDEST, rel=1e-3)


# --- the promise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [10, 100, 1000])
@pytest.mark.parametrize("kind", ["trained", "untrained", "coarse", "same"])
def test_a_budget_holds_on_the_other_half(kind, classes):
    for seed, budget in itertools.product(range(2), (20.0, 40.0, 80.0)):
        first, second = halves(kind, classes=classes, seed=seed)
        fitted = fit(first, costs, budget=budget)
        expected, achieved = evaluate_policy(fitted, first), evaluate_policy(fitted, second)
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
        fitted = fit(first, costs, drop=drop)
        achieved = evaluate_policy(fitted, second)
        assert achieved.full_accuracy - achieved.accuracy <= drop + 2 * achieved.drop_error + 1e-9
        assert achieved.cost <= costs((FULL,))[0] * 1.01 or fitted.policy.points == (FULL,)
        if fitted.policy.points == (FULL,):
            assert achieved.accuracy == achieved.full_accuracy


def test_a_trained_network_saves_most_of_its_cost_for_a_point_of_accuracy():
    for seed in range(2):
        first, second = halves("trained", n=500, seed=seed)
        achieved = evaluate_policy(fit(first, costs, drop=0.01), second)
        assert achieved.cost < 0.6 * costs((FULL,))[0]


def test_more_budget_never_means_less_cost_expected_and_a_generous_one_reaches_the_full_accuracy():
    first, _ = halves("trained", n=400)
    spent = [evaluate_policy(fit(first, costs, budget=budget), first) for budget in (12.0, 30.0, 60.0, 1e6)]
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
    logits = [first.numpy(), (0.5 * truth + 0.1 * guess).numpy()]
    half = LogitSet((Point(exit=1), FULL), logits, labels.numpy())
    fitted = fit(half, lambda points: [10.0, 100.0][-len(points) :], budget=1e9)
    outcome = evaluate_policy(fitted, half)
    assert outcome.accuracy >= outcome.full_accuracy - outcome.drop_error


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aim", [{"budget": 40.0}, {"drop": 0.02}])
def test_labels_decide_nothing_when_a_policy_runs(aim):
    first, second = halves("trained")
    fitted = fit(first, costs, **aim)
    mixed = LogitSet(second.points, second.logits, second.labels[np.random.default_rng(0).permutation(300)])
    assert evaluate_policy(fitted, mixed).exits.tolist() == evaluate_policy(fitted, second).exits.tolist()


def test_the_second_half_decides_nothing_at_all():
    first, second = halves("trained")
    fitted = fit(first, costs, budget=40.0)
    evaluate_policy(fitted, second)
    assert fit(first, costs, budget=40.0) == fitted


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
    worse = first.logits[1].copy()
    worse[:200] = np.roll(worse[:200], 1, 1)  # exit 2 becomes worse than exit 1, and no less sure
    first = LogitSet(POINTS, [first.logits[0], worse, *first.logits[2:]], first.labels)
    fitted = fit(first, costs, budget=40.0)
    assert fitted.dominated == {Point(exit=2): Point(exit=1)}
    assert Point(exit=2) not in fitted.policy.points
    seen = []
    fit(first, lambda points: seen.append(points) or costs(points), budget=40.0, keep_dominated=True)
    assert any(Point(exit=2) in points for points in seen)


def test_exits_whose_heads_cost_more_than_they_save_are_left_out():
    first, _ = halves("trained", n=400)
    dear = lambda points: [ALONE[point] + 1e6 * place for place, point in enumerate(points)]  # of every exit passed
    free = lambda points: [ALONE[point] for point in points]
    assert fit(first, dear, budget=45.0).policy.points == (Point(exit=3),)
    assert len(fit(first, free, budget=45.0).policy.points) > 1


def test_everybody_at_the_first_exit_when_the_budget_allows_no_more():
    first, second = halves("trained")
    fitted = fit(first, costs, budget=10.0)
    assert (fitted.policy.points, fitted.policy.thresholds) == ((Point(exit=1),), ())
    assert evaluate_policy(fitted, second).cost == 10.0


# --- how it is judged -------------------------------------------------------------------------------------------------


def test_an_outcome_by_hand():
    # Two classes; exit 1 is sure of the first two samples and right about one of them, full is right about all.
    sure, unsure = [5.0, 0.0], [0.1, 0.0]
    logits = [np.array([sure, sure, unsure, unsure]), np.array([[5.0, 0], [0, 5], [5, 0], [0, 5]])]
    half = LogitSet((Point(exit=1), FULL), logits, np.array([0, 1, 0, 1]))
    policy = Policy(half.points, (0.9,), (1.0, 1.0))
    outcome = evaluate_policy(Fitted(policy, [10.0, 100.0], [1.0, 1.0], {}), half)
    assert outcome.exits.tolist() == [0, 0, 1, 1]
    assert (outcome.n, outcome.cost, outcome.accuracy, outcome.full_accuracy) == (4, 55.0, 0.75, 1.0)
    assert outcome.cost_error == pytest.approx(45 / 2)  # deviation 45 over the root of 4
    assert outcome.drop_error == pytest.approx(math.sqrt(3) / 4 / 2)  # of 0, 1, 0, 0
    assert standard_error(np.array([0.0, 1.0, 0.0, 0.0])) == pytest.approx(outcome.drop_error)


def test_judging_takes_the_decisions_that_running_takes():
    first, second = halves("coarse")
    fitted = fit(first, costs, budget=40.0, measure="entropy")
    exits = evaluate_policy(fitted, second).exits
    places = [POINTS.index(point) for point in fitted.policy.points]
    for sample in range(20):
        masks = [bool(fitted.policy.stops(k, second.logits[p][sample][None])) for k, p in enumerate(places)]
        assert masks.index(True) == exits[sample]


# --- some of the points -----------------------------------------------------------------------------------------------


def test_the_cost_of_a_cascade_by_hand():
    """A narrow network of 1 MMACs is sure of three samples of four and right; the fourth also runs the one of 4."""
    sure, unsure = [9.0, 0.0], [0.1, 0.0]
    narrow, full = np.array([sure, sure, sure, unsure] * 25), np.array([sure, sure, sure, [0.0, 9.0]] * 25)
    labels = np.array([0, 0, 0, 1] * 25)
    points = (Point(width=0.5), FULL)
    alone = {Point(width=0.5): 1.0, FULL: 4.0}
    one_by_one = lambda points: list(itertools.accumulate(alone[point] for point in points))
    fitted = fit(LogitSet(points, [narrow, full], labels), one_by_one, drop=0.1)
    outcome = evaluate_policy(fitted, LogitSet(points, [narrow, full], labels))
    assert fitted.policy.points == points
    assert fitted.policy.shares == (0.75, 0.25)
    assert outcome.cost == (3 * 1 + 1 * (1 + 4)) / 4 == 2.0
    assert (outcome.accuracy, outcome.full_accuracy) == (1.0, 1.0)


def test_a_policy_has_no_point_but_those_that_it_may_have_and_is_held_against_the_full_model():
    first, _ = halves("trained")
    some = (POINTS[0], POINTS[2])
    fitted = fit(first, costs, budget=1000.0, among=some)
    assert set(fitted.policy.points) <= set(some)
    assert evaluate_policy(fitted, first).full_accuracy == first.right()[:, -1].mean()
    lost = evaluate_policy(fit(first, costs, drop=0.5, among=some), first)
    assert lost.full_accuracy - lost.accuracy <= 0.5
    with pytest.raises(RecipeError, match="within 0 percentage points of the full model") as caught:
        fit(first, costs, drop=0.0, among=some[:1])
    assert "full" in caught.value.cure


def test_a_policy_that_is_shortened_costs_what_the_points_left_in_it_do():
    """Alone, the first two are cheaper than at the head of all: they may be exits of one chain."""
    first, _ = halves("trained")
    asked = []

    def noted(points: tuple[Point, ...]) -> list[float]:
        asked.append(points)
        return [cost / (2 if len(points) < 4 else 1) for cost in costs(points)]

    fitted = fit(first, noted, budget=8.0, keep_dominated=True)  # below what any stop costs with all four
    assert 1 < len(fitted.policy.points) < 4
    assert fitted.policy.points in asked
    assert fitted.costs == noted(fitted.policy.points)
