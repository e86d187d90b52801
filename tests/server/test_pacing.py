"""Estimates that follow the machine, and forget what nobody has confirmed."""

import pytest

from supple.inference.latency import LATEST, WIDEST
from supple.server.pacing import FADES_S, KEPT_S, Drift, Fading


def test_at_first_steps_take_what_was_measured():
    assert Drift().expected(123.0) == (1.0, 1.0)


def test_a_few_slow_steps_raise_what_is_expected_at_most_and_are_forgotten():
    drift = Drift()
    for k in range(97):
        drift.observe(1.0, k / 100)
    for _ in range(3):
        drift.observe(20.0, 1.0)
    mean, most = drift.expected(1.0)
    assert mean == pytest.approx((97 + 3 * WIDEST) / 100)
    assert most == WIDEST
    drift.observe(1.0, 1.0 + KEPT_S / 2)
    assert drift.expected(1.0 + KEPT_S / 2)[1] == WIDEST
    drift.observe(1.0, 1.001 + KEPT_S)
    assert drift.expected(1.001 + KEPT_S) == (1.0, 1.0)


def test_after_a_silence_it_is_as_it_usually_was():
    drift = Drift()
    for ratio in (2.0, 2.0, 2.0, 8.0, 8.0):
        drift.observe(ratio, 1.0)
    assert drift.expected(1.1 + KEPT_S) == (2.0, 2.0)
    drift.observe(1.0, 1.1 + KEPT_S)
    assert drift.expected(1.1 + KEPT_S) == (1.0, 1.0)


def test_so_many_steps_are_remembered_and_no_more():
    drift = Drift()
    drift.observe(5.0, 0.0)
    for _ in range(LATEST):
        drift.observe(1.0, 0.0)
    assert drift.expected(0.0) == (1.0, 1.0)


def test_an_average_follows_what_is_seen_and_fades_without_it():
    average = Fading(5.0)
    assert average.at(100.0) == 5.0
    average.observe(1005.0, 100.0)
    assert average.at(100.0 + FADES_S) == pytest.approx(105.0)
    assert average.at(100.0 + 2 * FADES_S) == pytest.approx(52.5)
    assert average.at(200.0) < 1e-6
    average.observe(10.0, 100.0 + 2 * FADES_S)
    assert average.at(100.0 + 2 * FADES_S) == pytest.approx(52.5 - 4.25)
