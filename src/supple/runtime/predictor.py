"""Answers within a deadline, a budget or as soon as sure, from a run or an exported folder.

    p = supple.predictor("runs/x", engine="auto", threads=2)
    p.predict("cat.jpg", deadline_ms=8).label

A model with exits is anytime: stage by stage it goes on while the next stage is expected to end in time, and the last
finished exit answers. Any other model has its point chosen beforehand. Decoding is part of the deadline.
"""

import math
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from supple.errors import DataError, PointError
from supple.ladder import Ladder
from supple.point import FULL, Point
from supple.runtime.answers import Prediction, Rule, told
from supple.runtime.engine import Array, Engine, State
from supple.runtime.pace import Pace
from supple.runtime.skipping import follow
from supple.runtime.walk import LateError, walk

WARM, MEASURED = 3, 20  # calls of every step before it is trusted


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
        self.preprocess, self.rule, self.shape, self.task = preprocess, rule, shape, task
        self.stages, self.roles = tuple(stages), tuple(roles)
        self.pace = Pace()
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
        when the calibrated rule says so, `min_confidence` when it is this sure. With `cancel`, an event that is set
        stops the run between stages: the latest finished exit answers. A deadline that nothing meets is answered by
        the cheapest point, marked late; `strict` raises LateError instead.
        """
        began = time.perf_counter()
        for name, value in (("deadline_ms", deadline_ms), ("budget_macs", budget_macs)):
            if value is not None and not 0 <= value < math.inf:
                raise PointError(f"{name} is {value}.", "Give a number from 0.")
        limits = (point, deadline_ms, budget_macs, min_confidence, confident or None)
        if sum(one is not None for one in limits) > 1:
            named = "point, deadline_ms, budget_macs, min_confidence, confident"
            raise PointError(f"more than one of {named} is given.", "Give one.")
        rule = self._rule(min_confidence, confident)
        x, single = self._input(given)
        left = None if deadline_ms is None else deadline_ms - 1000 * (time.perf_counter() - began)
        fixed = point is not None or budget_macs is not None
        if self.stages and not fixed and (left is not None or cancel is not None or rule is not None):
            batch = len(x[0])
            if left is not None:
                self._measure_chain(x)
            reached = walk(
                self.stages,
                self._run_stage,
                x,
                left_ms=left,
                expected_ms=lambda k: self._next_ms(k, batch),
                cancel=cancel,
                rule=rule,
                strict=strict,
            )
        else:
            where, reason = self._choose(point, left, budget_macs, len(x[0]), strict)
            logits = self._timed(("point", where, len(x[0])), lambda: self.run_point(where, x))
            if not np.isfinite(logits).all():
                cure = "Its weights or its input hold no numbers."
                raise DataError(f"{where} gave values that are no finite numbers.", cure)
            reached = [(where, row, reason) for row in logits]
        elapsed = 1000 * (time.perf_counter() - began)
        late = deadline_ms is not None and elapsed > deadline_ms
        answers = [told(self.task, self.classes, *one, elapsed, late, rule) for one in reached]
        return answers[0] if single else answers

    def predict_many(self, paths: Iterable[str | Path], *, budget_ms: float) -> list[Prediction]:
        """Answers for files that share one budget of time: each gets an equal part of what is left."""
        paths, began, answers = list(paths), time.perf_counter(), []
        for done, path in enumerate(paths):
            left = budget_ms - 1000 * (time.perf_counter() - began)
            answer = self.predict(path, deadline_ms=max(0.0, left / (len(paths) - done)))
            assert isinstance(answer, Prediction)
            answers.append(answer)
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
        if self.task != "classes":
            raise PointError(f"nothing says how sure a {self.task} is.", "Give a point, a deadline or a budget.")
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
        names = [str(one) for one in self.points]
        if point is not None:
            asked = str(point if isinstance(point, Point) else Point.parse(point))
            if asked not in names:
                raise PointError(f"there is no point {asked} here: there are {', '.join(names)}.", "Use one of these.")
            return asked, "asked"
        if left is not None:
            self._measure_points(batch)
            fits = [name for name in names if self.pace.ms(("point", name, batch)) <= left]
            if fits:
                return max(fits, key=self._merit), "deadline"
            quickest = min(names, key=lambda name: self.pace.ms(("point", name, batch)))
            if strict:
                need = f"{self.pace.ms(('point', quickest, batch)):.2g} ms"
                raise LateError(f"{left:.2g} ms are left after decoding; {quickest} takes {need}.", "Allow more time.")
            return quickest, "deadline"
        if budget is not None:
            fits = [name for name in names if self._macs.get(name, 0) <= budget]
            cheapest = min(names, key=lambda name: self._macs.get(name, 0))
            return (max(fits, key=self._merit) if fits else cheapest), "budget"
        return (str(FULL), "full") if str(FULL) in names else (names[-1], "largest")

    def _merit(self, name: str) -> tuple[float, float]:
        """The score of a point, where it was measured; else its cost stands for it."""
        row = next((row for row in self.ladder if row.point == name and row.score is not None), None)
        sign = 1 if row is None or row.higher_is_better else -1
        return (sign * (row.score or 0.0) if row is not None else 0.0, self._macs.get(name, 0))

    # --- time ---------------------------------------------------------------------------------------------------------

    def _run_stage(self, k: int, state: State) -> tuple[State, Array | None]:
        found: tuple[State, Array | None] = self._timed(
            ("stage", k, len(state[0])), lambda: self.engine.run_stage(k, state)
        )
        return found

    def _timed(self, step: object, call: Any) -> Any:
        start = time.perf_counter()
        found = call()
        self.pace.note(step, 1000 * (time.perf_counter() - start))
        return found

    def _next_ms(self, k: int, batch: int) -> float:
        """What it is expected to take from stage k to the next one that answers."""
        last = next(place for place in range(k, len(self.stages)) if self.stages[place] is not None)
        return sum(self.pace.ms(("stage", place, batch)) for place in range(k, last + 1))

    def _measure_chain(self, x: State) -> None:
        """Times every stage for this batch size, once."""
        batch = len(x[0])
        if self.pace.knows(("stage", len(self.stages) - 1, batch)):
            return
        spent: list[list[float]] = [[] for _ in self.stages]
        for _ in range(WARM + MEASURED):
            state = x
            for k in range(len(self.stages)):
                start = time.perf_counter()
                state, _ = self.engine.run_stage(k, state)
                spent[k].append(1000 * (time.perf_counter() - start))
        for k, times in enumerate(spent):
            self.pace.learn(("stage", k, batch), times[WARM:])

    def _measure_points(self, batch: int) -> None:
        x = self.zeros(batch)
        for name in map(str, self.points):
            if not self.pace.knows(("point", name, batch)):
                times = []
                for _ in range(WARM + MEASURED):
                    start = time.perf_counter()
                    self.run_point(name, x)
                    times.append(1000 * (time.perf_counter() - start))
                self.pace.learn(("point", name, batch), times[WARM:])

    def warm(self, batch: int = 1) -> None:
        """Opens every graph, and times those that deadlines need, so that no call has to."""
        x = self.zeros(batch)
        if self.preprocess is not None and self.task == "classes":
            self.preprocess.read(self.preprocess.blank_file())  # the first picture pays for the decoder's set-up
        if self.stages:
            self._measure_chain(x)
            for point in self.points:
                self.run_point(str(point), x)
        else:
            self._measure_points(batch)

    # --- input --------------------------------------------------------------------------------------------------------

    def zeros(self, batch: int) -> State:
        return tuple(np.zeros((batch, *sides), np.float32) for sides in self._parts())

    def _parts(self) -> list[tuple[int, ...]]:
        """The shapes of what the network takes of one sample."""
        whole = all(isinstance(side, int) for side in self.shape)
        return [self.shape] if whole else list(self.shape)

    def _input(self, given: Any) -> tuple[State, bool]:
        """What the network is given, and whether it is a single file or picture."""
        if isinstance(given, tuple) or (isinstance(given, np.ndarray) and given.dtype == np.float32):
            parts = given if isinstance(given, tuple) else (given,)
            shapes, expected = [np.shape(part)[1:] for part in parts], self._parts()
            if shapes != expected or not len(parts[0]) or len({len(part) for part in parts}) > 1:
                said = f"inputs of shapes {[np.shape(part) for part in parts]}; expected (batch, *{expected})."
                raise DataError(said, "Give float32 arrays with the batch first, or a file.")
            return tuple(np.ascontiguousarray(part, np.float32) for part in parts), False
        if self.preprocess is None:
            raise DataError("nothing says how files become inputs here.", "Give float32 arrays.")
        if self.task == "classes":
            pixels = self.preprocess.pixels if isinstance(given, np.ndarray) else self.preprocess.read
            return (self.preprocess.array(pixels(given))[None],), True
        seen = self.preprocess.input(given)
        return tuple(part.numpy() for part in (seen if isinstance(seen, tuple) else (seen,))), True
