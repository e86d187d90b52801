"""Inputs in shared memory: who may use a slot, and that what is written is what another process reads."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from supple.errors import SuppleError
from supple.server.slots import Slots


@pytest.fixture
def slots():
    made = Slots(3, {"picture": (3, 5, 7), "both": ((2, 2), (9,))})
    yield made
    made.close()


def test_a_slot_is_given_to_one_at_a_time(slots):
    taken = [slots.take() for _ in range(3)]
    assert sorted(taken) == [0, 1, 2]
    assert (slots.take(), slots.free) == (None, 0)
    slots.give_back(taken[1])
    assert slots.take() == taken[1]


def test_a_slot_is_not_given_back_twice(slots):
    slot = slots.take()
    slots.give_back(slot)
    with pytest.raises(AssertionError, match="twice"):
        slots.give_back(slot)


def test_neighbours_do_not_touch_each_other(slots):
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(3, 5, 7)).astype(np.float32) for _ in range(3)]
    for slot, one in enumerate(inputs):
        slots.write(slot, (one,))
    for slot, one in enumerate(inputs):
        (found,) = slots.read(slot, (3, 5, 7))
        np.testing.assert_array_equal(found, one)


def test_a_missing_part_stays_missing(slots):
    sound = np.arange(9, dtype=np.float32)
    slots.write(1, (None, sound))
    picture, found = slots.read(1, ((2, 2), (9,)))
    assert picture is None
    np.testing.assert_array_equal(found, sound)
    slots.write(1, (np.ones((2, 2), np.float32), sound))
    assert slots.read(1, ((2, 2), (9,)))[0].sum() == 4


def test_what_is_too_large_writes_nothing_beyond_its_slot(slots):
    slots.write(1, (np.full((3, 5, 7), 5, np.float32),))
    with pytest.raises(ValueError, match="fits no slot"):
        slots.write(0, (np.zeros((4, 5, 7), np.float32),))
    assert slots.read(1, (3, 5, 7))[0].min() == 5
    assert slots.fits((3, 5, 7))
    assert not slots.fits((4, 5, 7))


def test_another_process_reads_and_writes_the_same_memory(slots):
    slots.write(2, (np.full((3, 5, 7), 2, np.float32),))
    program = (
        "import pickle, sys, numpy as np\n"
        "slots = pickle.loads(sys.stdin.buffer.read())\n"
        "(x,) = slots.read(2, (3, 5, 7))\n"
        "slots.write(0, (x + 1,))\n"
    )
    subprocess.run([sys.executable, "-c", program], input=pickle.dumps(slots), check=True)
    assert slots.read(0, (3, 5, 7))[0].tolist() == np.full((3, 5, 7), 3).tolist()


def test_no_slots_are_refused():
    with pytest.raises(SuppleError, match="0 slots"):
        Slots(0, {"a": (1,)})
