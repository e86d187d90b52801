"""Answers within deadlines, with engines made by hand: what is started, what is not, and who answers."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from supple.errors import DataError, LateError, PointError
from supple.inference.engines import Graphs, Layer, Stage
from supple.inference.latency import LatencyEstimator
from supple.inference.predictor import Predictor
from supple.inference.walk import walk
from supple.ladder import Ladder, Row
from supple.point import FULL, Point
from supple.policy.policy import Policy, stop_above
from supple.tasks import TASKS
from supple.tasks.task import Answer

EXITS = (Point(exit=1), Point(exit=2), FULL)
NAMES = [str(point) for point in EXITS]
X = np.zeros((1, 2), np.float32)


class Chain:
    """Three stages that take so many milliseconds (a head takes none) and answer class 0, 1, 2; what ran is written
    down. Time passes on a clock of its own."""

    name, precision, takes_missing = "by hand", "fp32", False

    def __init__(self, *ms: float) -> None:
        self.ms, self.ran, self.broken, self.now = list(ms), [], set(), 0.0
        self.after = {}  # stage -> what happens when it ends

    def clock(self) -> float:
        return self.now

    def run(self, graph, state):
        if graph in NAMES:
            k = NAMES.index(graph)
            self.ran.append(k)
            self.now += sum(self.ms[: k + 1]) / 1000
        else:
            kind, number = graph.split("-")
            k = int(number)
            if kind == "body" or k == 2:  # the last stage is one graph
                self.ran.append(k)
                self.now += self.ms[k] / 1000
            if kind == "body":
                return state
            self.after.get(k, lambda: None)()
        logits = np.full((len(state[0]), 3), np.nan if k in self.broken else 0.0, np.float32)
        logits[:, k] = np.nan if k in self.broken else 5.0
        return (logits,)

    def array(self, value):
        return value

    def close(self):
        self.ran.append("closed")


STAGES = (Stage("body-0", "head-0", "exit=1"), Stage("body-1", "head-1", "exit=2"), Stage(None, "head-2", "full"))


def predictor(engine: Chain, chain: bool = True, **settings) -> Predictor:
    ladder = Ladder([Row(p, macs=10 * (k + 1), metric="accuracy", score=0.5 + 0.1 * k) for k, p in enumerate(NAMES)])
    graphs = settings.pop("graphs", Graphs({name: name for name in NAMES}, STAGES if chain else ()))
    facts = {"classes": ("a", "b", "c"), "preprocess": None, "ladder": ladder, "shape": (2,), **settings}
    made = Predictor(engine, graphs, task=TASKS["classes"], clock=engine.clock, **facts)
    made.warm()
    getattr(engine, "ran", []).clear()
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


class Skipping:
    """Two layers of 10 ms, whose gates let through who is above 0; all else takes no time."""

    name, precision, takes_missing = "by hand", "fp32", False

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def run(self, role, state):
        if role == "stem":
            return state[0], np.zeros((len(state[0]), 0), np.float32)
        if role == "gate":
            return (np.concatenate([state[1], (state[0][:, :1] > 0).astype(np.float32)], 1),)
        self.now += 0.01 if role == "block" else 0.0
        return (np.zeros((len(state[0]), 3), np.float32) if role == "head" else state[0],)

    def array(self, value):
        return value

    def close(self): ...


def test_a_deadline_allows_for_a_sample_that_skips_no_layer():
    layers = tuple(Layer(role, role) for role in ("stem", "gate", "block", "gate", "block", "head"))
    made = predictor(Skipping(), graphs=Graphs({"skip=0.5": "skip=0.5", "full": "full"}, layers=layers))
    step = ("point", "skip=0.5")
    assert made.latency.expected_ms(step, 1) == pytest.approx(20)  # it was measured with zeros, which skip everything
    for _ in range(300):
        made.predict(X, point="skip=0.5")
    assert made.latency.expected_ms(step, 1) == pytest.approx(20)


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
    latency = LatencyEstimator()
    latency.learn("step", [10.0] * 20)
    assert latency.ms("step") == 10
    for _ in range(100):
        latency.note("step", 20.0)
    assert latency.ms("step") == 20
    for _ in range(40):
        latency.note("step", 5.0)
    assert latency.ms("step") == 20  # a lucky moment is no promise
    for _ in range(100):
        latency.note("step", 5.0)
    assert latency.ms("step") == 5
    latency.note("step", 1e9)
    assert latency.ms("step") == 5  # one accident is no trend
    for _ in range(7):
        latency.note("step", 40.0)
    assert latency.ms("step") == 40


def test_a_step_that_was_measured_in_a_busy_moment_is_forgiven_though_it_never_runs():
    latency = LatencyEstimator()
    latency.learn("first", [1.0] * 20)
    latency.learn("second", [2.0] * 16 + [200.0] * 4)
    assert latency.ms("second") > 10
    for _ in range(128):
        latency.note("first", 1.1)
    assert latency.ms("second") == pytest.approx(2.2)


# --- batches ----------------------------------------------------------------------------------------------------------


def stages_by_hand(sure_at: list[int]):
    """Three stages; sample i is sure of its class from stage sure_at[i] on. Which samples came is written down."""
    seen: list[list[int]] = []
    heads: list[int] = []

    def run_body(k, state):
        seen.append([int(value) for value in state[0][:, 0]])
        return state

    def run_head(k, state):
        heads.append(k)
        if k == 2:
            run_body(k, state)
        return np.array([[9.0 if k >= sure_at[int(i)] else 0.1, 0.0] for i in state[0][:, 0]], np.float32)

    return run_body, run_head, seen, heads


def numbered(count: int):
    return (np.arange(count, dtype=np.float32)[:, None],)


def test_samples_of_a_batch_leave_when_they_are_sure():
    run_body, run_head, seen, _ = stages_by_hand([0, 2, 1, 9])
    found = walk(STAGES, run_body, run_head, numbered(4), policy=stop_above(EXITS, 0.9))
    assert seen == [[0, 1, 2, 3], [1, 2, 3], [1, 3]]
    assert [(point, why) for point, _, why in found] == [
        ("exit=1", "confident"),
        ("full", "full"),
        ("exit=2", "confident"),
        ("full", "full"),
    ]


def test_where_gathering_does_not_pay_the_sure_run_along_and_keep_their_answers():
    run_body, run_head, seen, _ = stages_by_hand([0, 2, 1, 9])
    alone = walk(STAGES, *stages_by_hand([0, 2, 1, 9])[:2], numbered(4), policy=stop_above(EXITS, 0.9))
    asked = []
    found = walk(
        STAGES,
        run_body,
        run_head,
        numbered(4),
        policy=stop_above(EXITS, 0.9),
        regroup=lambda stages, going, count: asked.append((stages, going, count)),
    )
    assert seen == [[0, 1, 2, 3]] * 3
    assert asked == [(range(1, 2), 3, 4), (range(2, 3), 2, 4)]
    assert [(one.point, one.reason) for one in found] == [(one.point, one.reason) for one in alone]
    for one, other in zip(found, alone):
        np.testing.assert_array_equal(one.logits, other.logits)


def test_a_calibrated_policy_reads_its_own_points_and_ends_at_its_last():
    policy = Policy(EXITS[:2], (0.9,), (1.0, 2.0), shares=(0.5, 0.5))
    run_body, run_head, seen, heads = stages_by_hand([0, 9])
    found = walk(STAGES, run_body, run_head, numbered(2), policy=policy)
    assert (seen, heads) == ([[0, 1], [1]], [0, 1])
    assert [(point, why) for point, _, why in found] == [("exit=1", "confident"), ("exit=2", "budget")]
    run_body, run_head, seen, heads = stages_by_hand([0, 9])
    walk(STAGES, run_body, run_head, numbered(2), policy=Policy((EXITS[1], FULL), (0.9,), (1.0, 1.0)))
    assert heads == [1, 2]  # the head of exit 1 does not run
    asked = []
    policy = Policy((EXITS[0], FULL), (0.9,), (1.0, 1.0))
    regroup = lambda *given: asked.append(given)
    walk(STAGES, *stages_by_hand([0, 9])[:2], numbered(2), policy=policy, regroup=regroup)
    assert asked == [(range(1, 3), 1, 2)]  # whoever is gathered runs two stages until the next answer


def test_the_last_exit_is_the_full_model_also_where_the_chain_left_out_another_exit():
    graphs = Graphs({name: name for name in NAMES}, STAGES).leave_out(set(), {"exit=2"})
    made = predictor(Chain(0, 0, 0), graphs=graphs)
    assert [ask(made, point=f"exit={k}").point for k in (1, 2, 3)] == ["exit=1", "exit=2", "full"]


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


def test_what_a_task_lists_is_limited_beside_any_other_limit():
    def listing(logits, classes, min_score=0.5):
        return [Answer(f"from {min_score}", {}, {}) for _ in logits]

    made = predictor(Chain(0, 0, 0))
    made.task = replace(made.task, answer=listing, min_score=0.5, confidence=False)
    for limit in ({}, {"point": "exit=1"}, {"deadline_ms": 10}, {"budget_macs": 10}):
        assert ask(made, min_confidence=0.3, **limit).label == "from 0.3"
    with pytest.raises(PointError, match="more than one of"):
        ask(made, min_confidence=0.3, point="exit=1", deadline_ms=10)


def test_one_sample_gets_one_answer_and_a_batch_of_one_a_list():
    made = predictor(Chain(0, 0, 0))
    assert made.predict(X[0]).point == "full"
    assert [answer.point for answer in made.predict(X)] == ["full"]


def test_a_confidence_is_at_most_one():
    with pytest.raises(PointError, match="min_confidence is 5"):
        ask(predictor(Chain(0, 0, 0)), min_confidence=5)


@pytest.mark.parametrize("given", [None, 5, [X], {}, (), ([[1.0]],), (X, X), X[:0], X[0, 0], "x.png"])
def test_an_input_that_is_none_is_refused_by_name(given):
    with pytest.raises(DataError, match="the input is of type|inputs of shapes|no preprocessing for files"):
        predictor(Chain(0, 0, 0)).predict(given)


def test_a_budget_needs_known_costs():
    made = predictor(Chain(0, 0, 0))
    made._rows = {}
    with pytest.raises(PointError, match="unknown here"):
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
    [(point, _, why)] = walk(STAGES[:2], lambda k, state: state, lambda k, state: logits, (X,), left_ms=1e6)
    assert (point, why) == ("exit=2", "largest")


def test_many_files_share_a_budget(monkeypatch):
    engine = Chain(1, 1, 60)
    made = predictor(engine)
    monkeypatch.setattr("supple.inference.predictor.taken", lambda given, *_: ((X,), True))
    answers = made.predict_many(["a", "b", "c"], budget_ms=10_000)
    assert [answer.point for answer in answers] == ["full"] * 3
    assert {answer.point for answer in made.predict_many(["a", "b", "c"], budget_ms=55)} == {"exit=2"}


def test_a_file_that_cannot_be_read_has_its_error_in_its_place(monkeypatch):
    def read(given, *_):
        if given == "b":
            raise DataError("b is broken.", "Mend it.")
        return (X,), True

    monkeypatch.setattr("supple.inference.predictor.taken", read)
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
    policy = stop_above(EXITS[:2], 0.99)
    [(point, _, why)] = walk(STAGES[:2], lambda k, state: state, lambda k, state: logits, (X,), policy=policy)
    assert (point, why) == ("exit=2", "largest")


# --- one rule for every path ------------------------------------------------------------------------------------------


def test_at_equal_scores_the_cheaper_point_is_chosen():
    rows = [Row(name, macs=10 * (k + 1), metric="accuracy", score=0.7) for k, name in enumerate(NAMES)]
    made = predictor(Chain(1, 1, 1), chain=False, ladder=Ladder(rows))
    assert ask(made, deadline_ms=1000).point == "exit=1"
    assert ask(made, budget_macs=1000).point == "exit=1"
    assert str(Ladder(rows).best_under(macs=1000)) == "exit=1"


def test_where_lower_is_better_a_point_that_was_scored_goes_before_one_that_was_not():
    facts = {"metric": "mae", "higher_is_better": False}
    rows = [
        Row("exit=1", macs=10, score=9.0, **facts),
        Row("exit=2", macs=20, score=8.0, **facts),
        Row("full", macs=30),
    ]
    made = predictor(Chain(1, 1, 1), chain=False, ladder=Ladder(rows))
    assert ask(made, budget_macs=1000).point == "exit=2"


def test_without_a_chain_points_are_run_one_after_the_other_until_one_is_sure():
    engine = Chain(1, 1, 1)
    made = predictor(engine, chain=False)
    answer = ask(made, min_confidence=0.9)
    assert (engine.ran, answer.point, answer.reason) == ([0], "exit=1", "confident")
    engine.ran.clear()
    answer = ask(made, min_confidence=1.0)
    assert (engine.ran, answer.point, answer.reason) == ([0, 1, 2], "full", "full")


# --- a calibrated policy ----------------------------------------------------------------------------------------------

POLICY = Policy(EXITS, (0.9, 0.9), (1.0, 1.0, 1.0), shares=(0.8, 0.1, 0.1))


def test_the_first_confident_answer_measures_nothing_once_the_predictor_is_warm():
    engine = Chain(1, 1, 1)
    answer = ask(predictor(engine, policy=POLICY), confident=True)
    assert (engine.ran, answer.point, answer.reason) == ([0], "exit=1", "confident")


def test_a_batch_is_measured_once_and_smaller_ones_never():
    engine = Chain(1, 1, 1)
    made = predictor(engine, policy=POLICY)
    made.predict(np.zeros((6, 2), np.float32), confident=True)
    assert len(engine.ran) > 20
    for batch in (6, 5, 2, 1):
        engine.ran.clear()
        answers = made.predict(np.zeros((batch, 2), np.float32), confident=True)
        assert (engine.ran, [answer.point for answer in answers]) == ([0], ["exit=1"] * batch)
    engine.ran.clear()
    made.predict(np.zeros((7, 2), np.float32), confident=True)
    assert len(engine.ran) > 20


def test_where_a_policy_saves_nothing_its_last_point_answers_as_one_graph():
    engine = Chain(10, 1, 1)  # all but two of twelve ms are spent before the first exit
    made = predictor(engine, policy=Policy(EXITS[:2], (0.9,), (1.0, 1.0), shares=(0.5, 0.5)))
    answer = ask(made, confident=True)
    assert (engine.ran, answer.point, answer.reason) == ([1], "exit=2", "budget")
    engine.broken = {1}
    answer = ask(made, confident=True)  # the exits of the chain are asked after all
    assert (answer.point, answer.reason) == ("exit=1", "confident")


def test_a_busy_machine_does_not_make_the_static_graph_look_slower_than_the_chain():
    """After 10 ms of work another program has its turn: each time in the static graph, now and then in a stage."""

    class Busy(Chain):
        def run(self, graph, state):
            began = self.now
            found = super().run(graph, state)
            self.work = getattr(self, "work", 0.0) + self.now - began
            self.now += 0.1 * (self.work // 0.01)
            self.work %= 0.01
            return found

    # The static graph takes 12 ms; the chain, on average, 4 + 0.98 x 4 + 0.96 x 4 = 11.76, too little less.
    policy = Policy(EXITS, (0.9, 0.9), (1.0, 1.0, 1.0), shares=(0.02, 0.02, 0.96))
    assert ask(predictor(Busy(4, 4, 4), policy=policy), confident=True).point == "full"
    assert ask(predictor(Busy(4, 4, 4), policy=POLICY), confident=True).point == "exit=1"


def test_a_policy_of_one_point_is_a_static_graph_that_nothing_is_measured_for():
    engine = Chain(1, 1, 1)
    made = predictor(engine, policy=Policy((FULL,), (), (1.0,), shares=(1.0,)))
    answer = ask(made, confident=True)
    assert (engine.ran, answer.point, answer.reason) == ([2], "full", "full")


def test_a_least_confidence_looks_at_exits_that_the_policy_does_not():
    made = predictor(Chain(1, 1, 1), policy=Policy((EXITS[0], FULL), (0.9,), (1.0, 1.0), shares=(0.5, 0.5)))
    made.measure(2)
    run = made.engine.run
    unsure = np.array([[1.0], [0.0]], np.float32)  # of the second sample, the first exit is not sure
    made.engine.run = lambda graph, state: (run(graph, state)[0] * unsure,) if graph == "head-0" else run(graph, state)
    answers = made.predict(np.zeros((2, 2), np.float32), min_confidence=0.9)
    assert [answer.point for answer in answers] == ["exit=1", "exit=2"]


def test_without_a_static_graph_the_chain_answers():
    engine = Chain(10, 1, 1)
    made = predictor(engine, policy=POLICY, graphs=Graphs({"exit=1": "exit=1", "exit=2": "exit=2"}, STAGES))
    assert (ask(made, confident=True).point, engine.ran) == ("exit=1", [0])


def test_a_point_of_the_policy_that_the_chain_does_not_answer_is_passed():
    made = predictor(Chain(1, 1, 1), policy=Policy((Point(exit=9), *EXITS), (0.9,) * 3, (1.0,) * 4, shares=(0.25,) * 4))
    assert ask(made, confident=True).point == "exit=1"


# --- cascades beside a chain ------------------------------------------------------------------------------------------

NARROW = Point(width=0.5)
CASCADE = Policy((NARROW, FULL), (0.9,), (1.0, 1.0), shares=(0.8, 0.2))


class Both(Chain):
    """The chain, and a narrow network of so many ms, which is sure or not."""

    def __init__(self, narrow: float, *ms: float, sure: bool = True) -> None:
        super().__init__(*ms)
        self.narrow, self.sure = narrow, sure

    def run(self, graph, state):
        if graph != "narrow":
            return super().run(graph, state)
        self.ran.append("narrow")
        self.now += self.narrow / 1000
        return (np.array([[5.0 if self.sure else 0.1, 0.0, 0.0]] * len(state[0]), np.float32),)


def both(engine: Both, **settings) -> Predictor:
    graphs = Graphs({"width=0.5": "narrow", **{name: name for name in NAMES}}, STAGES)
    return predictor(engine, graphs=graphs, **settings)


def test_a_cascade_runs_a_small_point_and_the_large_one_from_the_start_for_those_not_sure():
    engine = Both(1, 5, 5, 5)
    made = both(engine, policy=CASCADE)
    answer = ask(made, confident=True)
    assert (engine.ran, answer.point, answer.reason) == (["narrow"], "width=0.5", "confident")
    engine.ran.clear()
    engine.sure, before = False, engine.now
    answer = ask(made, confident=True)
    assert (engine.ran, answer.point, answer.reason) == (["narrow", 2], "full", "full")  # the graph of full, alone
    assert 1000 * (engine.now - before) == pytest.approx(1 + 15)  # the sum


def test_deadlines_and_a_least_confidence_stay_on_the_chain_and_know_its_times():
    engine = Both(100, 1, 1, 60)  # the narrow one takes longer than the first exits, whose times must stay their own
    made = both(engine, policy=CASCADE)
    for _ in range(20):
        ask(made, confident=True)
    engine.ran.clear()
    answer = ask(made, deadline_ms=30)
    assert (engine.ran, answer.point) == ([0, 1], "exit=2")
    engine.ran.clear()
    assert ask(made, min_confidence=0.9).point == "exit=1"
    assert engine.ran == [0]


def test_where_a_cascade_saves_nothing_its_last_point_answers_as_one_graph():
    engine = Both(14, 5, 5, 5)  # expected: 14 + 0.2 x 15 = 17 ms; full alone takes 15
    answer = ask(both(engine, policy=CASCADE), confident=True)
    assert (engine.ran, answer.point, answer.reason) == ([2], "full", "full")


def test_exits_and_a_cascade_on_one_predictor_each_go_their_way():
    engine = Both(1, 5, 5, 5, sure=False)
    made = both(engine, policy=POLICY)
    assert [one.point for one in made.walk((X,), CASCADE)] == ["full"]
    assert engine.ran == ["narrow", 2]
    engine.ran.clear()
    assert ask(made, confident=True).point == "exit=1"
    assert engine.ran == [0]


def test_a_policy_of_exits_stays_on_the_chain_also_where_a_head_was_left_out():
    graphs = Graphs({"width=0.5": "narrow", **{name: name for name in NAMES}}, STAGES)
    less = graphs.leave_out(set(), {"exit=1"})  # alone, exit=1 still answers
    assert less.stages_for(EXITS) == less.stages
    assert graphs.stages_for(EXITS) == graphs.stages_for((Point(exit=9), *EXITS)) == STAGES
    assert [stage.head for stage in graphs.stages_for((NARROW, *EXITS))] == ["narrow", *NAMES]
    assert [stage.point for stage in Graphs(graphs.points).stages_for((EXITS[0], FULL))] == ["exit=1", "full"]
    assert graphs.leave_out({"width=0.5"}, set()).stages_for((NARROW, FULL)) == (Stage(None, "full", "full"),)
