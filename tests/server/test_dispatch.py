"""The queue as a whole, played through on a clock of its own: load, deaths, cancellations, answers that are none."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulated import Arrival, Simulation, capacity, chain, poisson, widths
from supple.inference.costs import points_of
from supple.policy.policy import stop_above
from supple.server.dispatch import AROUND_MS, TRIES_S, Dispatcher
from supple.server.hands import HUNG_S, free_at
from supple.server.jobs import Done, Forget, Job, Kill, Refused, Release, Run, Send, Shorten, Step
from supple.server.pacing import KEPT_S
from supple.server.requests import Refusal

MODEL = chain(stages=12, ms=3.4, gain=0.9)  # 41 ms
FULL_MS = MODEL.usual_ms(0, 11, 1)


def busy_machine(seed: int = 0, spread: float = 0.1):
    rng = np.random.default_rng(seed)
    return lambda now: float(rng.lognormal(0, spread))


def share(outcomes, what: str) -> float:
    return sum(getattr(one, what) for one in outcomes) / len(outcomes)


# --- load -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("track", [MODEL, widths(10, 20, 40)])
def test_at_twice_the_capacity_answers_become_cheaper_and_stay_in_time(track):
    full = track.usual_ms(0, len(track.points) - 1, 1)
    played = Simulation(poisson(track, 2 * capacity(track), 400, lambda rng: 10 * full), noise=busy_machine())
    outcomes = played.play()
    assert share(outcomes, "in_time") >= 0.95
    assert {one.reason for one in outcomes} <= {"full", "load", "overloaded"}
    half = next(k for k in range(len(track.points)) if 2 * track.usual_ms(0, k, 1) >= full)
    mean = np.mean([one.place for one in outcomes if one.answered])
    assert mean >= half - 1  # what half of the full model's time allows
    assert played.busy_s >= 0.95 * played.now


def test_samples_that_skip_layers_do_not_make_the_machine_look_faster():
    for skips, mean in ((True, 1.0), (False, 0.5)):
        track = replace(widths(20, 40), skips=skips)
        played = Simulation(poisson(track, 20, 200, lambda rng: 400), noise=lambda now: 0.5)
        played.play()
        assert played.queue.drift.expected(played.now)[0] == pytest.approx(mean)


def test_pinned_to_full_at_twice_the_capacity_half_is_refused_and_the_others_are_in_time():
    arrivals = poisson(MODEL, 2 * capacity(MODEL), 400, lambda rng: 10 * FULL_MS, choices=(11,))
    outcomes = Simulation(arrivals, noise=busy_machine()).play()
    answered = [one for one in outcomes if one.answered]
    assert share(outcomes, "in_time") >= 0.45
    assert share(answered, "in_time") >= 0.99
    assert {one.place for one in answered} == {11}


def test_below_capacity_mixed_deadlines_are_kept():
    arrivals = poisson(MODEL, 0.8 * capacity(MODEL), 400, lambda rng: FULL_MS * rng.uniform(2, 40))
    outcomes = Simulation(arrivals, noise=busy_machine()).play()
    assert share(outcomes, "in_time") >= 0.99


def test_a_neighbour_that_takes_half_of_the_machine_is_noticed_and_forgotten():
    noise = busy_machine()
    arrivals = poisson(MODEL, 0.5 * capacity(MODEL), 500, lambda rng: FULL_MS * rng.uniform(2, 40))
    end = arrivals[-1].at
    played = Simulation(arrivals, noise=lambda now: noise(now) * (2 if end / 3 < now < 2 * end / 3 else 1))
    outcomes = played.play()
    assert share(outcomes, "in_time") >= 0.95
    late = [one for one in outcomes if one.arrival.at > 2 * end / 3 + 2]
    assert {one.reason for one in late if one.arrival.deadline_ms > 5 * FULL_MS} == {"full"}


def test_after_a_burst_it_is_as_before():
    burst = [Arrival(1.0, 10 * FULL_MS, MODEL, tuple(range(12))) for _ in range(60)]
    after = [Arrival(3.5 + k / 10, 10 * FULL_MS, MODEL, tuple(range(12))) for k in range(20)]
    outcomes = Simulation([*burst, *after]).play()
    assert {one.reason for one in outcomes if one.arrival.at > 3} == {"full"}
    assert "load" in {one.reason for one in outcomes}
    assert share(outcomes, "in_time") == 1


def test_two_workers_carry_twice_as_much():
    arrivals = poisson(MODEL, 1.6 * capacity(MODEL), 300, lambda rng: 10 * FULL_MS)
    outcomes = Simulation(arrivals, workers=2, noise=busy_machine()).play()
    assert sum(one.reason == "full" for one in outcomes) >= 0.8 * len(outcomes)


arrivals_of_any_kind = st.lists(st.tuples(st.floats(0, 0.5), st.floats(1, 300), st.booleans()), min_size=1, max_size=25)


@settings(deadline=None)
@given(arrivals_of_any_kind, st.sampled_from([chain(4, 6.0), chain(3, 9.0, gain=0.5), widths(8, 25)]))
def test_whoever_is_let_in_is_answered_in_time_while_the_costs_are_right(given_, track):
    last = len(track.points) - 1
    arrivals = [
        Arrival(at, deadline, track, (last,) if pinned else tuple(range(last + 1))) for at, deadline, pinned in given_
    ]
    for one in Simulation(arrivals).play():
        assert one.in_time or one.reason == "overloaded", one


# --- by hand ----------------------------------------------------------------------------------------------------------


def job(number: int = 1, deadline_ms: float = 1000.0, track=MODEL, **state) -> Job:
    made = Job(number, track, deadline_ms / 1000, state.pop("choices", tuple(range(len(track.points)))))
    for name, value in state.items():
        setattr(made, name, value)
    return made


def dispatcher(*jobs: Job, workers: int = 1) -> Dispatcher:
    made = Dispatcher()
    for number in range(workers):
        made.hire(number, None)
    for one in jobs:
        made.admit(one, 0.0)
    made.step(0.0)
    return made


def effects(made: Dispatcher, kind):
    found = [effect for effect in made.effects if isinstance(effect, kind)]
    made.effects = [effect for effect in made.effects if not isinstance(effect, kind)]
    return found


def sent(made: Dispatcher, kind=Run):
    return [effect.what for effect in effects(made, Send) if isinstance(effect.what, kind)]


def logits(count: int = 1, value: float = 0.0) -> np.ndarray:
    return np.full((count, 3), value, np.float32)


def test_alone_all_stages_are_one_command_and_only_the_last_is_read():
    made = dispatcher(job())
    (run,) = sent(made)
    assert (run.place, run.target, run.reads, run.tells) == (0, 11, {11}, frozenset())


def test_where_time_is_short_every_exit_on_the_way_is_in_hand():
    made = dispatcher(job(deadline_ms=FULL_MS + 4, explicit=True))
    (run,) = sent(made)
    assert run.tells == frozenset(range(run.target))
    made.ran(0, run.id, [Step(0, 3.4, logits())], False, 0.004)
    made.step((FULL_MS + 4 - AROUND_MS) / 1000)  # the next stage hangs
    (done,) = effects(made, Done)
    assert (done.place, done.final) == (0, True)
    assert not made.queue


def test_somebody_with_less_time_cuts_what_runs():
    made = dispatcher(job(1, 2000))
    (run,) = sent(made)
    made.admit(job(2, 16), 0.001)
    made.step(0.001)
    (cut,) = sent(made, Shorten)
    assert (cut.id, cut.target) == (run.id, 0)
    made.ran(0, run.id, [Step(0, 3.4, logits())], True, 0.0034)
    made.step(0.0034)
    assert [one.id for one in sent(made)[0].jobs] == [2]


def test_an_answer_that_is_not_finite_is_never_given():
    made = dispatcher(job())
    (run,) = sent(made)
    made.ran(0, run.id, [Step(11, 41.0, logits(value=np.nan))], True, 0.05)
    made.step(0.05)
    (refused,) = effects(made, Refused)
    assert (refused.why.status, refused.why.code) == (503, "model_unhealthy")
    assert len(effects(made, Release)) == 1


def test_an_engine_that_fails_refuses_its_samples_and_goes_on():
    made = dispatcher(job(1))
    (run,) = sent(made)
    made.failed(0, run.id)
    assert effects(made, Refused)[0].why.code == "model_unhealthy"
    made.admit(job(2), 0.1)
    made.step(0.1)
    assert len(sent(made)) == 1


def test_a_sample_whose_worker_died_begins_again_and_is_given_up_the_second_time():
    one = job()
    made = dispatcher(one, workers=2)
    assert one.worker == 0
    sent(made)
    made.died(0)
    made.step(0.01)
    (again,) = sent(made)
    assert (again.jobs, again.place, one.worker) == ([one], 0, 1)
    made.died(1)
    assert effects(made, Refused)[0].why.code == "worker_lost"
    assert len(effects(made, Release)) == 1
    assert not made.queue


def test_a_dead_worker_that_is_being_replaced_is_waited_for():
    one = job()
    made = dispatcher(one)
    sent(made)
    made.died(0)
    made.hire(1, 0.5)
    made.admit(job(2, 3000), 0.01)
    made.step(0.01)
    assert not sent(made)
    made.up(1)
    made.step(0.4)
    assert len(sent(made)) == 1


def test_a_running_sample_that_nobody_wants_ends_its_run_and_keeps_its_input_until_then():
    one = job()
    made = dispatcher(one)
    (run,) = sent(made)
    made.drop([one])
    (cut,) = sent(made, Shorten)
    assert cut.target == 0
    assert not effects(made, Release)
    made.ran(0, run.id, [Step(0, 3.4, None)], True, 0.01)
    made.step(0.01)
    assert len(effects(made, Release)) == 1
    assert sent(made, Forget)[0].jobs == [1]
    assert not effects(made, Done)


def test_half_of_the_queue_goes_away_and_takes_its_compute_along():
    stays = [Arrival(0.0, 20_000, MODEL, tuple(range(12)), False) for _ in range(30)]
    goes = [Arrival(0.0, 20_000, MODEL, tuple(range(12)), False, patience_ms=5) for _ in range(30)]
    alone = Simulation(stays)
    alone.play()
    both = Simulation([one for pair in zip(stays, goes) for one in pair])
    both.play()
    assert both.busy_s <= 1.1 * alone.busy_s


def test_time_that_is_up_without_an_answer_is_late():
    one = job(deadline_ms=100, choices=(11,))
    made = dispatcher(one)
    sent(made)
    made.step(0.1)
    (refused,) = effects(made, Refused)
    assert (refused.why.status, refused.why.code) == (504, "late")
    assert not effects(made, Release)  # it still runs


def test_what_became_impossible_while_it_waited_is_refused_before_it_costs_anything():
    first, second = job(1, 60, choices=(11,)), job(2, 100, choices=(11,))
    made = dispatcher(first, second)
    (run,) = sent(made)
    made.ran(0, run.id, [Step(11, 80.0, logits())], True, 0.08)  # twice as long as usual
    made.step(0.08)
    assert not sent(made)
    assert [one.why.code for one in effects(made, Refused)][-1] == "overloaded"


def test_the_policy_decides_who_goes_on_and_in_the_front():
    policy = stop_above(points_of_chain(3), 0.9)
    track = chain(3, 5.0)
    jobs = [job(k, track=track, policy=policy) for k in (1, 2)]
    made = dispatcher(*jobs)
    (run,) = sent(made)
    assert run.target == 0
    sure = np.array([[9.0, 0, 0], [0.1, 0, 0]], np.float32)
    made.ran(0, run.id, [Step(0, 5.0, sure[: len(run.jobs)])], True, 0.006)
    made.step(0.006)
    (done,) = effects(made, Done)
    assert (done.job.id, done.reason) == (1, "confident")


def test_equal_policies_of_two_requests_stop_both_where_they_ran_together():
    track = chain(3, 5.0, gain=0.1)
    made = dispatcher(*(job(k, track=track, policy=stop_above(points_of_chain(3), 0.9)) for k in (1, 2)))
    (run,) = sent(made)
    assert len(run.jobs) == 2
    made.ran(0, run.id, [Step(0, 5.5, np.array([[9.0, 0, 0], [9.0, 0, 0]], np.float32))], True, 0.006)
    assert [(done.job.id, done.reason) for done in effects(made, Done)] == [(1, "confident"), (2, "confident")]


def points_of_chain(stages: int):
    from supple.inference.engines import Stage

    return points_of([Stage(None, "x", name) for name in chain(stages).points])


def test_a_streamed_sample_tells_every_exit_once():
    one = job(track=chain(3, 5.0), every=True)
    made = dispatcher(one)
    (run,) = sent(made)
    assert run.tells == {0, 1}
    made.ran(0, run.id, [Step(0, 5.0, logits())], False, 0.005)
    made.ran(0, run.id, [Step(1, 5.0, logits())], False, 0.010)
    made.ran(0, run.id, [Step(2, 5.0, logits())], True, 0.015)
    told = [(done.final, done.place) for done in effects(made, Done)]
    assert told == [(False, 0), (False, 1), (True, 2)]


def test_a_worker_that_hangs_is_killed():
    made = dispatcher(job(deadline_ms=1e6))
    sent(made)
    made.step(HUNG_S - 1)
    assert not effects(made, Kill)
    made.step(HUNG_S + 1)
    assert [kill.worker for kill in effects(made, Kill)] == [0]


def test_a_worker_that_hangs_is_found_when_nobody_waits_any_more():
    one = job(deadline_ms=100)
    made = dispatcher(one)
    sent(made)
    made.drop([one])
    made.step(0.1)
    assert not made.queue
    wakes = made.wake_at(0.1)
    assert HUNG_S <= wakes < 2 * HUNG_S
    made.step(wakes)
    assert [kill.worker for kill in effects(made, Kill)] == [0]
    assert made.wake_at(wakes) is None  # it is killed once: its end will be told
    made.step(wakes + 1)
    assert not effects(made, Kill)


def test_a_worker_that_is_overdue_is_not_expected_to_be_free_now():
    made = dispatcher(job(1, 100, choices=(11,)))
    made.step(3.0)
    assert free_at(made.hands, made.pace(3.0), 3.0)[0] == pytest.approx(3.0 + 3.0 - FULL_MS / 1000)
    assert refusal(made, job(2, 3000 + 1000), 3.0).code == "overloaded"


def test_whoever_was_aboard_when_a_worker_died_runs_alone_then():
    track = chain(3, 5.0, gain=0.1)
    jobs = [job(k, 10_000, track=track) for k in (1, 2, 3)]
    made = dispatcher(*jobs)
    (run,) = sent(made)
    assert run.jobs == jobs
    made.died(0)
    made.hire(1, None)
    ran, now = [], 0.1
    while made.queue and now < 2:
        made.step(now)
        (run,) = sent(made)
        ran.append([one.id for one in run.jobs])
        (worker,) = made.hands
        if run.jobs == [jobs[0]]:  # the poison
            made.died(worker)
            made.hire(worker + 1, None)
        else:
            made.ran(worker, run.id, [Step(2, 15.0, logits())], True, now + 0.015)
        now += 0.1
    assert ran == [[1], [2], [3]]
    assert [(one.job.id, one.why.code) for one in effects(made, Refused)] == [(1, "worker_lost")]
    assert [done.job.id for done in effects(made, Done) if done.final] == [2, 3]


def test_who_only_waited_for_a_worker_that_died_was_not_aboard():
    first, second = job(1, track=chain(3, 5.0), every=True), job(2, 5000, track=chain(3, 5.0))
    made = dispatcher(first, second)
    sent(made)
    second.worker = 0  # what it has come to lies there
    made.died(0)
    assert (first.deaths, second.deaths) == (1, 0)


def refusal(made: Dispatcher, one: Job, now: float, lead_ms: float = 0.0) -> Refusal:
    with pytest.raises(Refusal) as found:
        made.admit(one, now, lead_ms)
    return found.value


def test_every_refusal_says_when_to_come_again():
    never = refusal(Dispatcher(), job(deadline_ms=2), 0.0)
    assert (never.status, never.code) == (503, "overloaded")
    assert never.retry_after_s > 0
    later = refusal(dispatcher(job(1, 60, choices=(11,))), job(2, 60, choices=(11,)), 0.0)
    assert (later.status, later.code) == (503, "overloaded")
    assert later.retry_after_s > 0


def test_uniform_tight_deadlines_are_not_refused_for_good_after_a_few_slow_steps():
    """The machine is slow for the first half second, and all that anybody asks for is twice the cheapest point."""
    ask = [Arrival(at / 10, 9.0, MODEL, tuple(range(12))) for at in range(200)]
    outcomes = Simulation(ask, noise=lambda now: 10.0 if now < 0.5 else 1.0).play()
    assert not any(one.in_time for one in outcomes if one.arrival.at < 0.5)
    refused = [one for one in outcomes if not one.answered and one.arrival.at > 0.5]
    assert {one.reason for one in refused} == {"overloaded"}
    assert all(one.in_time for one in outcomes if one.arrival.at > 0.5 + KEPT_S + 1.5 * TRIES_S)
    tried = [one for one in outcomes if one.answered and 0.5 < one.arrival.at < 0.5 + KEPT_S]
    assert len(tried) >= KEPT_S / TRIES_S - 2  # that is how it learns


def test_a_machine_that_was_measured_while_it_was_slow_is_found_out_by_trying():
    ask = [Arrival(at / 10, 4.5, MODEL, tuple(range(12))) for at in range(50)]  # 3.4 ms and 2 around them
    outcomes = Simulation(ask, noise=lambda now: 0.5).play()
    assert not outcomes[0].answered
    assert all(one.in_time for one in outcomes if one.arrival.at > 1.5 * TRIES_S)


def test_nobody_is_let_in_to_try_while_others_are_there():
    made = dispatcher(job(1, 10_000, choices=(11,)))
    refusal(made, job(2, 5), 0.0)
    assert refusal(made, job(3, 5000 + 5), 5.0).retry_after_s > 0
    made.ran(0, sent(made)[0].id, [Step(11, 41.0, logits())], True, 5.1)
    refusal(made, job(4, 5100 + 5), 5.1)  # the estimate is fresh
    made.admit(job(5, 6200 + 5), 6.2)
    made.step(6.2)
    (run,) = sent(made)
    assert (run.jobs[0].id, run.target) == (5, 0)
