"""Who is let in, what runs next and how deep: by hand, and for any queue."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulated import chain, widths
from supple.server.schedule import (
    Pace,
    Sample,
    Track,
    admits,
    best_plan,
    deepest,
    ends_in_time,
    next_chunk,
    own_target,
    planned,
    retry_after_s,
    work_at,
)

EXACT = Pace()
THREE = Track("m", ("exit=1", "exit=2", "full"), ((10.0, 10.0, 10.0), (15.0, 15.0, 15.0)), chain=True)
IDLE = {0: 0.0}


def sample(number: int, deadline_ms: float, track: Track = THREE, **state) -> Sample:
    choices = state.pop("choices", tuple(k for k, point in enumerate(track.points) if point))
    made = Sample(number, track, deadline_ms / 1000, choices)
    for name, value in state.items():
        setattr(made, name, value)
    return made


# --- costs ------------------------------------------------------------------------------------------------------------


def test_a_chain_adds_its_stages_up_and_a_choice_runs_one_point():
    assert (THREE.usual_ms(0, 2, 1), THREE.usual_ms(1, 2, 2), THREE.usual_ms(1, 1, 1)) == (30, 30, 10)
    assert widths(10, 20, 40).usual_ms(0, 1, 1) == 20


def test_a_larger_batch_never_takes_less():
    track = Track("m", ("full",), ((10.0,), (8.0,), (12.0,)), choice=True)
    assert [track.usual_ms(0, 0, size) for size in (1, 2, 3)] == [10, 10, 12]


def test_batches_that_save_nothing_are_not_made():
    assert chain(largest=8, gain=0.5).batches == (1, 2, 4, 8)
    assert chain(largest=8, gain=1.0).batches == (1,)


def test_deviations_of_many_steps_make_up_for_each_other():
    pace = Pace(1.5, 0.5, 2.0)
    assert pace.one(10) == 15 + 5 + 2
    assert pace.ms(40, 4 * 100, 4) == 60 + 0.5 * 20 + 8  # four steps of 10 ms


# --- plans by hand ----------------------------------------------------------------------------------------------------


def test_the_earliest_deadline_runs_first_and_a_chunk_shares_the_next_stage():
    queue = [sample(1, 50), sample(2, 200), sample(3, 210, place=1, answered=0, worker=0), sample(4, 220)]
    plan = planned(work_at(queue, None, 1.0), 2, IDLE, EXACT)
    assert [[one.id for one in chunk.samples] for chunk in plan.chunks] == [[1, 2], [3], [4]]
    assert plan.late is None
    assert next_chunk(plan, 0).samples == queue[:2]


def test_a_plan_names_the_first_deadline_that_it_does_not_keep():
    queue = [sample(1, 40), sample(2, 55), sample(3, 500)]
    assert planned(work_at(queue, None, 1.0), 1, IDLE, EXACT).late == 0.055
    assert planned(work_at(queue, None, 1.0), 2, IDLE, EXACT).late == 0.04  # 45 ms together


def test_the_size_of_batches_is_the_one_that_keeps_the_deadlines_with_the_least_waiting():
    together, alone = [sample(1, 45), sample(2, 45)], [sample(1, 31), sample(2, 61)]
    assert [len(c.samples) for c in best_plan(work_at(together, None, 1.0), IDLE, EXACT).chunks] == [2]
    assert [len(c.samples) for c in best_plan(work_at(alone, None, 1.0), IDLE, EXACT).chunks] == [1, 1]


def test_the_queue_grows_and_everybody_goes_less_deep():
    for count, expected in ((1, 2), (2, 2), (4, 2), (5, 1), (6, 1), (8, 0), (12, 0)):
        queue = [sample(k, 100) for k in range(count)]
        plan, goes = deepest(queue, IDLE, EXACT)
        assert plan.late is None
        assert set(goes.values()) == {expected}, count


def test_whoever_comes_behind_a_tight_deadline_goes_deeper():
    queue = [sample(1, 32), sample(2, 32), sample(3, 500)]
    plan, goes = deepest(queue, IDLE, EXACT)
    assert (plan.late, goes) == (None, {1: 1, 2: 1, 3: 2})


def test_one_that_has_little_time_alone_does_not_hold_the_others_back():
    _, goes = deepest([sample(1, 11), sample(2, 500)], IDLE, EXACT)
    assert goes == {1: 0, 2: 2}


def test_an_answer_in_hand_costs_nothing_more():
    queue = [sample(1, 12, place=1, answered=0, worker=0), sample(2, 12)]
    plan, goes = deepest(queue, IDLE, EXACT)
    assert (plan.late, goes) == (None, {1: 0, 2: 0})
    assert next_chunk(plan, 0).samples == queue[1:]


def test_a_point_that_is_asked_for_is_not_made_cheaper():
    full = (2,)
    assert not admits(sample(2, 50, choices=full), [sample(1, 40, choices=full)], IDLE, EXACT)
    assert admits(sample(2, 60, choices=full), [sample(1, 40, choices=full)], IDLE, EXACT)


def test_what_stands_on_a_worker_goes_on_there():
    queue = [sample(1, 100, place=1, answered=0, worker=1), sample(2, 110)]
    plan, _ = deepest(queue, {0: 0.0, 1: 0.0}, EXACT)
    assert next_chunk(plan, 0).samples == queue[1:]
    assert next_chunk(plan, 1).samples == queue[:1]


def test_an_input_that_is_not_there_yet_counts_but_does_not_run():
    queue = [sample(1, 30, ready=False), sample(2, 100)]
    assert not admits(sample(3, 15), [sample(1, 15, ready=False), sample(2, 16, ready=False)], IDLE, EXACT)
    plan, _ = deepest(queue, IDLE, EXACT)
    assert next_chunk(plan, 0).samples == queue[1:]


def test_nobody_is_let_in_while_no_worker_is_there():
    assert not admits(sample(1, 1e6), [], {}, EXACT)


def test_where_no_head_answers_between_the_next_one_counts():
    track = Track("m", ("exit=1", None, "full"), ((10.0, 10.0, 10.0),), chain=True)
    stranded = sample(1, 100, track, place=2, worker=0)  # cut behind the stage that answers nothing
    assert work_at([stranded], None, 0.0) == [(stranded, 2)]


def test_who_is_refused_hears_when_the_queue_will_be_done():
    queue = [sample(k, 1000) for k in range(5)]
    assert retry_after_s(queue, {0: 2.0}, Pace(2.0), 1.0) == pytest.approx(1.0 + 2 * 5 * 0.01)


# --- for any queue ----------------------------------------------------------------------------------------------------

tracks = st.builds(
    chain,
    stages=st.integers(1, 5),
    ms=st.floats(1, 20),
    largest=st.integers(1, 6),
    gain=st.floats(0.3, 1.0),
) | st.builds(lambda first, step: widths(first, first + step), st.floats(1, 20), st.floats(1, 20))
paces = st.builds(Pace, st.floats(0.5, 3), st.floats(0, 2), st.floats(0, 2))


@st.composite
def queues(draw, most: int = 12):
    track, found = draw(tracks), []
    for number in range(draw(st.integers(1, most))):
        last = len(track.points) - 1
        pinned = draw(st.booleans())
        choices = (draw(st.integers(0, last)),) if pinned else tuple(range(last + 1))
        one = sample(number, draw(st.floats(1, 400)), track, choices=choices)
        if track.chain and not pinned and draw(st.booleans()):
            one.place = draw(st.integers(0, last))
            one.answered, one.worker = one.place - 1, 0 if one.place else None
        found.append(one)
    return sorted(found, key=lambda one: (one.deadline, one.id))


@settings(deadline=None)
@given(queues(), paces)
def test_nothing_is_let_in_that_cannot_end_in_time_at_its_cheapest(queue, pace):
    *rest, new = queue
    new.place, new.answered, new.worker = 0, -1, None
    if admits(new, rest, IDLE, pace):
        assert ends_in_time(new, new.cheapest(), 0.0, pace)


@settings(deadline=None)
@given(queues(), paces)
def test_more_load_never_lets_anybody_go_deeper(queue, pace):
    *fewer, _ = queue
    if not fewer:
        return
    plan, goes = deepest(queue, IDLE, pace)
    less, before = deepest(fewer, IDLE, pace)
    assert less.late is None or plan.late is not None
    if plan.late is None:
        least = min(queue[: len(fewer)], key=lambda one: goes[one.id] / max(1, one.choices[-1]))
        assert before[least.id] >= goes[least.id]


@settings(deadline=None)
@given(queues(), paces)
def test_within_a_chunk_and_between_chunks_the_earliest_deadline_goes_first(queue, pace):
    plan, _ = deepest(queue, IDLE, pace)
    assert [chunk.deadline for chunk in plan.chunks] == sorted(chunk.deadline for chunk in plan.chunks)
    for chunk in plan.chunks:
        assert [one.deadline for one in chunk.samples] == sorted(one.deadline for one in chunk.samples)
        assert len({(one.track, one.worker) for one in chunk.samples}) == 1


@settings(deadline=None)
@given(queues(), paces)
def test_nobody_is_sent_further_than_it_may_or_can_alone(queue, pace):
    _, goes = deepest(queue, IDLE, pace)
    for one in queue:
        assert goes[one.id] <= max(own_target(one, 0.0, pace), one.cheapest())
        assert goes[one.id] in one.choices or goes[one.id] == one.answered


@settings(deadline=None)
@given(queues(), paces)
def test_a_plan_that_holds_still_holds_when_its_first_chunk_has_run(queue, pace):
    exact = Pace(pace.mean, 0.0, pace.overhead_ms)
    plan, _ = deepest(queue, IDLE, exact)
    chunk = next_chunk(plan, 0)
    if plan.late is not None or chunk is None:
        return
    took = exact.one(chunk.usual_ms()) / 1000
    left = [one for one in queue if one not in chunk.samples]
    assert all(one.deadline >= took - 1e-9 for one in chunk.samples)
    after = deepest(left, {0: took - 1e-9}, exact)[0] if left else plan
    assert after.late is None
    assert not math.isnan(after.waiting_ms)
