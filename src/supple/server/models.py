"""What is told of the models that are served. Without torch."""

from typing import TYPE_CHECKING, Any

from supple.inference.inputs import parts_of
from supple.tasks import get_metric

if TYPE_CHECKING:
    from supple.server.served import Served


def about(served: "Served") -> dict[str, Any]:
    """For lists: without the names of the classes, of which there may be many."""
    return {
        "name": served.name,
        "task": served.task,
        "engine": served.engine,
        "precision": served.precision,
        "input_shape": [list(part) for part in parts_of(served.input_shape)],
        "accepts": None if served.kind is None else {"kind": served.kind, "endings": list(served.endings)},
        "num_classes": len(served.classes),
        "calibrated": served.has_policy,
        "points": [str(point) for point in served.points],
        "ladder": ladder(served),
    }


def ladder(served: "Served") -> list[dict[str, Any]]:
    """Each point, cheapest first: MACs, score, and the milliseconds that one sample is expected to take here."""
    rows = {row.point: row for row in reversed(served.ladder.rows)}  # the first of each point
    found = []
    for point in map(str, served.points):
        row = rows.get(point)
        facts = {name: getattr(row, name, None) for name in ("macs", "metric", "score", "higher_is_better")}
        metric = get_metric(facts["metric"])
        facts |= {"metric_label": metric.called, "unit": metric.unit, "expected_ms": getattr(row, "p50_ms", None)}
        found.append({"point": point, **facts})
    return found
