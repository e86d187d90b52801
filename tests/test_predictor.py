"""Answers within deadlines, with engines made by hand: what is started, what is not, and who answers."""

import threading
import time

import numpy as np
import pytest

from supple.errors import DataError, LateError, PointError
from supple.ladder import Ladder, Row
from supple.point import FULL, Point
from supple.runtime.answers import Rule
from supple.runtime.pace import Pace
from supple.runtime.predictor import Predictor
from supple.runtime.walk import walk

EXITS = (Point(exit=1), Point(exit=2), FULL)
X = np.zeros((1, 2), np.float32)


class Chain:
    """Three stages that take so many milliseconds and answer class 0, 1, 2; what ran is written down."""

    name, precision = "by hand", "fp32"

    def __init__(self, *ms: float) -> None:
        self.ms, self.ran, self.broken = list(ms), [], set()
        self.after = {}  # stage -> what happens when it ends

    def run_stage(self, k, state):
        self.ran.append(k)
        time.sleep(self.ms[k] / 1000)
        self.after.get(k, lambda: None)()
        logits = np.full((len(state[0]), 3), np.nan if k in self.broken else 0.0, np.float32)
        logits[:, k] = np.nan if k in self.broken else 5.0
        return state, logits

    def run_point(self, point, x):
        k = [str(p) for p in EXITS].index(point)
        self.ran.append(k)
        time.sleep(sum(self.ms[: k + 1]) / 1000)
        logits = np.zeros((len(x[0]), 3), np.float32)
        logits[:, k] = 5.0
        return logits

    def close(self):
        self.ran.append("closed")


def predictor(engine: Chain, chain: bool = True) -> Predictor:
    ladder = Ladder(
        [Row(str(p), macs=10 * (k + 1), metric="accuracy", score=0.5 + 0.1 * k) for k, p in enumerate(EXITS)]
    )
    stages = [str(p) for p in EXITS] if chain else []
    made = Predictor(
        engine, points=EXITS, stages=stages, classes=("a", "b", "c"), preprocess=None, ladder=ladder, shape=(2,)
    )
    made.warm()
    engine.ran.clear()
    return made


def ask(made: Predictor, **how):
    (answer,) = made.predict(X, **how)
    return answer


def test_without_a_limit_the_full_model_answers():
    made = predictor(Chain(1, 1, 1))
    answer = ask(made)
    assert (answer.label, answer.point, answer.reason, answer.late) == ("c", "full", "full", False)


def test_a_stage_that_would_end_too_late_is_not_started():
    engine = Chain(1, 1, 60)
    answer = ask(predictor(engine), deadline_ms=30)
    assert engine.ran == [0, 1]
    assert (answer.label, answer.point, answer.reason, answer.late) == ("b", "exit=2", "deadline", False)


def test_a_stage_that_is_slower_than_ever_leaves_no_time_for_the_next():
    engine = Chain(1, 5, 5)
    made = predictor(engine)
    engine.ms[0] = 40  # since the predictor was opened
    answer = ask(made, deadline_ms=45)
    assert engine.ran == [0]
    assert (answer.point, answer.reason, answer.late) == ("exit=1", "deadline", False)


def test_plenty_of_time_runs_to_the_end():
    engine = Chain(1, 1, 1)
    answer = ask(predictor(engine), deadline_ms=1000)
    assert engine.ran == [0, 1, 2]
    assert (answer.point, answer.reason) == ("full", "full")


def test_a_deadline_that_nothing_meets_is_answered_by_the_cheapest_and_marked():
    engine = Chain(20, 1, 1)
    made = predictor(engine)
    answer = ask(made, deadline_ms=2)
    assert (engine.ran, answer.point, answer.late) == ([0], "exit=1", True)
    with pytest.raises(LateError, match="the first exit takes"):
        ask(made, deadline_ms=2, strict=True)


def test_cancelling_between_stages_gives_the_latest_finished_exit():
    engine, cancel = Chain(1, 1, 1), threading.Event()
    made = predictor(engine)
    engine.after[1] = cancel.set
    answer = ask(made, cancel=cancel)
    assert engine.ran == [0, 1]
    assert (answer.label, answer.point, answer.reason) == ("b", "exit=2", "cancelled")


def test_it_stops_as_soon_as_it_is_sure():
    engine = Chain(1, 1, 1)
    made = predictor(engine)
    assert ask(made, min_confidence=0.9).point == "exit=1"
    assert ask(made, min_confidence=1.0).point == "full"


def test_the_last_finite_exit_answers():
    engine = Chain(1, 1, 1)
    made = predictor(engine)
    engine.broken = {2}
    answer = ask(made, deadline_ms=1000)
    assert (answer.point, answer.reason) == ("exit=2", "not finite")
    engine.broken = {0, 1, 2}
    with pytest.raises(DataError, match="no exit gave finite numbers"):
        ask(made, deadline_ms=1000)


def test_without_a_chain_the_point_is_chosen_beforehand():
    engine = Chain(1, 1, 60)
    answer = ask(predictor(engine, chain=False), deadline_ms=30)
    assert (engine.ran, answer.point, answer.reason) == ([1], "exit=2", "deadline")


def test_a_budget_is_kept_and_an_unknown_point_refused():
    made = predictor(Chain(0, 0, 0))
    assert ask(made, budget_macs=25).point == "exit=2"
    assert ask(made, budget_macs=1).point == "exit=1"
    assert ask(made, point="exit=2").reason == "asked"
    with pytest.raises(PointError, match="exit=7"):
        ask(made, point="exit=7")
    with pytest.raises(PointError, match="more than one"):
        ask(made, point="exit=1", deadline_ms=3)


def test_many_threads_get_their_own_answers():
    made, wrong = predictor(Chain(0, 0, 0)), []

    def work(point, label):
        for _ in range(200):
            if ask(made, point=point).label != label:
                wrong.append(point)

    threads = [threading.Thread(target=work, args=pair) for pair in (("exit=1", "a"), ("exit=2", "b"), ("full", "c"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_estimates_follow_the_machine():
    pace = Pace()
    pace.learn("step", [10.0] * 20)
    assert pace.ms("step") == 10
    for _ in range(100):
        pace.note("step", 20.0)
    assert pace.ms("step") == 20
    for _ in range(40):
        pace.note("step", 5.0)
    assert pace.ms("step") == 20  # a lucky moment is no promise
    for _ in range(100):
        pace.note("step", 5.0)
    assert pace.ms("step") == 5
    pace.note("step", 1e9)
    assert pace.ms("step") == 5  # one accident is no trend
    for _ in range(7):
        pace.note("step", 40.0)
    assert pace.ms("step") == 40


def test_a_step_that_was_measured_in_a_busy_moment_is_forgiven_though_it_never_runs():
    pace = Pace()
    pace.learn("first", [1.0] * 20)
    pace.learn("second", [2.0] * 16 + [200.0] * 4)
    assert pace.ms("second") > 10
    for _ in range(128):
        pace.note("first", 1.1)
    assert pace.ms("second") == pytest.approx(2.2)


# --- batches ----------------------------------------------------------------------------------------------------------


def stages_by_hand(sure_at: list[int]):
    """Three stages; sample i is sure of its class from stage sure_at[i] on. Which samples came is written down."""
    seen: list[list[int]] = []

    def run(k, state):
        numbers = [int(value) for value in state[0][:, 0]]
        seen.append(numbers)
        logits = np.array([[9.0 if k >= sure_at[i] else 0.1, 0.0] for i in numbers], np.float32)
        return state, logits

    return run, seen


def test_samples_of_a_batch_leave_when_they_are_sure():
    run, seen = stages_by_hand([0, 2, 1, 9])
    x = (np.arange(4, dtype=np.float32)[:, None],)
    names = [str(point) for point in EXITS]
    found = walk(names, run, x, rule=Rule.above(0.9, names))
    assert seen == [[0, 1, 2, 3], [1, 2, 3], [1, 3]]
    assert [(point, why) for point, _, why in found] == [
        ("exit=1", "confident"),
        ("full", "full"),
        ("exit=2", "confident"),
        ("full", "full"),
    ]


def test_a_calibrated_rule_looks_at_its_own_points_and_ends_at_its_last():
    policy = {"measure": "max_probability", "points": ["exit=1", "exit=2"], "thresholds": [0.9], "temperatures": [1, 2]}
    rule = Rule.from_json(policy)
    run, seen = stages_by_hand([0, 9])
    found = walk([str(point) for point in EXITS], run, (np.arange(2, dtype=np.float32)[:, None],), rule=rule)
    assert seen == [[0, 1], [1]]
    assert [(point, why) for point, _, why in found] == [("exit=1", "confident"), ("exit=2", "budget")]
    assert Rule.from_json({**policy, "thresholds": [None]}).sure("exit=1", np.array([[99.0, 0.0]])).tolist() == [False]


def test_a_point_that_is_asked_for_is_not_walked_past():
    engine = Chain(0, 0, 0)
    answer = ask(predictor(engine), point="exit=1", cancel=threading.Event())
    assert (answer.point, answer.reason, engine.ran) == ("exit=1", "asked", [0])


@pytest.mark.parametrize("limit", [float("nan"), -1.0, float("inf"), "5", True])
@pytest.mark.parametrize("name", ["deadline_ms", "budget_macs", "min_confidence"])
def test_a_limit_that_is_no_number_is_refused(name, limit):
    made = predictor(Chain(0, 0, 0))
    with pytest.raises(PointError, match=f"{name} is"):
        ask(made, **{name: limit})
    with pytest.raises(PointError, match="budget_ms is"):
        made.predict_many([], budget_ms=limit)


def test_a_confidence_is_at_most_one():
    with pytest.raises(PointError, match="min_confidence is 5"):
        ask(predictor(Chain(0, 0, 0)), min_confidence=5)


@pytest.mark.parametrize("given", [None, 5, [X], {}, (), ([[1.0]],), (X, X), X[:0], X[0], "x.png"])
def test_an_input_that_is_none_is_refused_by_name(given):
    with pytest.raises(DataError, match="the input is of type|inputs of shapes|nothing says how files"):
        predictor(Chain(0, 0, 0)).predict(given)


def test_a_budget_needs_known_costs():
    made = predictor(Chain(0, 0, 0))
    made._macs = {}
    with pytest.raises(PointError, match="not known here"):
        ask(made, budget_macs=1e12)


@pytest.mark.parametrize("chain", [True, False])
def test_a_batch_of_a_new_size_is_not_measured_within_its_deadline(chain):
    """It is expected to take as long as its samples one by one, until enough such calls have been seen."""
    engine = Chain(1, 1, 20)  # whatever the batch
    made = predictor(engine, chain)
    four = np.zeros((4, 2), np.float32)
    answers = made.predict(four, deadline_ms=60)
    assert len(engine.ran) == (2 if chain else 1)
    assert {answer.point for answer in answers} == {"exit=2"}  # 4 x 22 ms would be too long
    for _ in range(10):
        made.predict(four, deadline_ms=1000)
    assert {answer.point for answer in made.predict(four, deadline_ms=60)} == {"full"}
    with pytest.raises(LateError):
        made.predict(np.zeros((64, 2), np.float32), deadline_ms=10, strict=True)


def test_a_chain_that_ends_before_the_full_model_does_not_say_so():
    logits = np.eye(3, dtype=np.float32)[:1]
    [(point, _, why)] = walk(["exit=1", "exit=2"], lambda k, state: (state, logits), (X,), left_ms=1e6)
    assert (point, why) == ("exit=2", "largest")


def test_many_files_share_a_budget(monkeypatch):
    engine = Chain(1, 1, 60)
    made = predictor(engine)
    monkeypatch.setattr("supple.runtime.predictor.taken", lambda given, *_: ((X,), True))
    answers = made.predict_many(["a", "b", "c"], budget_ms=10_000)
    assert [answer.point for answer in answers] == ["full"] * 3
    assert {answer.point for answer in made.predict_many(["a", "b", "c"], budget_ms=55)} == {"exit=2"}


def test_a_file_that_cannot_be_read_has_its_error_in_its_place(monkeypatch):
    def read(given, *_):
        if given == "b":
            raise DataError("b is broken.", "Mend it.")
        return (X,), True

    monkeypatch.setattr("supple.runtime.predictor.taken", read)
    first, broken, last = predictor(Chain(0, 0, 0)).predict_many(["a", "b", "c"], budget_ms=10_000)
    assert (first.point, last.point) == ("full", "full")
    assert isinstance(broken, DataError)
    assert broken.cause == "b is broken."


def test_values_that_are_no_numbers_are_refused_before_an_engine_answers_them():
    batch = np.zeros((3, 2), np.float32)
    batch[1, 0] = np.nan
    engine = Chain(0, 0, 0)
    made = predictor(engine)
    engine.ran.clear()
    with pytest.raises(DataError, match="sample 1 of the batch holds"):
        made.predict(batch)
    assert engine.ran == []


def test_what_cancels_is_an_event():
    with pytest.raises(PointError, match="cancel is True"):
        ask(predictor(Chain(0, 0, 0)), cancel=True)


def test_the_largest_exit_there_is_answers_what_no_exit_is_sure_of():
    logits = np.eye(3, dtype=np.float32)[:1]
    names = ["exit=1", "exit=2"]
    [(point, _, why)] = walk(names, lambda k, state: (state, logits), (X,), rule=Rule.above(0.99, names))
    assert (point, why) == ("exit=2", "largest")
