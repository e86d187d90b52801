"""Which exits are looked at, from latencies made by hand. (How long they really take is for the benchmarks.)"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from supple.inference.costs import SAVED, ChainCosts, answered_by
from supple.inference.engines import Stage
from supple.inference.latency import LatencyEstimator
from supple.point import FULL, Point
from supple.policy.policy import Policy, stop_above

EXITS = (Point(exit=1), Point(exit=2), FULL)
STAGES = (Stage("body-0", "head-0", "exit=1"), Stage("body-1", "head-1", "exit=2"), Stage(None, "head-2", "full"))
POLICY = Policy(EXITS, (0.9, 0.8), (1.0, 2.0, 3.0), shares=(0.5, 0.3, 0.2))

Times = Callable[[str, int, int], float]  # of a step: its kind, its stage, for a size


def costs_by_hand(batch: int, times: Times, full: float, stages=STAGES) -> ChainCosts:
    latency = LatencyEstimator()
    costs = ChainCosts(latency, stages)
    for size in costs.unmeasured(batch):
        for k in range(len(stages)):
            for kind in ("body", "head", "note", "take"):
                latency.learn((kind, k, size), [times(kind, k, size)])
        latency.learn(("static", "full", size), [full * size])
        costs.measured(size)
    return costs


def looked_at(costs: ChainCosts, batch: int = 1, policy: Policy = POLICY) -> list[str]:
    return [str(point) for point in costs.reduced(policy, batch).points]


def alone(head: float = 1.0, middle: float = 1.0, note: float = 0.0, full: float = 30.0) -> ChainCosts:
    """One sample: 10 ms for each of three stages, the last one with its head, and so many for the other heads."""
    ms = {"body": 10.0, "note": note, "take": 0.0}
    heads = (head, middle, 10.0)
    return costs_by_hand(1, lambda kind, k, size: ms.get(kind, heads[k]), full)


# --- a single sample --------------------------------------------------------------------------------------------------


def test_all_exits_are_looked_at_where_each_saves_more_than_its_head_takes():
    # All: 11 + 0.5 x 11 + 0.2 x 10 = 18.5. Without exit 1: 21 + 0.2 x 10 = 23; without exit 2: 11 + 0.5 x 20 = 21.
    assert looked_at(alone()) == ["exit=1", "exit=2", "full"]


def test_an_exit_whose_head_takes_more_than_it_saves_is_left_out():
    # All: 11 + 0.5 x 18 + 0.2 x 10 = 22. Without exit 1: 28 + 2 = 30; without exit 2, as above: 21.
    assert looked_at(alone(middle=8.0)) == ["exit=1", "full"]
    # All: 18 + 0.5 x 11 + 2 = 25.5. Without exit 1, as above: 23; without exit 2: 18 + 10 = 28.
    assert looked_at(alone(head=8.0)) == ["exit=2", "full"]


def test_a_static_graph_answers_where_the_best_chain_saves_too_little():
    assert SAVED == 0.1
    assert looked_at(alone(middle=8.0, full=23.3)) == ["full"]  # 21 ms are more than 0.9 x 23.3 = 20.97
    assert looked_at(alone(middle=8.0, full=23.4)) == ["exit=1", "full"]  # 0.9 x 23.4 = 21.06


def test_what_it_takes_to_find_who_is_sure_counts():
    # With 4 ms for each answer that is noted, all: 15 + 0.5 x 15 + 0.2 x 14 = 25.3. Without exit 2: 15 + 0.5 x 24 = 27.
    assert looked_at(alone(note=4.0, full=30.0)) == ["exit=1", "exit=2", "full"]
    assert looked_at(alone(note=4.0, full=26.0)) == ["full"]
    # With 10 ms, all: 21 + 10.5 + 4 = 35.5. Without exit 2: 21 + 0.5 x 30 = 36; without exit 1: 31 + 4 = 35.
    assert looked_at(alone(note=10.0, full=40.0)) == ["exit=2", "full"]


# --- batches ----------------------------------------------------------------------------------------------------------


def linear(kind: str, k: int, size: int) -> float:
    """Bodies and the last head take 10 ms for each sample, other heads 1, gathering 1 whatever the size."""
    return {"note": 0.0, "take": 1.0}.get(kind, 1.0 * size if kind == "head" and k < 2 else 10.0 * size)


def test_of_a_batch_it_counts_how_often_somebody_goes_on_and_how_many_then_do():
    policy = Policy((EXITS[0], FULL), (0.9,), (1.0, 1.0), shares=(0.5, 0.5))
    # Exit 1 takes 2 x 11. With 3/4 somebody goes on, then 4/3 samples: gathered in 1 ms, two stages of 10 x 4/3 each.
    expected = 22 + 0.75 * (1 + 80 / 3)
    for full, points in ((expected / 0.899 / 2, ["exit=1", "full"]), (expected / 0.901 / 2, ["full"])):
        assert looked_at(costs_by_hand(2, linear, full), 2, policy) == points


def test_the_sizes_measured_for_a_batch_are_its_halves_unless_a_larger_one_was():
    costs = costs_by_hand(1, linear, 30.0)
    assert costs.unmeasured(32) == [32, 16, 8, 4, 2]
    costs = costs_by_hand(20, linear, 30.0)
    assert [costs.unmeasured(batch) for batch in (1, 7, 20)] == [[], [], []]
    assert costs.unmeasured(21) == [21, 11, 6]  # 20, 10, 5, 3, 2 and 1 are known
    steps = costs.until_answer(range(2))
    assert steps == [("body", 0), ("body", 1), ("head", 1), ("note", 1)]
    for count in (1, 1.5, 4, 7, 19.9, 20):
        assert costs.ms(count, steps) == pytest.approx(21 * count)
    assert costs.until_answer(range(2, 3)) == [("head", 2), ("note", 2)]
    costs.measured(80)  # alone
    assert costs.unmeasured(21) == costs.unmeasured(80) == [40]  # its half; the rest is known


def test_gathering_pays_where_the_stages_to_the_next_answer_save_more():
    ms = {"note": 0.0, "take": 1.9}
    costs = costs_by_hand(8, lambda kind, k, size: ms.get(kind, 1 + 0.5 * size), 0.0)
    # The next stage, body and head, takes 2 x 0.5 ms less for every sample that leaves; the last one 0.5 ms.
    assert costs.pays(range(1, 2), 6, 8)
    assert not costs.pays(range(1, 2), 7, 8)
    assert not costs.pays(range(2, 3), 5, 8)
    assert costs.pays(range(1, 2), 99, 100)  # never measured: as if it did


@pytest.mark.parametrize("batch", [1, 2, 5, 16])
def test_no_other_choice_of_exits_is_faster(batch):
    rng = np.random.default_rng(batch)
    stages = [Stage(f"body-{k}", f"head-{k}", f"exit={k + 1}") for k in range(5)] + [Stage(None, "head-5", "full")]
    points = (*(Point(exit=k + 1) for k in range(5)), FULL)
    for _ in range(20):
        slopes = {kind: rng.uniform(0, 1, (6, 2)) for kind in ("body", "head", "note", "take")}
        costs = costs_by_hand(batch, lambda kind, k, size, s=slopes: s[kind][k] @ (1, size / 4), 1e9, stages)
        policy = Policy(points, (0.5,) * 5, (1.0,) * 6, shares=tuple(rng.dirichlet(np.ones(6))))

        def expected_ms(places, costs=costs, policy=policy):
            total, count, first, share = 0.0, batch, 0, 1.0
            for place in places:
                reached = 1 - (1 - share) ** batch
                going, until = batch * share / reached, range(first, place + 1)
                if first and costs.pays(until, going, count):
                    total += reached * costs.ms(count, [("take", first - 1)])
                    count = going
                total += reached * costs.ms(count, costs.until_answer(until))
                first, share = place + 1, 1 - sum(policy.shares[: place + 1])
            return total

        choices = [(*some, 5) for n in range(6) for some in itertools.combinations(range(5), n)]
        best = min(choices, key=expected_ms)
        assert costs.reduced(policy, batch) == policy.only(best)


# --- what is left of a policy -----------------------------------------------------------------------------------------


def test_a_reduced_policy_keeps_thresholds_and_temperatures_and_passes_the_shares_on():
    kept = POLICY.only((0, 2))
    assert (kept.points, kept.thresholds, kept.temperatures) == ((EXITS[0], FULL), (0.9,), (1.0, 3.0))
    assert kept.shares == pytest.approx((0.5, 0.5))
    kept = POLICY.only((1, 2))
    assert (kept.thresholds, kept.temperatures, kept.shares) == ((0.8,), (2.0, 3.0), pytest.approx((0.8, 0.2)))
    assert POLICY.only((2,)).shares == (1.0,)
    assert POLICY.only((0, 1)).shares == pytest.approx((0.5, 0.5))  # the last answers all that is left


def test_points_that_no_stage_answers_are_not_chosen_from():
    assert answered_by(STAGES, POLICY) == POLICY.only((0, 1, 2))
    assert answered_by(STAGES[:2], POLICY) == POLICY.only((0, 1))
    assert answered_by(STAGES[:1], POLICY) is None
    assert answered_by(STAGES, None) is None
    assert answered_by(STAGES, stop_above(EXITS, 0.9)) is None  # nobody knows how many stop where
