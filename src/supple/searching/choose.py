"""Which of some measured points to publish: pure functions of rows of a ladder."""

import math
from collections.abc import Iterable, Mapping, Sequence

from supple.ladder import Ladder, Row
from supple.point import FULL

PUBLISHED = 12  # points, or a few more where there are many budgets
# What a budget limits, by the cost that points are compared by: as `Ladder.best_under` has it.
LIMITED = {"p50_ms": "p95_ms", "macs": "ceiling"}


def best_within(rows: Iterable[Row], limit: float, cost: str) -> Row | None:
    """The best score within a limit; of equal ones the cheapest. None: nothing keeps the limit."""
    fits = [row for row in rows if limited(row, cost) <= limit]
    return max(fits, key=lambda row: (row.merit, -getattr(row, cost)), default=None)


def choose(
    rows: Sequence[Row], limits: Iterable[float], cost: str, count: int = PUBLISHED
) -> tuple[list[Row], Mapping[float, Row | None]]:
    """Of rows with scores and costs: about `count` to publish, cheapest first, and the best within each limit.

    They are the points that no other one beats or equals, thinned out so that they spread over the costs. The cheapest,
    the full model and the best within each limit stay in any case.
    """
    best = {limit: best_within(rows, limit, cost) for limit in limits}
    front = list({(getattr(row, cost), row.score): row for row in Ladder(rows).pareto(cost)}.values())
    cheapest = min(front, key=lambda row: getattr(row, cost))
    full = [row for row in rows if row.point == str(FULL)]
    return spread(front, count, cost, (cheapest, *full, *filter(None, best.values()))), best


def spread(rows: Sequence[Row], count: int, cost: str, keep: Iterable[Row] = ()) -> list[Row]:
    """So many rows, cheapest first: those to keep, and then again and again the one that is farthest, in ratios of the
    cost, from all that were taken."""
    taken = {row.point: row for row in keep} or {row.point: row for row in rows[:1]}
    left = {row.point: row for row in rows if row.point not in taken}
    gaps = {name: min(_ratio(row, one, cost) for one in taken.values()) for name, row in left.items()}
    while left and len(taken) < count:
        name = max(left, key=lambda name: gaps[name])
        taken[name] = left.pop(name)
        gaps = {other: min(gaps[other], _ratio(row, taken[name], cost)) for other, row in left.items()}
    return sorted(taken.values(), key=lambda row: getattr(row, cost))


def limited(row: Row, cost: str) -> float:
    """What a budget limits."""
    return float(getattr(row, LIMITED[cost]))


def _ratio(row: Row, other: Row, cost: str) -> float:
    return abs(math.log(max(getattr(row, cost), 1e-9) / max(getattr(other, cost), 1e-9)))
