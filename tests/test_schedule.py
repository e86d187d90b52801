"""Learning rates and stopping, against values worked out by hand."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supple.recipe import Train
from supple.schedule import learning_rate, plateaus, should_stop


def rates(progress: list[float], history: list[float] | None = None, **fields: Any) -> list[float]:
    train = Train(lr=0.2, **fields)
    return [learning_rate(train, at, history or []) for at in progress]


@pytest.mark.parametrize(
    ("fields", "progress", "expected"),
    [
        ({"schedule": "constant"}, [0, 0.5, 9], [0.2, 0.2, 0.2]),
        # cos(0) = 1, cos(pi/3) = 1/2, cos(pi/2) = 0, cos(2 pi/3) = -1/2, cos(pi) = -1
        ({"schedule": "cosine", "epochs": 6}, [0, 2, 3, 4, 6, 7], [0.2, 0.15, 0.1, 0.05, 0, 0]),
        # falls once two epochs are over, and again after five
        (
            {"schedule": "step", "milestones": (2, 5), "gamma": 0.1},
            [0, 1.99, 2, 4.9, 5, 100],
            [0.2, 0.2, 0.02, 0.02, 0.002, 0.002],
        ),
        ({"schedule": "step", "milestones": (), "gamma": 0.1}, [0, 50], [0.2, 0.2]),
        # once per epoch, not inside one
        ({"schedule": "exponential", "gamma": 0.5}, [0, 0.9, 1, 2.5, 3], [0.2, 0.2, 0.1, 0.05, 0.025]),
        # warm-up multiplies the schedule: a line from 0 over the first two epochs
        ({"schedule": "constant", "warmup": 2}, [0, 0.5, 1, 1.5, 2, 3], [0, 0.05, 0.1, 0.15, 0.2, 0.2]),
        ({"schedule": "constant", "warmup": 0.5}, [0.25, 0.5], [0.1, 0.2]),
        ({"schedule": "cosine", "epochs": 6, "warmup": 3}, [0, 2, 3], [0, 0.15 * 2 / 3, 0.1]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_rates_by_hand(fields: dict[str, Any], progress: list[float], expected: list[float]) -> None:
    assert rates(progress, **fields) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("history", "patience", "expected"),
    [
        ([], 2, 0),
        ([5, 4, 3, 2], 2, 0),
        ([5, 6], 2, 0),
        ([5, 6, 5], 2, 1),  # equal is not better
        ([5, 6, 7, 8], 2, 1),  # the third bad epoch is the first of a new count
        ([5, 6, 7, 8, 9], 2, 2),
        ([5, 6, 4, 6, 6], 2, 1),  # 4 is a new best: the count starts anew
        ([5, 6, 7, 5.5, 4, 4], 2, 1),  # 5.5 is better than 7 but not a new best
        ([5, 6, 7], 1, 2),
        ([5, math.nan, math.nan], 2, 1),
    ],
    ids=str,
)
def test_plateaus_by_hand(history: list[float], patience: int, expected: int) -> None:
    assert plateaus(history, patience) == expected
    fields = {"schedule": "plateau", "gamma": 0.6, "patience": patience}
    assert rates([len(history)], history, **fields) == pytest.approx([0.2 * 0.6**expected])


@pytest.mark.parametrize(
    ("history", "patience", "expected"),
    [
        ([], 1, False),
        ([5], 1, False),
        ([5, 6], 1, True),
        ([5, 6, 6], 3, False),
        ([5, 6, 6, 6], 3, True),
        ([5, 5, 5], 2, True),  # equal is not better
        ([5, 6, 4], 1, False),
        ([5, 6, 4, 6, 5], 2, True),
        ([1, 2, 3, 4, 5, 6], 0, False),  # never
    ],
    ids=str,
)
def test_early_stop_by_hand(history: list[float], patience: int, expected: bool) -> None:
    assert should_stop(history, patience) is expected


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(2, 400))
def test_cosine_starts_at_the_top_falls_all_the_way_and_ends_near_zero(epochs: int, steps: int) -> None:
    train = Train(lr=0.1, schedule="cosine", epochs=epochs)
    line = [learning_rate(train, epochs * step / steps) for step in range(steps + 1)]
    assert line[0] == 0.1
    assert all(later < earlier for earlier, later in pairwise(line))
    assert 0 <= line[-1] < 1e-12
    assert all(rate == pytest.approx(0.1 - mirror) for rate, mirror in zip(line, reversed(line)))  # symmetric


@settings(deadline=None)
@given(
    st.sampled_from(["constant", "cosine", "step", "exponential", "plateau"]),
    st.floats(0, 20),
    st.floats(0, 5),
    st.lists(st.floats(0, 10), max_size=20),
)
def test_no_schedule_leaves_zero_to_lr_and_warm_up_never_raises_it(
    schedule: Any, progress: float, warmup: float, history: list[float]
) -> None:
    plain = Train(schedule=schedule, lr=0.1, milestones=(3, 7), gamma=0.5)
    warm = plain.model_copy(update={"warmup": warmup})
    rate, warmed = learning_rate(plain, progress, history), learning_rate(warm, progress, history)
    assert 0 <= warmed <= rate <= 0.1
    assert progress < warmup or warmed == rate


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 6))
def test_stopping_means_no_new_best_in_the_last_epochs(history: list[int], patience: int) -> None:
    recent, before = history[-patience:], history[:-patience]
    assert should_stop(history, patience) == (bool(before) and min(recent) >= min(before))
    assert not should_stop(history, patience) or plateaus(history, patience) >= 1
