"""What a request may ask for, and that a refusal survives the way between processes."""

import pickle

import pytest

from supple.server.requests import MOST_K, Options, Refusal


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deadline_ms": 0},
        {"deadline_ms": 8.5, "point": "exit=2", "top_k": MOST_K},
        {"deadline_ms": 8, "budget_macs": "0.5x"},
        {"budget_macs": 2e6},
        {"min_confidence": 1.0},
        {"policy": True, "deadline_ms": 20},
    ],
)
def test_a_deadline_goes_with_one_other_limit(options):
    assert Options(**options).deadline_ms == options.get("deadline_ms")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"point": "full", "policy": True}, "point and policy"),
        ({"budget_macs": 2e6, "min_confidence": 0.5}, "budget_macs and min_confidence"),
        ({"deadline_ms": -1}, "deadline_ms is -1"),
        ({"deadline_ms": float("nan")}, "deadline_ms"),
        ({"deadline_ms": float("inf")}, "deadline_ms"),
        ({"deadline_ms": True}, "deadline_ms"),
        ({"deadline_ms": "8"}, "deadline_ms"),
        ({"min_confidence": 1.5}, "min_confidence"),
        ({"budget_macs": 0.5}, "0.5x"),
        ({"budget_macs": [1]}, "budget_macs"),
        ({"point": 3}, "point is 3"),
        ({"policy": "yes"}, "policy"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": MOST_K + 1}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"top_k": 2.0}, "top_k"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_name_of_the_option(options, word):
    with pytest.raises(Refusal, match=word) as found:
        Options(**options)
    assert (found.value.status, found.value.code) == (422, "invalid_options")


def test_a_refusal_comes_whole_from_another_process():
    given = Refusal(503, "overloaded", "No point can answer in time.", 1.5)
    found = pickle.loads(pickle.dumps(given))
    assert (found.status, found.code, found.message, found.retry_after_s) == (503, "overloaded", given.message, 1.5)
    assert str(found) == "No point can answer in time."
