"""Policies: pure functions that decide which point answers."""

from supple.errors import PointError
from supple.ladder import Ladder
from supple.point import FULL, Point


def choose_point(
    ladder: Ladder,
    *,
    asked: Point | None = None,
    deadline_ms: float | None = None,
    budget_macs: float | None = None,
    **key: object,
) -> tuple[Point, str]:
    """The point for a request, and the reason: `asked`, `deadline`, `budget` or `full`.

    When nothing fits, the cheapest point (for a deadline, the quickest) answers: late is better than never. `key`
    narrows the timed rows.
    """
    if asked is not None:
        return asked, "asked"
    if deadline_ms is None and budget_macs is None:
        return FULL, "full"
    reason = "deadline" if deadline_ms is not None else "budget"
    rows = ladder.where(**key)
    try:
        return ladder.best_under(ms=deadline_ms, macs=budget_macs, **key), reason
    except PointError:
        if deadline_ms is None:
            return rows.cheapest(), reason
        timed = [row for row in rows if row.p95_ms is not None]
        if not timed:
            raise
        return Point.parse(min(timed, key=lambda row: row.p95_ms or 0).point), reason
