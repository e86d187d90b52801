"""Guesses at points that were not measured, where the truth is known."""

import random

import numpy as np
import pytest

from subsets import Subsets
from supple.point import FULL, Point
from supple.searching.guess import features, guess_macs, guess_ms, guess_scores
from supple.searching.search import draw

MODEL = Subsets(8, 2)
POINTS = list(dict.fromkeys((FULL, *draw(MODEL, 200, "a"))))
KNOWN = [FULL, *random.Random(0).sample(POINTS[1:], 60)]


def worth(point: Point) -> float:
    return sum(MODEL.layers_run(point)) / 36 + 0.1 * point.tokens


def macs(point: Point) -> float:
    return len(MODEL.layers_run(point)) * 1e6 * (1 - 0.2 * point.tokens)


def test_what_is_known_stays_as_it_is():
    found = guess_scores(MODEL, POINTS, {point: worth(point) for point in KNOWN})
    assert [found[POINTS.index(point)] for point in KNOWN] == [worth(point) for point in KNOWN]
    assert (guess_scores(MODEL, KNOWN, dict.fromkeys(KNOWN, 0.5)) == 0.5).all()


def test_layers_that_each_add_to_the_score_are_told_apart():
    found = guess_scores(MODEL, POINTS, {point: worth(point) for point in KNOWN})
    assert found == pytest.approx([worth(point) for point in POINTS], abs=0.02)


def test_macs_multiply_and_times_follow_them_from_few_that_are_known():
    truth = np.array([macs(point) for point in POINTS])
    assert guess_macs(MODEL, POINTS, {point: macs(point) for point in KNOWN}) == pytest.approx(truth, rel=0.02)
    ms = 0.3 + 2e-6 * truth
    few = {point: 0.3 + 2e-6 * macs(point) for point in KNOWN[:12]}
    assert guess_ms(MODEL, POINTS, few, {point: macs(point) for point in KNOWN}) == pytest.approx(ms, rel=0.1)


def test_the_full_model_stands_behind_the_last_of_an_axis():
    exits = Subsets(4, 0)
    exits.named = ("exit",)
    table = features(exits, [Point(exit=1), Point(exit=2), FULL])
    assert table[0].tolist() == [1, 2, 3]
