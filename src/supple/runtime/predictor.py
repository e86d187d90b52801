"""Answers within a deadline, a budget or as soon as sure, from a run or an exported folder.

    p = supple.predictor("runs/x", engine="auto", threads=2)
    p.predict("cat.jpg", deadline_ms=8).label

A model with exits is anytime: stage by stage it goes on while the next stage is expected to end in time, and the last
finished exit answers. Any other model has its point chosen beforehand. Decoding is part of the deadline.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from supple.errors import DataError, PointError, SuppleError
from supple.ladder import Ladder
from supple.point import FULL, Point
from supple.runtime.answers import Prediction, confidence, likeliest
from supple.runtime.engine import Array, Engine, State
from supple.runtime.pace import Pace

WARM, MEASURED = 3, 20  # calls of every step before it is trusted


class LateError(SuppleError):
    """A deadline that nothing can meet, where that was declared an error."""


class Predictor:
    """See the module's text. Safe for calls from several threads."""

    def __init__(
        self,
        engine: Engine,
        *,
        points: Sequence[Point],
        stages: Sequence[str | None],  # which point each stage of the chain answers; empty: no chain
        classes: tuple[str, ...],
        preprocess: Any,
        ladder: Ladder,
        shape: tuple[Any, ...],
        policy: Any = None,
    ) -> None:
        self.engine, self.points, self.classes, self.ladder = engine, tuple(points), classes, ladder
        self.preprocess, self.policy, self.shape = preprocess, policy, shape
        self.stages = tuple(stages)
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
        cancel: threading.Event | None = None,
        strict: bool = False,
    ) -> Prediction | list[Prediction]:
        """One answer for a file or picture, a list of them for a batch.

        given: a path, the bytes of a file, a picture as uint8 (height, width, 3), or inputs ready for the network,
        float32 with the batch first. With `cancel`, an event that is set stops the run between stages: the latest
        finished exit answers. A deadline that nothing meets is answered by the cheapest point, marked late; `strict`
        raises LateError instead.
        """
        began = time.perf_counter()
        if sum(one is not None for one in (point, deadline_ms, budget_macs, min_confidence)) > 1:
            raise PointError("more than one of point, deadline_ms, budget_macs, min_confidence is given.", "Give one.")
        x = self._input(given)
        single = not (isinstance(given, np.ndarray) and given.dtype == np.float32)
        left = None if deadline_ms is None else deadline_ms - 1000 * (time.perf_counter() - began)
        if self.stages and (left is not None or cancel is not None or min_confidence is not None):
            where, logits, reason = self._walk(x, left, cancel, min_confidence, strict)
        else:
            where, reason = self._choose(point, left, budget_macs, len(x[0]), strict)
            logits = self._timed(("point", where, len(x[0])), lambda: self.engine.run_point(where, x))
            if not np.isfinite(logits).all():
                cure = "Its weights or its input hold no numbers."
                raise DataError(f"{where} gave values that are no finite numbers.", cure)
        elapsed = 1000 * (time.perf_counter() - began)
        late = deadline_ms is not None and elapsed > deadline_ms
        answers = [self._told(row, where, reason, elapsed, late) for row in logits]
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

    def _walk(
        self, x: State, left: float | None, cancel: threading.Event | None, least: float | None, strict: bool
    ) -> tuple[str, Array, str]:
        """Stage by stage: which point answered, with what, and why it ended there."""
        began, state, best = time.perf_counter(), x, None
        self._measure_chain(x)
        reason = "full"
        for k, name in enumerate(self.stages):
            spent = 1000 * (time.perf_counter() - began)
            if left is not None and spent + self._next_ms(k, len(x[0])) > left:
                if best is None and strict:
                    need = f"the first exit takes {self._next_ms(k, len(x[0])):.2g} ms"
                    raise LateError(f"{left:.2g} ms are left after decoding, and {need}.", "Allow more time.")
                if best is not None:
                    reason = "deadline"
                    break
            if cancel is not None and cancel.is_set() and best is not None:
                reason = "cancelled"
                break
            state, logits = self._timed(("stage", k, len(x[0])), lambda k=k, s=state: self.engine.run_stage(k, s))
            if logits is None:
                continue
            if not np.isfinite(logits).all():
                if best is None:
                    continue
                reason = "not finite"  # the last exit that was
                break
            best = (str(name), logits)
            if least is not None and float(confidence(logits).min()) >= least and k + 1 < len(self.stages):
                reason = "confident"
                break
        if best is None:
            raise DataError("no exit gave finite numbers.", "The weights or the input hold no numbers.")
        return (*best, reason)

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
        return str(FULL), "full"

    def _merit(self, name: str) -> tuple[float, float]:
        """The score of a point, where it was measured; else its cost stands for it."""
        row = next((row for row in self.ladder if row.point == name and row.score is not None), None)
        sign = 1 if row is None or row.higher_is_better else -1
        return (sign * (row.score or 0.0) if row is not None else 0.0, self._macs.get(name, 0))

    def _told(self, logits: Array, point: str, reason: str, elapsed: float, late: bool) -> Prediction:
        scores = likeliest(logits, self.classes)
        return Prediction(next(iter(scores)), scores, point, reason, elapsed, late, logits)

    # --- time ---------------------------------------------------------------------------------------------------------

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
        x = self._zeros(batch)
        for name in map(str, self.points):
            if not self.pace.knows(("point", name, batch)):
                times = []
                for _ in range(WARM + MEASURED):
                    start = time.perf_counter()
                    self.engine.run_point(name, x)
                    times.append(1000 * (time.perf_counter() - start))
                self.pace.learn(("point", name, batch), times[WARM:])

    def warm(self, batch: int = 1) -> None:
        """Opens every graph and times it, so that the first call with a deadline need not."""
        if self.stages:
            self._measure_chain(self._zeros(batch))
        else:
            self._measure_points(batch)

    # --- input --------------------------------------------------------------------------------------------------------

    def _zeros(self, batch: int) -> State:
        return (np.zeros((batch, *self.shape), np.float32),)

    def _input(self, given: Any) -> State:
        if isinstance(given, np.ndarray) and given.dtype == np.float32:
            if given.shape[1:] != self.shape or not len(given):
                raise DataError(f"inputs of shape {given.shape}; expected (batch, {self.shape}).", "Check the inputs.")
            return (np.ascontiguousarray(given),)
        if isinstance(given, np.ndarray):
            return (self.preprocess.array(self.preprocess.pixels(given)),)
        return (self.preprocess.array(self.preprocess.read(given)),)
