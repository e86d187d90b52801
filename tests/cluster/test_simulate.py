"""The simulation, where it can be worked out by hand, and its laws elsewhere."""

from dataclasses import replace

import pytest

from supple.cluster.simulate import Setting, accuracy_table, between, simulate
from supple.errors import RecipeError

ONE = Setting(nodes=1, layers=2, block_ms=4, hop_ms=1, ends_ms=2, even=True, requests=100)


def test_a_request_alone_takes_the_sum_of_its_parts():
    found = simulate(replace(ONE, rate=10))
    assert (found.p50_ms, found.p99_ms) == pytest.approx((2 + 1 + 8, 11))
    assert (found.answered, found.mean_layers, found.whole, found.replays) == (100, 2, 1, 0)
    assert found.per_s == pytest.approx(10, rel=0.02)
    assert found.busy == pytest.approx(8 / 100, rel=0.02)  # 8 ms every 100 ms


def test_links_are_crossed_there_and_back():
    assert simulate(replace(ONE, rate=10, link_ms=3)).p50_ms == pytest.approx(11 + 6)
    two = replace(ONE, rate=10, nodes=2, link_ms=3)
    assert simulate(two).p50_ms == pytest.approx(2 + 2 * (1 + 6) + 8)


def test_even_arrivals_beyond_the_capacity_wait_in_a_queue_that_grows_by_the_difference():
    """D/D/1: a hop takes 8 ms and one arrives every 5 ms: request k waits 3k ms; answers come every 8 ms."""
    found = simulate(replace(ONE, rate=200, ends_ms=0))
    assert found.per_s == pytest.approx(1000 / 8, rel=0.12)  # counted from the first arrival: some time before
    times = [9 + 3 * k for k in range(10, 100)]
    assert found.p50_ms == pytest.approx(times[45])
    assert found.p99_ms == pytest.approx(times[89])


def test_the_mean_wait_of_random_arrivals_is_that_of_the_theory():
    """M/D/1: rho/(2(1-rho)) services of waiting; at half load half a service."""
    many = Setting(nodes=1, layers=1, block_ms=10, hop_ms=0, ends_ms=0, rate=50, requests=20_000)
    found = simulate(many)
    assert found.busy == pytest.approx(0.5, rel=0.05)
    assert found.p50_ms < 10 + 5 < found.p95_ms  # the mean lies between
    assert found.p50_ms == pytest.approx(10, abs=2)  # half of the requests find the node free


def test_two_nodes_with_half_of_the_layers_each_do_twice_as_much():
    base = replace(ONE, hop_ms=0, ends_ms=0, rate=1000, requests=1000)
    one, two = simulate(base), simulate(replace(base, nodes=2))
    assert two.per_s == pytest.approx(2 * one.per_s, rel=0.05)


def test_a_core_that_all_share_takes_that_back():
    base = replace(ONE, hop_ms=0, ends_ms=0, rate=1000, requests=1000, nodes=2)
    assert simulate(replace(base, cores=1)).per_s == pytest.approx(simulate(replace(base, nodes=1)).per_s, rel=0.05)
    assert simulate(replace(base, cores=2)).per_s == pytest.approx(simulate(base).per_s, rel=0.05)


def test_nodes_that_fail_cost_layers_and_replicas_save_them():
    base = Setting(nodes=4, layers=8, rate=50, requests=2000, fails_every_s=4, repair_s=2)
    alone, copies = simulate(base), simulate(replace(base, replicas=2))
    assert alone.answered == copies.answered == 2000
    assert alone.failures > 20
    # A node is down for 2 of every 6 s: two thirds of the layers run, of pairs 1 - (1/3)^2.
    assert alone.mean_layers == pytest.approx(8 * 2 / 3, rel=0.15)
    assert copies.mean_layers == pytest.approx(8 * 8 / 9, rel=0.1)
    assert copies.replays > 0


def test_a_deadline_is_kept_by_running_fewer_layers():
    slow = Setting(nodes=2, layers=8, block_ms=5, hop_ms=1, ends_ms=2, even=True, rate=5, requests=50)
    assert simulate(slow).p50_ms == pytest.approx(2 + 2 + 40)
    found = simulate(replace(slow, deadline_ms=30))
    assert found.p99_ms <= 30
    assert found.mean_layers == 5  # 30 - 2 for the ends - 2 for two hops: 26 / 5


def test_the_same_seed_gives_the_same_and_another_something_else():
    base = Setting(requests=300, fails_every_s=3)
    assert simulate(base) == simulate(base)
    assert simulate(base) != simulate(replace(base, seed=1))


def test_accuracy_lies_on_the_line_between_numbers_of_layers():
    table = {6: 0.4, 12: 0.7}
    assert [between(table, layers) for layers in (1, 6, 8, 12, 13)] == pytest.approx([0.4, 0.4, 0.5, 0.7, 0.7])
    assert simulate(ONE, {1: 0.0, 2: 0.25}).accuracy == 0.25
    assert simulate(ONE).accuracy is None


def test_the_table_comes_from_the_groups_in_order():
    scores = {"full": 0.9, "any 2": 0.5, "any 2, arbitrary": 0.1, "first 2, arbitrary": 0.2, "layers=1-2": 0.3}
    assert accuracy_table(scores, 4) == {2: 0.5, 4: 0.9}


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"rate": 0.0}, {"block_ms": -1.0}, {"cores": 0}, {"requests": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(RecipeError):
        simulate(replace(ONE, **wrong))
