"""The best points of a model for budgets of time or MACs.

Few points are all scored. Of many, some are: those that are published, and random ones that spread over the costs. What
they scored and took tells how thousands of others would do; the dozen that promises most is measured too. What is
chosen was measured, all of it.
"""

import itertools
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from supple.errors import PointError, RecipeError
from supple.ladder import Ladder, Row
from supple.model import FlexibleModel
from supple.point import FULL, Point
from supple.policy.fitting import Target
from supple.searching.choose import choose, limited, spread
from supple.searching.guess import guess_macs, guess_ms, guess_scores
from supple.searching.measure import Measurements
from supple.text import macs as written

TIMED = 24  # points: no more than these are all timed; of more, half as many before the others' times are guessed
POOL = 3000  # random points that are guessed at
DRAWN = 200  # random points beyond those to be scored, which are chosen from all of them
CAREFUL = (1.0, 0.9)  # of a budget: a time that is guessed may turn out longer


@dataclass(frozen=True)
class Best:
    """The best point within a budget."""

    budget: float  # ms of the 95th percentile, or MACs
    given: str  # as it was asked for
    row: Row

    @property
    def point(self) -> Point:
        return Point.parse(self.row.point)


@dataclass(frozen=True)
class SearchResult:
    """What a search has found. The ladder holds every point that was scored, on validation samples."""

    points: tuple[Point, ...]  # chosen, cheapest first, the full model last
    best: tuple[Best, ...]  # one for each budget
    ladder: Ladder
    exhaustive: bool  # whether every point that the model can run was scored
    unit: str  # of the budgets: ms or macs
    published: bool = False  # whether the points are now those of the model
    remarks: tuple[str, ...] = field(default=())  # what is to be done now

    @property
    def rows(self) -> list[Row]:
        """Of the chosen points."""
        names = {str(point) for point in self.points}
        return [row for row in self.ladder if row.point in names]

    def to_json(self) -> dict[str, Any]:
        names = {row.point for row in self.rows}
        within = {name: [one.budget for one in self.best if one.row.point == name] for name in names}
        points = [
            {**row.to_json(), "chosen": row.point in names, "budgets": within.get(row.point, [])} for row in self.ladder
        ]
        budgets = [{"budget": one.budget, "given": one.given, "point": one.row.point} for one in self.best]
        facts = {"unit": self.unit, "exhaustive": self.exhaustive, "published": self.published}
        return {**facts, "budgets": budgets, "points": points, "remarks": [*self.remarks]}


def search(
    model: FlexibleModel, found: Measurements, targets: Sequence[Target], *, timed: bool = True, scored: int, seed: int
) -> SearchResult:
    """The points to publish, and the best within each target. timed: points compete by their time, else by MACs.

    scored: how many points are scored before the rest is guessed at.
    """
    cost = "p50_ms" if timed else "macs"
    every = all_points(model, scored, found.macs)
    exhaustive = every is not None
    first = every or found.start(f"{scored} points, seed {seed}", lambda: some_points(model, scored, seed, found.macs))
    if len(first) < 2:
        cure = "Train one with several: method.name=elastic, exits or slim. See supple list."
        raise RecipeError("this model has a single point: there is nothing to search.", cure)
    found.score(first)
    if timed:
        some = spread(found.rows, TIMED // 2, "macs", [_full(found.rows)])
        found.time([FULL, *(first if len(first) <= TIMED else _points(some))])  # which must run, or nothing does
    limits = [_limit(target, _full(found.rows), cost) for target in targets]
    if timed or not exhaustive:
        pool = [] if exhaustive else draw(model, POOL, f"{seed}, pool")
        others = promising(model, found.rows, pool, limits, cost)
        others = [point for point in others if _may_be_published(model, point, found.macs)]
        found.score(others)
        if timed:
            found.time(others)
    rows = [row for row in found.every if getattr(row, cost) is not None]
    chosen, best = choose(rows, limits, cost)
    kept = []
    for target, limit in zip(targets, limits):
        row = best[limit]
        if row is None:
            raise _nothing_fits(rows, target, limit, cost)
        kept.append(Best(limit, target.given, row))
    points = tuple(model.order(_points(chosen)))
    return SearchResult(points, tuple(kept), Ladder(found.every), exhaustive, "ms" if timed else "macs")


def all_points(model: FlexibleModel, most: int, macs: Callable[[Point], int]) -> list[Point] | None:
    """All points that a model can run and publish; None: there are more than `most`."""
    published = dict.fromkeys((*model.points, *model.settled))
    if not model.publishes:
        return list(published)
    every = dict.fromkeys((*published, *itertools.islice(model.mixtures(), most + 1)))
    return [point for point in every if _may_be_published(model, point, macs)] if len(every) <= most else None


def some_points(model: FlexibleModel, most: int, seed: int, macs: Callable[[Point], int]) -> list[Point]:
    """The published points and, up to `most`, random ones that spread over the costs."""
    drawn = draw(model, most + DRAWN, f"{seed}, first")
    able = [*model.points, *(point for point in drawn if _may_be_published(model, point, macs))]
    rows = [Row(str(point), macs=macs(point)) for point in dict.fromkeys(able)]
    return _points(spread(rows, most, "macs", rows[: len(model.points)]))


def draw(model: FlexibleModel, count: int, seed: str) -> list[Point]:
    """Random points, each once, out of so many draws."""
    rng = random.Random(seed)
    drawn = (model.draw(rng) for _ in range(count))
    return list(dict.fromkeys(model.check(point) for point in drawn if point is not None))


def promising(
    model: FlexibleModel, rows: Sequence[Row], pool: Sequence[Point], limits: Sequence[float], cost: str
) -> list[Point]:
    """Those points, of the scored ones and of a pool, that would be chosen if all guesses were right."""
    scores, macs, ms = (
        {Point.parse(row.point): value for row in rows if (value := getattr(row, name)) is not None}
        for name in ("score", "macs", "p50_ms")
    )
    points, timed = list(dict.fromkeys((*scores, *pool))), cost == "p50_ms"
    over = statistics.median(limited(row, cost) / getattr(row, cost) for row in rows if getattr(row, cost) is not None)
    spent = guess_ms(model, points, ms, macs) if timed else guess_macs(model, points, macs)
    guessed = [
        Row(
            str(point),
            score=float(score),
            higher_is_better=rows[0].higher_is_better,
            **({"p50_ms": value, "p95_ms": over * value} if timed else {"macs": value, "macs_worst": over * value}),
        )
        for point, score, value in zip(points, guess_scores(model, points, scores), map(float, spent))
    ]
    chosen, _ = choose(guessed, [share * limit for limit in limits for share in CAREFUL], cost)
    return _points(chosen)


def _may_be_published(model: FlexibleModel, point: Point, macs: Callable[[Point], int]) -> bool:
    """What costs as much as the full model may not, save where points are fixed."""
    return not model.publishes or point == FULL or macs(point) < macs(FULL)


def _limit(target: Target, full: Row, cost: str) -> float:
    return target.value * limited(full, cost) if target.relative else target.value


def _full(rows: Iterable[Row]) -> Row:
    return next(row for row in rows if row.point == str(FULL))


def _points(rows: Iterable[Row]) -> list[Point]:
    return [Point.parse(row.point) for row in rows]


def _nothing_fits(rows: Sequence[Row], target: Target, limit: float, cost: str) -> PointError:
    cheapest = min(rows, key=lambda row: limited(row, cost))
    takes = limited(cheapest, cost)
    given, least = (f"{ms:.3g} ms" if cost == "p50_ms" else written(ms) for ms in (limit, takes))
    how = " (95 % of the calls)" if cost == "p50_ms" else ""
    cause = f"no point keeps a budget of {given}: the cheapest is {cheapest.point}, which takes {least}{how}."
    return PointError(cause, f"Give a larger --{target.kind.replace('_', '-')}.")
