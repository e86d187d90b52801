"""Learning rates and stopping, against values worked out by hand."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supple.errors import RecipeError
from supple.recipe import Train
from supple.training.schedule import SCHEDULES, make_schedule, plateaus, should_stop


def rates(progress: list[float], history: list[float] | None = None, **fields: Any) -> list[float]:
    factor = make_schedule(Train(**fields), steps=1)
    return [0.2 * factor(at, history or []) for at in progress]


@pytest.mark.parametrize(
    ("fields", "progress", "expected"),
    [
        ({"schedule": "constant"}, [0, 0.5, 9], [0.2, 0.2, 0.2]),
        # cos(0) = 1, cos(pi/3) = 1/2, cos(pi/2) = 0, cos(2 pi/3) = -1/2, cos(pi) = -1
        ({"schedule": "cosine", "epochs": 6}, [0, 2, 3, 4, 6, 7], [0.2, 0.15, 0.1, 0.05, 0, 0]),
        # falls once two epochs are over, and again after five
        (
            {"schedule": {"name": "step", "milestones": (2, 5), "gamma": 0.1}},
            [0, 1.99, 2, 4.9, 5, 100],
            [0.2, 0.2, 0.02, 0.02, 0.002, 0.002],
        ),
        ({"schedule": {"name": "step", "milestones": (), "gamma": 0.1}}, [0, 50], [0.2, 0.2]),
        # once per epoch, not inside one
        ({"schedule": {"name": "exponential", "gamma": 0.5}}, [0, 0.9, 1, 2.5, 3], [0.2, 0.2, 0.1, 0.05, 0.025]),
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
    fields = {"schedule": {"name": "plateau", "gamma": 0.6, "patience": patience}}
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
    factor = make_schedule(Train(schedule="cosine", epochs=epochs), steps)
    line = [factor(epochs * step / steps, []) for step in range(steps + 1)]
    assert line[0] == 1
    assert all(later < earlier for earlier, later in pairwise(line))
    assert 0 <= line[-1] < 1e-12
    assert all(rate == pytest.approx(1 - mirror) for rate, mirror in zip(line, reversed(line)))  # symmetric


@settings(deadline=None)
@given(
    st.sampled_from(
        [
            *("constant", "cosine", "plateau", {"name": "step", "milestones": [3, 7], "gamma": 0.5}),
            {"name": "exponential", "gamma": 0.5},
        ]
    ),
    st.floats(0, 20),
    st.floats(0, 5),
    st.lists(st.floats(0, 10), max_size=20),
)
def test_no_schedule_leaves_zero_to_one_and_warm_up_never_raises_it(
    schedule: Any, progress: float, warmup: float, history: list[float]
) -> None:
    rate = make_schedule(Train(schedule=schedule), 1)(progress, history)
    warmed = make_schedule(Train(schedule=schedule, warmup=warmup), 1)(progress, history)
    assert 0 <= warmed <= rate <= 1
    assert progress < warmup or warmed == rate


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 6))
def test_stopping_means_no_new_best_in_the_last_epochs(history: list[int], patience: int) -> None:
    recent, before = history[-patience:], history[:-patience]
    assert should_stop(history, patience) == (bool(before) and min(recent) >= min(before))
    assert not should_stop(history, patience) or plateaus(history, patience) >= 1


def table(schedule: Any, epochs: int = 2, steps: int = 5) -> list[float]:
    factor = make_schedule(Train(schedule=schedule, epochs=epochs), steps)
    return [factor(epoch + step / steps, []) for epoch in range(epochs) for step in range(steps)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("polynomial", [1 - step / 10 for step in range(10)]),  # a line to 0 at the end of the training
        ({"name": "polynomial", "total_iters": 5, "power": 2}, [*((1 - step / 5) ** 2 for step in range(5)), *[0] * 5]),
        ({"name": "multi_step", "milestones": [2, 7], "gamma": 0.5}, [1, 1, *[0.5] * 5, *[0.25] * 3]),
        # from a 25th up in two steps, then down to a 10,000th of that: three tenths of the training rise
        ("one_cycle", [0.04, 0.52, 1, *(5e-1 * (1 + math.cos(math.pi * n / 7)) for n in range(1, 7)), 0.04 / 10_000]),
        ({"name": "cosine_annealing_warm_restarts", "T_0": 3}, [1, 0.75, 0.25] * 3 + [1]),
        ({"name": "cyclic", "base_lr": "1e-1", "step_size_up": 2}, [0.1, 0.55, 1, 0.55] * 2 + [0.1, 0.55]),
        ("poly", [(1 - step / 10) ** 0.5 for step in range(10)]),
        ({"name": "tanh", "lb": -1, "ub": 1}, [(1 - math.tanh(-1 + 2 * step / 10)) / 2 for step in range(10)]),
    ],
    ids=lambda value: str(value) if not isinstance(value, list) else "",
)
def test_schedulers_of_torch_and_timm_become_tables_of_factors(schedule: Any, expected: list[float]) -> None:
    assert table(schedule) == pytest.approx(expected, abs=5e-6)


def test_a_table_is_multiplied_by_the_warm_up() -> None:
    factor = make_schedule(Train(schedule="polynomial", epochs=2, warmup=1), steps=5)
    assert [factor(at, []) for at in (0, 0.2, 0.8, 1)] == pytest.approx([0, 0.2 * 0.9, 0.8 * 0.6, 0.5])


@pytest.mark.parametrize(
    ("schedule", "cause", "cure"),
    [
        ("cosin", 'train.schedule "cosin" is unknown', 'Did you mean "cosine"?'),
        ("lambda", 'train.schedule "lambda" is unknown', "one_cycle"),
        ("reduce_lr_on_plateau", "metric", "Use plateau"),
        (
            {"name": "step", "gama": 0.1},
            'unknown key "train.schedule.gama"',
            'Did you mean "gamma"? step takes milestones',
        ),
        ({"name": "step", "gamma": 1.5}, "train.schedule.gamma is 1.5", "less than or equal to 1"),
        ({"name": "plateau", "patience": 0}, "train.schedule.patience is 0", "greater than or equal to 1"),
        ({"name": "cosine", "gamma": 0.1}, 'unknown key "train.schedule.gamma"', "cosine takes no arguments"),
        ("cyclic", "train.schedule.base_lr is missing", "Add it"),
        ({"name": "one_cycle", "cycle_momentum": True}, 'unknown key "train.schedule.cycle_momentum"', "pct_start"),
        ({"name": "one_cycle", "total_steps": 3}, "Tried to step 4 times", "10 steps"),
        ({"name": "tanh", "t_initial": 0}, "is refused", "10 steps"),
        ({"name": "cosine_annealing", "eta_min": -1}, "negative", "Correct"),
    ],
    ids=str,
)
def test_an_invalid_schedule_is_refused_with_the_cure(schedule: Any, cause: str, cure: str) -> None:
    with pytest.raises(RecipeError) as caught:
        table(schedule)
    assert cause in caught.value.cause
    assert cure in caught.value.cure


def test_a_schedule_of_ones_own_has_its_keyword_arguments_as_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def root(progress: float, epochs: int, history: Sequence[float], *, power: float = 0.5) -> float:
        return (1 - progress / epochs) ** power

    monkeypatch.setitem(SCHEDULES, "root", root)
    assert Train(schedule="root").schedule == {"name": "root", "power": 0.5}
    assert table({"name": "root", "power": 2})[:6:5] == pytest.approx([1, 0.25])
