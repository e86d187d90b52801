"""Answers within a deadline, a budget or as soon as sure, from a run or an exported folder.

    p = supple.predictor("runs/x", engine="auto", threads=2)
    p.predict("cat.jpg", deadline_ms=8).label

A model with exits is anytime: stage by stage it goes on while the next stage is expected to end in time, and the last
finished exit answers. Any other model has its point chosen beforehand. Decoding is part of the deadline.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from supple.errors import DataError, LateError, PointError
from supple.ladder import Ladder
from supple.point import FULL, Point
from supple.runtime.answers import Prediction, Rule, predictions
from supple.runtime.engine import Array, Engine, State
from supple.runtime.inputs import taken, zeros
from supple.runtime.pace import Pace
from supple.runtime.skipping import follow
from supple.runtime.walk import walk
from supple.tasks import get_task

WARM, MEASURED = 3, 20  # calls of every step before it is trusted
AROUND_MS = 0.1  # of a deadline is kept for what happens around the steps


class Predictor:
    """See the module's text. Safe for calls from several threads."""

    def __init__(
        self,
        engine: Engine,
        *,
        points: Sequence[Point],
        stages: Sequence[str | None] = (),  # which point each stage of the chain answers; empty: no chain
        roles: Sequence[str] = (),  # of the graphs of a model whose samples skip layers; see skipping.py
        classes: tuple[str, ...],
        preprocess: Any,
        ladder: Ladder,
        shape: tuple[Any, ...],  # of one sample: its sides, or the shapes of its parts
        task: str = "classes",
        rule: Rule | None = None,  # when to stop, as `supple calibrate` has found
    ) -> None:
        self.engine, self.points, self.classes, self.ladder = engine, tuple(points), classes, ladder
        self.preprocess, self.rule, self.shape, self.task = preprocess, rule, shape, get_task(task)
        self.stages, self.roles = tuple(stages), tuple(roles)
        self.pace, self._measured = Pace(), False
        self._names = [str(point) for point in self.points]
        self._macs = {row.point: row.ceiling or 0 for row in ladder if row.ceiling}

    # --- asking -------------------------------------------------------------------------------------------------------

    def predict(
        self,
        given: Any,
        *,
        point: Point | str | None = None,
        deadline_ms: float | None = None,
        budget_macs: float | None = None,
        min_confidence: float | None = None,
        confident: bool = False,
        cancel: threading.Event | None = None,
        strict: bool = False,
    ) -> Prediction | list[Prediction]:
        """One answer for a file or picture, a list of them for a batch.

        given: a path, the bytes of a file, a picture as uint8 (height, width, 3), or inputs ready for the network,
        float32 with the batch first (a tuple of them where the network takes several). `confident` stops each sample
        when the calibrated rule says so, `min_confidence` when it is this sure (or, where a task lists what it finds,
        lists what scores this much). With `cancel`, an event that is set
        stops the run between stages: the latest finished exit answers. A deadline that nothing meets is answered by
        the cheapest point, marked late; `strict` raises LateError instead.
        """
        began = time.perf_counter()
        check_limits(deadline_ms=deadline_ms, budget_macs=budget_macs, min_confidence=min_confidence)
        limits = (point, deadline_ms, budget_macs, min_confidence, confident or None)
        if sum(one is not None for one in limits) > 1:
            named = "point, deadline_ms, budget_macs, min_confidence, confident"
            raise PointError(f"more than one of {named} is given.", "Give one.")
        if cancel is not None and not isinstance(cancel, threading.Event):
            raise PointError(f"cancel is {cancel!r:.80}.", "Give a threading.Event, and set it to stop the run.")
        options: dict[str, float] = {}  # of the task
        if min_confidence is not None and self.task.min_score is not None:
            options, min_confidence = {"min_score": min_confidence}, None
        rule = self._rule(min_confidence, confident)
        x, single = taken(given, self.shape, self.preprocess)
        if deadline_ms is not None and not self._measured:
            self.warm()
        left = None if deadline_ms is None else deadline_ms - AROUND_MS - 1000 * (time.perf_counter() - began)
        fixed = point is not None or budget_macs is not None
        if self.stages and not fixed and (left is not None or cancel is not None or rule is not None):
            batch = len(x[0])
            reached = walk(
                self.stages,
                self._run_stage,
                x,
                left_ms=left,
                expected_ms=lambda k: self._until_answer_ms(k, batch),
                cancel=cancel,
                rule=rule,
                strict=strict,
            )
        else:
            where, reason = self._choose(point, left, budget_macs, len(x[0]), strict)
            logits = self._timed(("point", where, len(x[0])), self.run_point, where, x)
            if not np.isfinite(logits).all():
                cure = "Its weights or its input hold no numbers."
                raise DataError(f"{where} gave values that are no finite numbers.", cure)
            reached = [(where, row, reason) for row in logits]
        elapsed = 1000 * (time.perf_counter() - began)
        answers = predictions(
            self.task,
            self.classes,
            reached,
            {} if rule is None else rule.temperatures,
            options,
            elapsed_ms=elapsed,
            in_time=None if deadline_ms is None else elapsed <= deadline_ms,
            within_budget=None if budget_macs is None else self._macs[reached[0][0]] <= budget_macs,
            file=str(given) if isinstance(given, str | Path) else None,
        )
        return answers[0] if single else answers

    def predict_many(self, paths: Iterable[str | Path], *, budget_ms: float) -> list[Prediction | DataError]:
        """Answers for files that share one budget of time: each gets an equal part of what is left. A file that cannot
        be read has its error in its place."""
        check_limits(budget_ms=budget_ms)
        paths, began = [paths] if isinstance(paths, str | Path) else list(paths), time.perf_counter()
        answers: list[Prediction | DataError] = []
        for done, path in enumerate(paths):
            left = budget_ms - 1000 * (time.perf_counter() - began)
            try:
                answer = self.predict(path, deadline_ms=max(0.0, left / (len(paths) - done)))
                assert isinstance(answer, Prediction)
                answers.append(answer)
            except DataError as error:
                answers.append(error)
        return answers

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> "Predictor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- running ------------------------------------------------------------------------------------------------------

    def run_point(self, name: str, x: State) -> Array:
        """The logits of a point; where samples skip layers, those layers do not run."""
        if self.roles:
            return follow(self.engine, self.roles, x, Point.parse(name).skip)
        return self.engine.run_point(name, x)

    def _rule(self, least: float | None, confident: bool) -> Rule | None:
        if not confident and least is None:
            return None
        if not self.task.confidence:
            cause = f"an answer of the task {self.task.name} does not say how sure it is."
            raise PointError(cause, "Give a point, a deadline or a budget.")
        if not self.stages:
            raise PointError("there are no exits here to stop at when sure.", "Give a point, a deadline or a budget.")
        if least is not None:
            return Rule.above(least, [name for name in self.stages if name is not None])
        if self.rule is None:
            raise PointError("no rule was calibrated.", "Make it: supple calibrate RUN; then export again.")
        return self.rule

    def _choose(
        self, point: Point | str | None, left: float | None, budget: float | None, batch: int, strict: bool
    ) -> tuple[str, str]:
        names = self._names
        if point is not None:
            asked = str(point if isinstance(point, Point) else Point.parse(str(point)))
            if asked not in names:
                raise PointError(f"there is no point {asked} here: there are {', '.join(names)}.", "Use one of these.")
            return asked, "asked"
        if left is not None:
            expected = {name: self._expected_ms("point", name, batch) for name in names}
            fits = [name for name in names if expected[name] <= left]
            if fits:
                return max(fits, key=self._merit), "deadline"
            quickest = min(names, key=lambda name: expected[name])
            if strict:
                need = f"{expected[quickest]:.2g} ms"
                raise LateError(
                    f"{max(0.0, left):.2g} ms are left after decoding; {quickest} takes {need}.", "Allow more time."
                )
            return quickest, "deadline"
        if budget is not None:
            if not all(name in self._macs for name in names):
                raise PointError("how many MACs the points take is not known here.", "Give a point, or a deadline.")
            fits = [name for name in names if self._macs[name] <= budget]
            cheapest = min(names, key=lambda name: self._macs[name])
            return (max(fits, key=self._merit) if fits else cheapest), "budget"
        return (str(FULL), "full") if str(FULL) in names else (names[-1], "largest")

    def _merit(self, name: str) -> tuple[float, float]:
        """The score of a point, where it was measured; else its cost stands for it."""
        row = next((row for row in self.ladder if row.point == name and row.score is not None), None)
        sign = 1 if row is None or row.higher_is_better else -1
        return (sign * (row.score or 0.0) if row is not None else 0.0, self._macs.get(name, 0))

    # --- time ---------------------------------------------------------------------------------------------------------

    def _run_stage(self, k: int, state: State) -> tuple[State, Array | None]:
        found: tuple[State, Array | None]
        found = self._timed(("stage", k, len(state[0])), self.engine.run_stage, k, state)
        return found

    def _timed(self, step: object, call: Callable[..., Any], *given: Any) -> Any:
        took, found = _clocked(call, *given)
        self.pace.note(step, took)
        return found

    def _expected_ms(self, kind: str, which: object, batch: int) -> float:
        """At most so long, as things are now; a batch whose size is new here, as long as its samples one by one."""
        known = self.pace.knows((kind, which, batch))
        return self.pace.ms((kind, which, batch)) if known else batch * self.pace.ms((kind, which, 1))

    def _until_answer_ms(self, k: int, batch: int) -> float:
        """What it is expected to take from stage k to the next one that answers."""
        last = next(place for place in range(k, len(self.stages)) if self.stages[place] is not None)
        return sum(self._expected_ms("stage", place, batch) for place in range(k, last + 1))

    def warm(self, batch: int = 1) -> None:
        """Opens every graph, and times what deadlines need for this size of a batch, so that no call has to."""
        x = zeros(self.shape, batch)
        if self.preprocess is not None:
            self.preprocess.arrays(self.preprocess.blank_file())  # the first file pays for the decoder's set-up
        for name in self._names:
            calls = 1 if self.stages else WARM + MEASURED
            times = [_clocked(self.run_point, name, x)[0] for _ in range(calls)]
            if not self.stages:
                self.pace.learn(("point", name, batch), times[WARM:])
        spent: list[list[float]] = [[] for _ in self.stages]
        for _ in range(WARM + MEASURED if self.stages else 0):
            state = x
            for k in range(len(self.stages)):
                took, (state, _) = _clocked(self.engine.run_stage, k, state)
                spent[k].append(took)
        for k, times in enumerate(spent):
            self.pace.learn(("stage", k, batch), times[WARM:])
        self._measured = self._measured or batch == 1


def check_limits(**given: float | None) -> None:
    """Limits are numbers from 0; a confidence is at most 1."""
    for name, value in given.items():
        most = 1.0 if name == "min_confidence" else sys.float_info.max
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 <= value <= most):
            raise PointError(f"{name} is {value!r}.", f"Give a number from 0{' to 1' if most == 1 else ''}.")


def _clocked(call: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    """How many ms a call took, and what it gave."""
    start = time.perf_counter()
    found = call(*given)
    return 1000 * (time.perf_counter() - start), found
