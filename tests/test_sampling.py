"""Which points a training step runs."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supple.point import FULL, Point
from supple.sampling import SAMPLERS, every, full, one, sandwich

EXITS = [Point(exit=1), Point(exit=2), Point(exit=3), Point(exit=4), Point(exit=5), FULL]


def family(n: int) -> list[Point]:
    return [*(Point(exit=k) for k in range(1, n)), FULL]


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 2**32))
def test_a_sandwich_has_the_smallest_the_largest_and_exactly_middle_more_in_order(
    n: int, middle: int, seed: int
) -> None:
    points = family(n)
    chosen = sandwich(points, random.Random(seed), middle=middle)
    assert chosen[0] == points[0]
    assert chosen[-1] == points[-1]
    assert len(chosen) == min(n, 2 + middle)
    assert [point for point in points if point in set(chosen)] == chosen


def test_the_middle_of_a_sandwich_reaches_every_point_about_equally_often() -> None:
    rng = random.Random(0)
    counts = Counter(point for _ in range(2000) for point in sandwich(EXITS, rng))
    assert counts[EXITS[0]] == counts[FULL] == 2000
    for point in EXITS[1:-1]:  # two of four: 1000 expected, deviation sqrt(2000/4) = 22
        assert abs(counts[point] - 1000) < 5 * 22.4


def test_one_reaches_every_point_and_takes_one_at_a_time() -> None:
    rng = random.Random(0)
    draws = [one(EXITS, rng) for _ in range(200)]
    assert {len(draw) for draw in draws} == {1}
    assert {draw[0] for draw in draws} == set(EXITS)


def test_every_takes_all_in_order_and_full_takes_the_last() -> None:
    assert every(EXITS, random.Random(0)) == EXITS
    assert full(EXITS, random.Random(0)) == [FULL]


@pytest.mark.parametrize("name", SAMPLERS)
def test_equal_seeds_give_equal_steps_and_the_list_of_points_is_left_alone(name: str) -> None:
    def steps(seed: int) -> list[list[Point]]:
        rng = random.Random(seed)
        return [SAMPLERS[name](points, rng) for points in [list(EXITS)] for _ in range(20)]

    points = tuple(EXITS)
    chosen = SAMPLERS[name](points, random.Random(0))
    assert points == tuple(EXITS)
    assert set(chosen) <= set(points)
    assert steps(7) == steps(7)
    assert (steps(7) == steps(8)) == (name in ("every", "full", "smallest"))  # the others depend on the seed
