"""The rule by hand: Student's t over seeds, the bootstrap over images, and what follows from an interval."""

import math
import subprocess
import sys

import numpy as np
import pytest

from supple.experiments.verdict import Effect, Sample, combine, effect, image_variance, judge, t_value


def flat(value: float, images: int = 4) -> Sample:
    """A figure that is the same on every image: nothing but seeds varies."""
    return Sample({"test": np.full(images, value)})


def test_students_t_is_that_of_the_tables():
    assert [round(t_value(n), 3) for n in (2, 3, 4, 5, 6, 31)] == [12.706, 4.303, 3.182, 2.776, 2.571, 2.042]


def test_over_seeds_alone_the_half_width_is_t_times_the_standard_error():
    found = effect([flat(1), flat(2), flat(3)])  # s^2 = 1, n = 3
    assert (found.points, found.seeds) == (2, 3)
    assert found.half == pytest.approx(4.302653 / math.sqrt(3))


def test_over_images_alone_the_half_width_is_t_times_the_root_of_their_variance():
    each = np.array([0.0, 100, 100, 100])  # mean 75, variance 1875, of the mean 468.75
    found = effect([Sample({"test": each})] * 3)
    assert found.points == 75
    assert found.half == pytest.approx(4.302653 * math.sqrt(468.75))


def test_both_add_up_under_the_root():
    each = np.array([0.0, 2.0])  # variance of the mean 1 / 2
    found = effect([Sample({"test": each + shift}) for shift in (-1, 0, 1)])
    assert found.half == pytest.approx(4.302653 * math.sqrt(1 / 3 + 1 / 2))


def test_images_are_paired_what_arms_share_on_an_image_cancels():
    one, other = np.array([0, 100, 0, 100.0]), np.array([0, 100, 0, 0.0])
    found = effect([combine([(1, Sample({"test": one})), (-1, Sample({"test": other}))])] * 3)
    assert found.points == 25
    assert found.half == pytest.approx(4.302653 * math.sqrt(1875 / 4))  # of 0, 0, 0, 100
    alike = effect([combine([(1, Sample({"test": one})), (-1, Sample({"test": one}))])] * 3)
    assert (alike.points, alike.half) == (0, 0)


def test_sets_of_images_are_resampled_apart_and_constants_only_shift():
    train, test = np.array([100.0, 0, 0, 0]), np.array([0.0, 100])
    found = effect([combine([(1, Sample({"train": train})), (-1, Sample({"test": test}))], constant=5)] * 3)
    assert found.points == pytest.approx(25 - 50 + 5)
    assert found.half == pytest.approx(4.302653 * math.sqrt(1875 / 4 + 2500 / 2))


def test_the_bootstrap_of_right_and_wrong_is_the_binomial_formula_and_what_resampling_gives():
    rng = np.random.default_rng(0)
    each = (rng.random(400) < 0.3) * 100.0
    p = each.mean() / 100
    assert image_variance(each) == pytest.approx(100**2 * p * (1 - p) / 400)
    resampled = each[rng.integers(0, 400, (4000, 400))].mean(1)
    assert image_variance(each) == pytest.approx(resampled.var(), rel=0.1)


def test_fewer_than_three_seeds_have_no_interval_and_decide_nothing():
    found = effect([flat(50), flat(60)])
    assert (found.points, found.half, str(found)) == (55, None, "+55.00")
    assert judge(found, "above", 1) == judge(None, "above", 1) == "undecided"


@pytest.mark.parametrize(
    ("expect", "points", "half", "verdict"),
    [
        ("above", 2, 1, "holds"),
        ("above", 2, 2, "undecided"),  # it must exceed its interval
        ("above", -2, 1, "fails"),
        ("above", 0, 0, "undecided"),
        ("below", -2, 1, "holds"),
        ("below", 2, 1, "fails"),
        ("below", -1, 1.5, "undecided"),
        ("within", 0.3, 0.6, "holds"),
        ("within", 0.3, 0.8, "undecided"),
        ("within", 2, 0.5, "fails"),
        ("within", -2, 0.5, "fails"),
        ("within", 2, 1.5, "undecided"),
        ("at_least", -0.4, 0.5, "holds"),
        ("at_least", 5, 1, "holds"),
        ("at_least", -0.9, 0.5, "undecided"),
        ("at_least", -2, 0.5, "fails"),
    ],
)
def test_what_follows_from_an_interval_with_a_margin_of_one_point(expect, points, half, verdict):
    assert judge(Effect(points, half, 3), expect, 1.0) == verdict


def test_the_rule_needs_no_torch():
    code = "import sys, supple.experiments.verdict, supple.experiments.results; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
