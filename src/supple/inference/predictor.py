"""Answers within a deadline, a budget or as soon as sure, from a run or an exported folder.

    p = supple.predictor("runs/x", engine="auto", threads=2)
    p.predict("cat.jpg", deadline_ms=8).label

A model with exits is anytime: stage by stage it goes on while the next stage is expected to end in time, and the last
finished exit answers. Any other model has its point chosen beforehand. Decoding is part of the deadline.

A policy of exits goes along the chain of stages. Any other is a cascade: its points run one after the other, each from
the start, for the samples that were not sure. Both are one walk along a list of stages.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from supple.errors import DataError, LateError, PointError
from supple.inference.costs import ChainCosts, answered_by, points_of
from supple.inference.engines import Array, Engine, Graphs, Stage, State, take
from supple.inference.inputs import count, taken, zeros
from supple.inference.latency import LatencyEstimator
from supple.inference.request import Piped, must_be_limits
from supple.inference.result import Prediction, predictions
from supple.inference.skipping import WORST, follow
from supple.inference.walk import Answers, Reached, walk
from supple.ladder import Ladder, Row
from supple.machine import machine
from supple.point import FULL, Point
from supple.policy.fitting import Target
from supple.policy.policy import Policy, stop_above
from supple.tasks import Task

WARM, MEASURED = 3, 20  # calls of every step before it is trusted
FEW = 5  # calls that decide which points a policy looks at
AROUND_MS = 0.1  # of a deadline is kept for what happens around the steps


class Predictor:
    """See the module's text. Safe for calls from several threads."""

    def __init__(
        self,
        engine: Engine,
        graphs: Graphs,
        *,
        task: Task,
        classes: tuple[str, ...],
        preprocess: Any,
        ladder: Ladder,
        shape: tuple[Any, ...],  # of one sample: its sides, or the shapes of its parts
        policy: Policy | None = None,  # when to stop, as `supple calibrate` has found
        check: Callable[[Point], Point] | None = None,  # the one spelling of a point, or why it cannot be run
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine, self.graphs, self.task, self.classes, self.ladder = engine, graphs, task, classes, ladder
        self.preprocess, self.policy, self.shape = preprocess, policy, shape
        self.points = tuple(map(Point.parse, graphs.points))
        self._check = check
        self.latency, self._clock, self._measured = LatencyEstimator(), clock, False
        self.stages = graphs.stages or graphs.from_start(graphs.points)  # what deadlines and confidences go along
        self.costs = ChainCosts(self.latency, self.stages)
        self._costs = {self.stages: self.costs}  # of every list of stages that was asked for
        self._policy_costs = self._costs_for(policy)
        self._answered = answered_by(self._policy_costs.stages, policy)
        self._rows = {row.point: row for row in reversed(ladder.rows)}  # the first of each point

    def _costs_for(self, policy: Policy | None) -> ChainCosts:
        """What is known of the time of a policy's stages: each list of stages has an estimator of its own."""
        stages = self.stages if policy is None else self.graphs.stages_for(policy.points)
        if stages not in self._costs:
            self._costs[stages] = ChainCosts(LatencyEstimator(), stages)
        return self._costs[stages]

    # --- asking -------------------------------------------------------------------------------------------------------

    def predict(
        self,
        given: Any,
        *,
        point: Point | str | None = None,
        deadline_ms: float | None = None,
        budget_macs: float | str | None = None,
        min_confidence: float | None = None,
        confident: bool = False,
        cancel: threading.Event | None = None,
        strict: bool = False,
    ) -> Prediction | list[Prediction]:
        """One answer for a file, a picture or one sample; a list of them for a batch, also of one.

        given: a path, the bytes of a file, a picture (Pillow's, or uint8 of shape (height, width, 3)), or inputs ready
        for the network, float32, of one sample or with the batch first (a tuple of them where the network takes
        several). `budget_macs` is a number of MACs, or a share of the full model's such as "0.7x". `confident` stops
        each sample when the calibrated policy says so, `min_confidence` when it is this sure; where a task lists what
        it finds, it lists what scores this much, beside any other limit. With `cancel`, an event that is set stops the
        run between stages: the latest finished exit answers. A deadline that nothing meets is answered by the cheapest
        point, marked late; `strict` raises LateError instead.
        """
        began = self._clock()
        if isinstance(budget_macs, str):
            budget_macs = self._share_of_full(budget_macs)
        must_be_limits(deadline_ms=deadline_ms, budget_macs=budget_macs, min_confidence=min_confidence)
        options: dict[str, float] = {}  # of the task
        if min_confidence is not None and self.task.min_score is not None:
            options, min_confidence = {"min_score": min_confidence}, None
        limits = (point, deadline_ms, budget_macs, min_confidence, confident or None)
        if sum(one is not None for one in limits) > 1:
            named = "point, deadline_ms, budget_macs, min_confidence, confident"
            raise PointError(f"more than one of {named} is given.", "Give one.")
        if cancel is not None and not isinstance(cancel, threading.Event):
            raise PointError(f"cancel is {cancel!r:.80}.", "Give a threading.Event, and set it to stop the run.")
        policy = self._policy(min_confidence, confident)
        asked = None if point is None else self._named(point)
        x, single = taken(given, self.shape, self.preprocess, self.engine.takes_missing)
        if deadline_ms is not None and not self._measured:
            self.warm()
        left = None if deadline_ms is None else deadline_ms - AROUND_MS - 1000 * (self._clock() - began)
        anytime = bool(self.graphs.stages) and (left is not None or cancel is not None)
        aux: dict[str, Any] = {}
        if policy is not None or (anytime and point is None and budget_macs is None):
            reached = self.walk(x, policy, left_ms=left, cancel=cancel, strict=strict)
        else:
            where, reason = self._choose(asked, left, budget_macs, count(x), strict)
            logits, aux = self._timed(self.latency, ("point", where, count(x)), self._run_point, where, x)
            if not np.isfinite(logits).all():
                raise DataError(f"{where} gave values that are not finite.", "Its weights or its input hold such ones.")
            reached = [Reached(where, row, reason) for row in logits]
        elapsed = 1000 * (self._clock() - began)
        answers = predictions(
            self.task,
            self.classes,
            reached,
            {} if policy is None else dict(zip(map(str, policy.points), policy.temperatures)),
            options,
            elapsed_ms=elapsed,
            in_time=None if deadline_ms is None else elapsed <= deadline_ms,
            within_budget=None if budget_macs is None else self._macs(reached[0].point) <= budget_macs,
            file=str(given) if isinstance(given, str | Path | Piped) else None,
            aux=aux,
        )
        return answers[0] if single else answers

    def predict_many(self, paths: Iterable[str | Path], *, budget_ms: float) -> list[Prediction | DataError]:
        """Answers for files that share one budget of time: each gets an equal part of what is left. A file that cannot
        be read has its error in its place."""
        must_be_limits(budget_ms=budget_ms)
        paths, began = [paths] if isinstance(paths, str | Path) else list(paths), self._clock()
        answers: list[Prediction | DataError] = []
        for done, path in enumerate(paths):
            left = budget_ms - 1000 * (self._clock() - began)
            try:
                answer = self.predict(path, deadline_ms=max(0.0, left / (len(paths) - done)))
                assert isinstance(answer, Prediction)
                answers.append(answer)
            except DataError as error:
                answers.append(error)
        return answers

    def walk(
        self,
        x: State,
        policy: Policy | None = None,
        *,
        left_ms: float | None = None,
        cancel: threading.Event | None = None,
        strict: bool = False,
    ) -> list[Reached]:
        """Inputs ready for the network, run stage by stage. Of the calibrated policy, only points that are expected to
        save time for a batch of this size are looked at; without any, its last point answers as one graph."""
        batch, costs = count(x), self._policy_costs if policy is self.policy else self._costs_for(policy)
        if batch == 0:
            return []
        if policy is not None and policy is self.policy and policy.calibrated and left_ms is None and cancel is None:
            policy = self.policy_for(batch) or policy
            last = str(policy.points[-1])
            if len(policy.points) == 1 and last in self.graphs.points:
                logits, _ = self._run_point(last, x)
                if np.isfinite(logits).all():
                    reason = "full" if last == str(FULL) else "budget"
                    return [Reached(last, row, reason) for row in logits]
                policy = self.policy
        return walk(
            costs.stages,
            partial(self._run_body, costs),
            partial(self._run_head, costs),
            x,
            left_ms=left_ms,
            expected_ms=lambda k: costs.until_answer_ms(k, batch),
            cancel=cancel,
            policy=policy,
            regroup=costs.pays,
            strict=strict,
            clock=self._clock,
        )

    def policy_for(self, batch: int = 1) -> Policy | None:
        """The calibrated policy, with those of its points that save time here for a batch of this size. Where only one
        is left, it answers as one graph.
        """
        if self.policy is None or self._answered is None or not self.policy.calibrated:
            return self.policy
        self.measure(batch)
        return self._policy_costs.reduced(self._answered, batch)

    def run_point(self, name: str, x: State) -> Array:
        """The logits of a point; where samples skip layers, those layers do not run."""
        return self._run_point(name, x)[0]

    def run_worst(self, name: str, x: State) -> Array:
        """The same where it takes longest, as no sample skips a layer: deadlines are kept by this."""
        skip = Point.parse(name).skip
        if not self.graphs.layers or skip is None:
            return self.run_point(name, x)
        return follow(self.engine, self.graphs.layers, x, WORST)

    def run_body(self, k: int, state: State) -> State:
        """The state behind stage k of the chain, to keep: for whoever walks it on their own."""
        body = self.graphs.stages[k].body
        assert body is not None
        after = self.engine.run(body, state)
        return after if self.engine.lasting else tuple(np.array(part) for part in after)

    def run_head(self, k: int, state: State) -> Array:
        """The logits of stage k of the chain, from the state that `run_body` gave there."""
        return self._head(self.graphs.stages[k], state)

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> "Predictor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- choosing -----------------------------------------------------------------------------------------------------

    def _policy(self, least: float | None, confident: bool) -> Policy | None:
        if not confident and least is None:
            return None
        if not self.task.confidence:
            cause = f"the task {self.task.name} has no confidence."
            raise PointError(cause, "Give a point, a deadline or a budget.")
        if least is not None:
            policy = stop_above(points_of(self.stages), least)
            if len(policy.points) < 2:
                raise PointError("this model has a single point, so it cannot stop early.", "Leave min_confidence out.")
            return policy
        if self.policy is None:
            raise PointError("no policy was calibrated.", "Make one: supple calibrate RUN; then export again.")
        return self.policy

    def _choose(
        self, asked: str | None, left: float | None, budget: float | None, batch: int, strict: bool
    ) -> tuple[str, str]:
        """The point that answers, and why it is that one."""
        names = list(self.graphs.points)
        if asked is not None:
            return asked, "asked"
        if left is None and budget is None:
            return (str(FULL), "full") if str(FULL) in names else (names[-1], "largest")
        if budget is not None and not all(self._macs(name) for name in names):
            raise PointError("the MACs of the points are unknown here.", "Give a point, or a deadline.")
        ladder = self.ladder_now(batch if left is not None else None)
        reason = "deadline" if left is not None else "budget"
        try:
            return str(ladder.best_under(ms=left, macs=budget)), reason
        except PointError:
            cost = {row.point: (row.p95_ms if left is not None else row.ceiling) or 0.0 for row in ladder}
            cheapest = min(cost, key=lambda name: cost[name])
            if strict and left is not None:
                need = f"{max(0.0, left):.2g} ms are left after decoding; {cheapest} takes {cost[cheapest]:.2g} ms."
                raise LateError(need, "Allow more time.") from None
            return cheapest, reason

    def _named(self, point: Point | str) -> str:
        """A point that is here, in its one spelling: the last exit is the full model."""
        wanted = point if isinstance(point, Point) else Point.parse(str(point))
        asked, names = str(wanted if self._check is None else self._check(wanted)), list(self.graphs.points)
        stages = self.graphs.stages  # one for every exit; those that were left out keep their place
        if stages and wanted == Point(exit=len(stages)):
            asked = str(stages[-1].point)
        if asked not in names:
            raise PointError(f"there is no point {asked} here: there are {', '.join(names)}.", "Use one of these.")
        return asked

    def ladder_now(self, batch: int | None = None) -> Ladder:
        """What is known of the points; with a batch, the time that each is expected to take as things are now."""
        rows = []
        for name in self.graphs.points:
            row = replace(self._rows.get(name, Row(name)), batch=1, threads=None, machine=machine())
            ms = None if batch is None else self.latency.expected_ms(("point", name), batch)
            rows.append(replace(row, p50_ms=ms, p95_ms=ms))
        return Ladder(rows)

    def _share_of_full(self, text: str) -> float:
        """The MACs that "0.7x" means."""
        if not text.endswith("x"):
            raise PointError(f"budget_macs is {text!r}.", 'Give a number of MACs, or a share of full: "0.7x".')
        share = Target.parse("budget_macs", text)
        full = self._macs(str(FULL))
        if not full:
            cause = f"{text} is a share of the full model, whose MACs are not known here."
            raise PointError(cause, "Give a number of MACs: 2e6.")
        return share.value * full

    def _macs(self, name: str) -> float:
        row = self._rows.get(name)
        return 0 if row is None else row.ceiling or 0

    # --- running ------------------------------------------------------------------------------------------------------

    def _run_point(self, name: str, x: State) -> tuple[Array, dict[str, Any]]:
        if self.graphs.layers:
            return follow(self.engine, self.graphs.layers, x, Point.parse(name).skip), {}
        logits, *aux = self.engine.run(self.graphs.points[name], x)
        return self.engine.array(logits), aux[0] if aux else {}

    def _run_body(self, costs: ChainCosts, k: int, state: State) -> State:
        body = costs.stages[k].body
        assert body is not None
        found: State = self._timed(costs.latency, ("body", k, count(state)), self.engine.run, body, state)
        return found

    def _run_head(self, costs: ChainCosts, k: int, state: State) -> Array:
        found: Array = self._timed(costs.latency, ("head", k, count(state)), self._head, costs.stages[k], state)
        return found

    def _head(self, stage: Stage, state: State) -> Array:
        assert stage.head is not None
        assert stage.point is not None
        if stage.head == self.graphs.points.get(stage.point):  # a point from the start
            return self._run_point(stage.point, state)[0]
        return self.engine.array(self.engine.run(stage.head, state)[0])

    # --- time ---------------------------------------------------------------------------------------------------------

    def _timed(self, latency: LatencyEstimator, step: object, call: Callable[..., Any], *given: Any) -> Any:
        took, found = self._clocked(call, *given)
        if self.graphs.layers and latency.knows(step):  # a sample that skips layers does not make the machine faster
            took = max(took, latency.usual_ms(step))
        latency.note(step, took)
        return found

    def _clocked(self, call: Callable[..., Any], *given: Any) -> tuple[float, Any]:
        """How many ms a call took, and what it gave."""
        start = self._clock()
        found = call(*given)
        return 1000 * (self._clock() - start), found

    def warm(self, batch: int = 1) -> None:
        """Opens every graph, and times what deadlines need for this size of a batch, so that no call has to."""
        x = zeros(self.shape, batch)
        if self.preprocess is not None:
            blank = self.preprocess.arrays(self.preprocess.blank_file())  # the first file pays for the decoder's set-up
            x = x if self.task.exportable else blank
        for name in self.graphs.points:
            calls = 1 if self.graphs.stages else WARM + MEASURED
            times = [self._clocked(self.run_worst, name, x)[0] for _ in range(calls)]
            if not self.graphs.stages:
                self.latency.learn(("point", name, batch), times[WARM:])
        if self.graphs.stages:
            self._learn_stages(self.costs, [x], WARM, MEASURED)
        if self._answered is not None:
            self.measure(batch)
        self._measured = self._measured or batch == 1

    def measure(self, batch: int) -> None:
        """Times what decides which points the policy looks at, for batches of this size and of its halves, unless a
        larger size was measured before."""
        costs = self._policy_costs
        self._learn_stages(costs, [zeros(self.shape, size) for size in costs.unmeasured(batch)], 1, FEW)

    def _learn_stages(self, costs: ChainCosts, batches: list[State], warm: int, rounds: int) -> None:
        """Times every step along some stages for batches of some sizes: in turn, as an engine may take longer where the
        size changes."""
        latency, policy = costs.latency, self._answered if costs is self._policy_costs else None
        spent: dict[int, dict[tuple[Any, ...], list[float]]] = {count(x): {} for x in batches}
        for _ in range(warm + rounds):
            for x in batches:
                for step, took in self._time_steps(costs, policy, x):
                    spent[count(x)].setdefault((*step, count(x)), []).append(took)
        for size, steps in spent.items():
            static = {step: steps.pop(step) for step in list(steps) if step[0] == "static"}
            for step in sorted(steps, key=lambda step: step[0] in ("body", "head")):  # last what deadlines are about
                latency.learn(step, steps[step][warm:])
            for step, times in static.items():  # one, or none
                # In proportion to a whole round: a busy machine interrupts long calls more often than short steps.
                usual, fastest = sum(map(latency.usual_ms, steps)), min(map(sum, zip(*steps.values())))
                latency.learn(step, [usual * min(times) / max(1e-6, fastest)])
            if policy is not None:
                costs.measured(size)

    def _time_steps(
        self, costs: ChainCosts, policy: Policy | None, x: State
    ) -> Iterator[tuple[tuple[str, int | str], float]]:
        """Runs stages: their steps, and how many ms each took. With a policy to choose points of, also what it takes to
        stop at them, and its last point as one graph."""
        size, state, stages = count(x), x, costs.stages
        stopping = policy and replace(stop_above(points_of(stages), 0.0), measure=policy.measure)
        for k, stage in enumerate(stages):
            if stage.body is not None:
                took, state = self._clocked(self._run_body, costs, k, state)
                yield ("body", k), took
            if stage.point is not None:
                took, logits = self._clocked(self._run_head, costs, k, state)
                yield ("head", k), took
                if stopping is not None:
                    noted = self._clocked(lambda *given: Answers(size, stages, stopping).note(*given), k, logits)
                    yield ("note", k), noted[0]
                    yield ("take", k), self._clocked(take, state, np.arange(size) % 2 == 0)[0]
        last = "" if policy is None else str(policy.points[-1])
        if last in self.graphs.points:
            self._run_point(last, x)  # the second call finds its weights in the cache, as it would without the chain
            yield ("static", last), self._clocked(self._run_point, last, x)[0]
