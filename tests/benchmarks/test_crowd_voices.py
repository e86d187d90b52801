"""Constructed sound: a voice for about every second head, at its own moment; pictures that are hard to see."""

import numpy as np
import pytest
from PIL import Image

from crowd_voices import LEVEL, RATE, choir, degraded


def test_voices_are_added_up() -> None:
    tone = np.ones(RATE // 4, np.float32)
    rng = np.random.default_rng(0)
    assert not choir(0, [tone], rng).any()
    one = choir(1, [tone], rng)
    assert len(one) == RATE
    assert LEVEL / 2 <= one.max() <= LEVEL
    assert RATE // 8 <= np.count_nonzero(one) <= RATE // 4  # half of it, at least, lies in the second
    energies = [np.mean([np.square(choir(count, [tone], rng)).sum() for _ in range(50)]) for count in (2, 8)]
    assert energies[1] > 3 * energies[0]


def test_pictures_are_small_dark_and_noisy() -> None:
    seen = np.asarray(degraded(Image.new("L", (400, 300), 200), np.random.default_rng(0)), float)
    assert seen.shape == (160, 256, 3)
    assert seen.mean() == pytest.approx(0.25 * 200, abs=1)
    assert seen.std() == pytest.approx(12, abs=1)
