"""The search for thresholds, against every combination there is."""

import itertools
import math

import numpy as np
import pytest

from supple.threshold_pairs import Pair, Samples
from supple.thresholds import Found, _climb, _rough, _Within, search


def outcomes(n: int, exits: int, seed: int, ties: bool = False) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Confidences, right answers and costs of a network whose later exits are better, and sure with some reason."""
    rng = np.random.default_rng(seed)
    ease = rng.random((n, 1)) - 0.5 + 0.1 * rng.standard_normal((n, exits))
    chance = np.clip(np.linspace(0.6, 0.9, exits) + 0.8 * ease, 0.02, 0.99)
    right = (rng.random((n, exits)) < chance).astype(float)
    sure = np.clip(chance + 0.05 * rng.standard_normal((n, exits)), 0, 1)[:, :-1]
    return np.round(sure, 1) if ties else sure, right, np.cumsum(rng.uniform(0.5, 1.5, exits)).tolist()


def played(sure: np.ndarray, right: np.ndarray, costs: list[float], thresholds) -> tuple[float, float]:
    """Accuracy and mean cost, sample by sample as the definition says."""
    got, spent = 0.0, 0.0
    for confidences, answers in zip(sure, right):
        exit = next((k for k, t in enumerate(thresholds) if confidences[k] >= t), len(costs) - 1)
        got, spent = got + answers[exit], spent + costs[exit]
    return got / len(sure), spent / len(sure)


def every_choice(sure: np.ndarray) -> itertools.product:
    return itertools.product(*([*np.unique(column), math.inf] for column in sure.T))


def agrees(found: Found, sure: np.ndarray, right: np.ndarray, costs: list[float]) -> bool:
    return played(sure, right, costs, found.thresholds) == pytest.approx((found.accuracy, found.cost))


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_two_exits_by_hand():
    # Exit 1 costs 1, exit 2 costs 3. Sure and right at exit 1: a and b; c is sure and wrong; d is neither.
    sure = [[0.9], [0.8], [0.7], [0.6]]
    right = [[1, 1], [1, 1], [0, 1], [0, 1]]
    # Mean cost 2 lets two of four go on: stop a and b, halfway between b and c.
    assert search(sure, right, [1, 3], budget=2) == Found((pytest.approx(0.75),), 1.0, 2.0)
    # One more may go on, but nobody needs it: the cheaper of two equal answers is taken.
    assert search(sure, right, [1, 3], budget=2.5) == Found((pytest.approx(0.75),), 1.0, 2.0)
    # 3/4 right is cheapest with three stopped: 3 x 1 + 3 = 6 of 4.
    assert search(sure, right, [1, 3], accuracy=0.75) == Found((pytest.approx(0.65),), 0.75, 1.5)
    # The least there is: everybody stops at once. Less is impossible.
    assert search(sure, right, [1, 3], budget=1) == Found((0.0,), 0.5, 1.0)
    assert search(sure, right, [1, 3], budget=0.9) is None
    assert search(sure, right, [1, 3], accuracy=1.01) is None


def test_equals_stop_together():
    sure, right = [[0.5], [0.5], [0.5], [0.5]], [[1, 1], [0, 1], [0, 1], [0, 1]]
    # Mean cost 2.5 would let three go on, but no threshold parts them from the first.
    assert search(sure, right, [1, 3], budget=2.5) == Found((0.0,), 0.25, 1.0)
    assert search(sure, right, [1, 3], budget=3) == Found((math.inf,), 1.0, 3.0)


def test_one_exit_needs_no_threshold():
    assert search(np.empty((2, 0)), [[1], [0]], [5], budget=5) == Found((), 0.5, 5.0)
    assert search(np.empty((2, 0)), [[1], [0]], [5], budget=4) is None


def test_three_exits_by_hand():
    # Only the last exit knows c. Sending c there costs 4; a then has to stop at exit 2 (where it is right), and that
    # means d, less sure of itself at exit 1 than a, reaches exit 2 as well.
    sure = [[0.5, 0.9], [0.9, 0.9], [0.1, 0.2], [0.4, 0.8]]
    right = [[0, 1, 1], [1, 1, 1], [0, 0, 1], [0, 1, 1]]
    found = search(sure, right, [1, 2, 4], budget=2.25)  # 1 for b, 2 for a and d, 4 for c: 9 of 4
    assert found == Found((pytest.approx(0.7), pytest.approx(0.5)), 1.0, 2.25)
    # With 8 of 4 someone must answer wrongly; stopping c at exit 2 is the cheapest way: 1 + 2 + 2 + 2.
    assert search(sure, right, [1, 2, 4], budget=2) == Found((pytest.approx(0.7), 0.0), 0.75, 1.75)


# --- exhaustively -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("exits", "n"), [(2, 120), (3, 24), (4, 9)])
@pytest.mark.parametrize("seed", range(3))
def test_few_exits_equal_the_best_of_all_combinations(exits, n, seed, ties):
    sure, right, costs = outcomes(n, exits, seed, ties)
    results = [played(sure, right, costs, thresholds) for thresholds in every_choice(sure)]
    for share in (0.2, 0.5, 0.8):
        budget = costs[0] + share * (costs[-1] - costs[0])
        found = search(sure, right, costs, budget=budget)
        assert agrees(found, sure, right, costs)
        assert found.cost <= budget * (1 + 1e-9)
        assert found.accuracy == pytest.approx(max(a for a, cost in results if cost <= budget + 1e-9))
    for drop in (0, 0.05, 0.2):
        least = right[:, -1].mean() - drop
        found = search(sure, right, costs, accuracy=least)
        assert agrees(found, sure, right, costs)
        assert found.accuracy >= least - 1e-9
        assert found.cost == pytest.approx(min(cost for a, cost in results if a >= least - 1e-9))


@pytest.mark.parametrize("seed", range(3))
def test_climbing_comes_within_a_fifth_of_a_point_of_trying_everything(seed, monkeypatch):
    sure, right, costs = outcomes(500, 3, seed)
    budget = costs[0] + 0.5 * (costs[-1] - costs[0])
    best = search(sure, right, costs, budget=budget)
    monkeypatch.setattr("supple.thresholds.EXACT", 0)
    climbed = search(sure, right, costs, budget=budget)
    assert agrees(climbed, sure, right, costs)
    assert best.accuracy - 0.002 <= climbed.accuracy <= best.accuracy
    cheapest = search(sure, right, costs, accuracy=best.accuracy)
    assert cheapest.cost <= 1.01 * best.cost


def test_many_exits_and_samples_keep_the_limit_and_beat_one_threshold_for_all():
    sure, right, costs = outcomes(3000, 5, 1)
    budget = costs[0] + 0.5 * (costs[-1] - costs[0])
    found = search(sure, right, costs, budget=budget)
    assert agrees(found, sure, right, costs)
    assert found.cost <= budget
    common = [played(sure, right, costs, [t] * 4) for t in np.linspace(0, 1, 50)]
    assert found.accuracy >= max(accuracy for accuracy, cost in common if cost <= budget)
    least = right[:, -1].mean() - 0.01
    cheap = search(sure, right, costs, accuracy=least)
    assert cheap.accuracy >= least
    assert cheap.cost <= min(cost for accuracy, cost in common if accuracy >= least)


def test_a_start_is_only_improved_on():
    sure, right, costs = outcomes(400, 5, 2)
    budget = costs[0] + 0.4 * (costs[-1] - costs[0])
    begin = (0.9, 0.9, 0.9, 0.0)
    accuracy, cost = played(sure, right, costs, begin)
    found = search(sure, right, costs, budget=max(budget, cost), start=begin, rough=False)
    assert found.accuracy >= accuracy


# --- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("outer", "inner"), [*itertools.permutations(range(3), 2), (None, 1)])
def test_the_table_of_a_pair_is_what_playing_it_gives(outer, inner, ties):
    samples = Samples(*map(np.asarray, outcomes(20, 4, 7, ties)))
    cuts = samples.nearby([6, 9, 12])
    pair = Pair.of(samples, cuts, outer, inner)
    tries = np.array([0]) if outer is None else samples.exits[outer].cuts
    right, cost = pair.table(tries)
    for row, column in itertools.product(range(len(tries)), range(len(pair.cuts))):
        changed = list(cuts)
        changed[inner] = int(pair.cuts[column])
        if outer is not None:
            changed[outer] = int(tries[row])
        assert (right[row, column], cost[row, column]) == pytest.approx(samples.totals(tuple(changed)))


def test_thresholds_give_back_their_cuts():
    sure, right, costs = outcomes(50, 3, 3, ties=True)
    samples = Samples(sure, right, np.asarray(costs))
    for first, second in itertools.product(samples.exits[0].cuts, samples.exits[1].cuts):
        cuts = (int(first), int(second))
        thresholds = samples.thresholds(cuts)
        total = samples.totals(cuts)
        assert played(sure, right, costs, thresholds) == pytest.approx((total[0] / 50, total[1] / 50))


def test_every_start_is_improved_from_even_where_it_breaks_the_limit():
    sure, right, costs = outcomes(200, 5, 4)
    samples = Samples(sure, right, np.asarray(costs))
    goal = _Within(200 * (costs[0] + 0.1))
    for start in [*_rough(samples, goal), (0, 0, 0, 0), (200, 0, 0, 0)]:
        assert goal.met(*samples.totals(_climb(samples, goal, [start])))
