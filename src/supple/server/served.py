"""A model as the server knows it: what its workers found out, and which ways requests may go along it."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from supple.errors import PointError, SuppleError
from supple.inference.costs import points_of
from supple.inference.engines import Graphs, Stage
from supple.ladder import Ladder, Row
from supple.machine import machine
from supple.point import FULL, Point
from supple.policy.fitting import Target
from supple.policy.policy import Policy, stop_above
from supple.server.messages import Facts, Times
from supple.server.requests import Options, Refusal, invalid
from supple.server.schedule import Track
from supple.tasks import get_task


class Way(NamedTuple):
    """How a request goes: the places that may answer it, and why it ends at the last of them."""

    track: Track
    choices: tuple[int, ...]
    reason: str
    policy: Policy | None = None
    options: dict[str, Any] | None = None  # of the task's answers
    budget: float | None = None  # MACs


class Served:
    """One model. `ladder` has the milliseconds that one sample is expected to take."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.name, self.task, self.classes = facts, facts.name, facts.task, facts.classes
        self.input_shape, self.engine, self.precision = facts.shape, facts.engine, facts.precision
        self.kind, self.endings = facts.kind or None, facts.endings
        self.points, self.preprocess = facts.points, facts.preprocess
        self.has_policy = facts.policy is not None
        self._task, self._ladder = get_task(facts.task), Ladder.from_json(facts.ladder)
        self._rows = {row.point: row for row in reversed(self._ladder.rows)}
        self.chain = self._chain() if facts.stages else None
        self._single = {point: self._whole((point,), choice=True) for point in facts.points}
        self.free = self.chain or self._whole(self._worthwhile(), choice=True)  # what requests without a limit go along
        stages = facts.stages or Graphs(dict(zip(facts.points, facts.points))).from_start(facts.points)
        self._stages: tuple[Stage, ...] = stages  # that confidences go along
        self._cascades: dict[tuple[str, ...], Track] = {}

    @property
    def ladder(self) -> Ladder:
        rows = []
        for point in self.points:
            ms = self.facts.whole[point][1]
            row = replace(self._rows.get(point, Row(point)), batch=1, threads=1, machine=machine())
            rows.append(replace(row, p50_ms=ms, p95_ms=ms))
        return Ladder(rows)

    # --- what a request may go along ----------------------------------------------------------------------------------

    def way(self, options: Options) -> Way:
        """Raises Refusal for what this model cannot do."""
        extra: dict[str, Any] = {} if self._task.top_k is None else {"top_k": options.top_k}
        least = options.min_confidence
        if least is not None and self._task.min_score is not None:
            least, extra = None, {**extra, "min_score": least}
        if options.point is not None:
            way = self._asked(options.point)
        elif options.budget_macs is not None:
            way = self._within(options.budget_macs)
        elif least is not None or options.policy:
            way = self._confident(least)
        else:
            way = self._up_to(self.free, len(self.free.points) - 1, None)
        return way._replace(options=extra)

    def _up_to(self, track: Track, last: int, reason: str | None) -> Way:
        places = tuple(k for k, point in enumerate(track.points[: last + 1]) if point is not None)
        return Way(track, places, reason or "full")

    def _asked(self, text: str) -> Way:
        stages = self.facts.stages
        try:
            wanted = Point.parse(text)
        except PointError as error:
            raise Refusal(422, "unknown_point", f"{error.cause} {error.cure}"[:300]) from None
        name = str(stages[-1].point) if stages and wanted == Point(exit=len(stages)) else str(wanted)
        if name in self._single:
            return Way(self._single[name], (0,), "asked")
        if self.chain is not None and name in self.chain.points:
            return Way(self.chain, (self.chain.points.index(name),), "asked")
        there = ", ".join(self.points)
        raise Refusal(422, "unknown_point", f"There is no point {name[:60]} here: there are {there}.")

    def _within(self, budget: float | str) -> Way:
        """The best point within a number of MACs, or the cheapest where nothing is."""
        cost = {name: row.ceiling for name in self.points if (row := self._rows.get(name)) is not None and row.ceiling}
        if len(cost) < len(self.points):
            raise invalid("The MACs of this model's points are not known here; give a point, or a deadline.")
        if isinstance(budget, str):
            try:
                if not budget.endswith("x") or str(FULL) not in cost:
                    raise invalid('budget_macs is a number of MACs, or a share of the full model such as "0.7x".')
                budget = Target.parse("budget_macs", budget).value * cost[str(FULL)]
            except SuppleError as error:
                raise invalid(f"{error.cause} {error.cure}"[:300]) from None
        rows = Ladder(replace(self._rows[name], p50_ms=None, p95_ms=None) for name in self.points)
        try:
            name = str(rows.best_under(macs=budget))
        except PointError:
            name = min(cost, key=lambda one: cost[one])
        track = self.free if name in self.free.points else self._single[name]
        return self._up_to(track, track.points.index(name), "budget")._replace(budget=budget)

    def _confident(self, least: float | None) -> Way:
        if not self._task.confidence:
            raise invalid(f"The task {self.task} has no confidence; give a point, a deadline or a budget.")
        if least is not None:
            stages, policy = self._stages, stop_above(points_of(self._stages), least)
        elif self.facts.policy is None:
            raise invalid("No policy was calibrated for this model; leave policy out.")
        else:
            stages = self.facts.policy_stages
            there = {stage.point for stage in stages}
            kept = [place for place, point in enumerate(self.facts.policy.points) if str(point) in there]
            if not kept:
                raise invalid("None of the points of this model's policy is here.")
            policy = self.facts.policy.only(kept)
        if len(policy.points) < 2 and least is not None:
            raise invalid("This model has a single point, so it cannot stop early; leave min_confidence out.")
        names = [str(point) for point in policy.points]
        track = self.chain if self.chain is not None and stages == self.facts.stages else self._cascade(tuple(names))
        reason = "budget" if policy.calibrated and names[-1] != str(FULL) else "full"
        return Way(track, tuple(track.points.index(name) for name in names), reason, policy)

    def within_budget(self, point: str, budget: float) -> bool:
        row = self._rows.get(point)
        return row is not None and (row.ceiling or 0) <= budget

    # --- tracks -------------------------------------------------------------------------------------------------------

    def _chain(self) -> Track:
        facts = self.facts
        columns = []
        for k in range(len(facts.stages)):
            parts = [curve(times[k]) for times in (facts.bodies, facts.heads) if k in times]
            columns.append(np.sum([part[: min(map(len, parts))] for part in parts], 0))
        return Track(self.name, tuple(stage.point for stage in facts.stages), rows_of(columns), chain=True)

    def _whole(self, points: tuple[str, ...], choice: bool) -> Track:
        rows = rows_of([curve(self.facts.whole[point]) for point in points])
        return Track(self.name, points, rows, choice=choice, skips=self.facts.skips)

    def _cascade(self, points: tuple[str, ...]) -> Track:
        if points not in self._cascades:
            self._cascades[points] = self._whole(points, choice=False)
        return self._cascades[points]

    def _worthwhile(self) -> tuple[str, ...]:
        """Points worth choosing from, the fastest first: each scores higher than all faster ones, where scores are
        known; the largest is always among them."""
        ms = {point: self.facts.whole[point][1] for point in self.points}
        largest = str(FULL) if str(FULL) in ms else self.points[-1]
        kept: list[str] = []
        best = -np.inf
        for point in sorted(ms, key=lambda name: ms[name]):
            merit = self._rows[point].merit if point in self._rows else math.nan
            if point == largest or ms[point] >= ms[largest]:
                continue
            if not merit <= best:  # higher, or not known
                kept.append(point)
                best = best if math.isnan(merit) else merit
        return (*kept, largest)


def curve(times: Times) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ms for batches of 1, 2, 3, ...: between the sizes that were measured, on straight lines."""
    sizes = sorted(times)
    found: np.ndarray[Any, np.dtype[np.float64]] = np.interp(
        np.arange(1, sizes[-1] + 1), sizes, [times[size] for size in sizes]
    )
    return found


def rows_of(columns: list[np.ndarray[Any, np.dtype[np.float64]]]) -> tuple[tuple[float, ...], ...]:
    largest = min(map(len, columns))
    return tuple(tuple(float(column[size]) for column in columns) for size in range(largest))
