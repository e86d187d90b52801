"""What was scored and timed, kept in a run from one search to the next: nothing is measured twice."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from supple import files
from supple.errors import CheckpointError, PointError
from supple.ladder import Ladder, Row
from supple.point import Point

SEARCH = "search.json"
KINDS = ("scores", "times")


class Memory:
    """Rows of points by kind (scores, times) and by circumstance: on which samples; on which engine and machine.

    Every change is written at once, so that an interruption loses nothing. What belongs to other weights is forgotten.
    """

    def __init__(self, weights: str, path: Path | None = None) -> None:
        self.weights, self.path = weights, path  # path None: for as long as the program runs
        self._rows: dict[str, dict[str, dict[str, Row]]] = {kind: {} for kind in KINDS}
        self.starts: dict[str, list[str]] = {}  # the points that a search began with
        if path is not None and path.is_file():
            self._read(path)

    def rows(self, kind: str, circumstance: str) -> dict[str, Row]:
        """What is known of each point."""
        return dict(self._rows[kind].get(circumstance, {}))

    def remember(self, kind: str, circumstance: str, rows: Iterable[Row]) -> None:
        self._rows[kind].setdefault(circumstance, {}).update({row.point: row for row in rows})
        self._write()

    def begin(self, name: str, points: list[str]) -> None:
        self.starts[name] = points
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            kept = {kind: {name: _short(rows) for name, rows in table.items()} for kind, table in self._rows.items()}
            document = {"weights": self.weights, "starts": self.starts, **kept}
            files.write(self.path, json.dumps(document, indent=1))

    def _read(self, path: Path) -> None:
        cure = f"Delete it, and search again: rm {path}"
        document = files.read_json(path, cure)
        if document.get("weights") != self.weights:
            return
        try:
            for kind in KINDS:
                for circumstance, rows in document[kind].items():
                    known = {row.point: row for row in Ladder.from_json({"points": rows})}
                    self._rows[kind][circumstance] = known
            for name, points in document["starts"].items():
                self.starts[name] = [str(Point.parse(text)) for text in points]
        except (CheckpointError, PointError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not what a search writes: {error!s:.200}.", cure) from None


def _short(rows: dict[str, Row]) -> list[dict[str, Any]]:
    """Without what is not known."""
    return [{name: value for name, value in asdict(row).items() if value is not None} for row in rows.values()]
