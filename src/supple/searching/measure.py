"""Points scored on validation samples and timed on an engine: for real, and each once."""

import copy
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from supple.cost import PointCosts
from supple.device import placed
from supple.errors import RecipeError, SuppleError
from supple.exporting.write import Held, Wanted, must_be_exportable, precision_of
from supple.exporting.write import export as write_graphs
from supple.inference.bundle import open_bundle
from supple.inference.compare import compare, time_model
from supple.inference.engines import ENGINES, available, check_device, not_installed
from supple.inference.predictor import Predictor
from supple.inference.select import Choice, of_bundle
from supple.ladder import TIMES, Ladder, Row
from supple.model import FlexibleModel
from supple.point import FULL, Point
from supple.progress import counting
from supple.scoring import OnProgress, Score, evaluate
from supple.searching.memory import Memory
from supple.text import did_you_mean, say

T = TypeVar("T")
TOGETHER = 6  # points that are scored in one pass over the samples, or timed in turn: an interruption loses so many
ROUNDS, SECONDS = 100, 20.0  # of those that are timed together


Spread = Callable[[Sequence[Sequence[Point]]], Iterable[Iterable[Score]]]


@dataclass(frozen=True)
class Tools:
    """How points are measured."""

    macs: Callable[[Point], int]
    score: Callable[[Sequence[Point], OnProgress], Iterable[Score]]
    time: Callable[[Sequence[Point]], Iterable[Row]]
    spread: Spread | None = None  # scores several lots of points at once, elsewhere; the scores are in their order


class Measurements:
    """A row for every point that was scored, with its MACs and, once it was timed, its times.

    samples: how many a point is scored on. scored_on, timed_on: the circumstances that are remembered with the results.
    """

    def __init__(
        self,
        tools: Tools,
        memory: Memory,
        *,
        samples: int,
        scored_on: str,
        timed_on: str,
        quiet: bool = True,
    ) -> None:
        self._tools, self._memory, self._samples, self._quiet = tools, memory, samples, quiet
        self._scored_on, self._timed_on = scored_on, timed_on
        self._asked: set[str] = set()  # points that were scored, or had been, for this search
        self._macs = {name: row.ceiling for name, row in memory.rows("scores", scored_on).items()}

    @property
    def every(self) -> list[Row]:
        """All that is known, from earlier searches too."""
        times = self._memory.rows("times", self._timed_on)
        known = self._memory.rows("scores", self._scored_on).values()
        return [_timed(row, times[row.point]) if row.point in times else row for row in known]

    @property
    def rows(self) -> list[Row]:
        """Of the points that this search has asked for: the same ones when it is made again."""
        return [row for row in self.every if row.point in self._asked]

    def start(self, name: str, make: Callable[[], list[Point]]) -> list[Point]:
        """The points that a search of this name began with, or would: it publishes others, and may be made again."""
        known = self._memory.starts.get(name)
        if known is None:
            points = make()
            self._memory.begin(name, [str(point) for point in points])
            return points
        return [Point.parse(text) for text in known]

    def macs(self, point: Point) -> int:
        """Of one sample at most, counted once."""
        found = self._macs.get(str(point))
        if found is None:
            found = self._macs[str(point)] = self._tools.macs(point)
        return found

    def score(self, points: Sequence[Point]) -> None:
        self._asked |= {str(point) for point in points}
        known = self._memory.rows("scores", self._scored_on)
        missing = [point for point in dict.fromkeys(points) if str(point) not in known]
        with counting(self._samples * len(missing), "scoring", quiet=self._quiet) as advance:
            for scores in self._scores([*_in_parts(missing)], advance):
                rows = [self._row(score) for score in scores]
                self._memory.remember("scores", self._scored_on, rows)

    def _scores(self, lots: Sequence[Sequence[Point]], advance: OnProgress) -> Iterator[Iterable[Score]]:
        if self._tools.spread is None:
            for lot in lots:
                yield self._tools.score(lot, lambda done, lot=lot: advance(done * len(lot)))  # type: ignore[misc]
            return
        for lot, scores in zip(lots, self._tools.spread(lots)):
            yield scores
            advance(self._samples * len(lot))

    def time(self, points: Sequence[Point]) -> None:
        """Each group beside the full model: a machine that is slower than at first, or faster, shows there too."""
        known = self._memory.rows("times", self._timed_on)
        missing = [point for point in dict.fromkeys(points) if str(point) not in known]
        with counting(len(missing), "timing", quiet=self._quiet, timing=True) as advance:
            for some in _in_parts(missing):
                rows = self._tools.time(some if FULL in some else [*some, FULL])
                first = self._memory.rows("times", self._timed_on).get(str(FULL))
                self._memory.remember("times", self._timed_on, _on_footing(rows, first))
                advance(len(some))

    def _row(self, score: Score) -> Row:
        macs = self.macs(Point.parse(score.name))
        worst = None if score.macs is None else macs  # where the cost depends on the sample
        return Row(score.name, **{"macs": macs, "macs_worst": worst, **score.facts()})


def _on_footing(rows: Iterable[Row], first: Row | None) -> list[Row]:
    """Times as they would have been when the full model was timed first; None: that is now."""
    rows = list(rows)
    now = next((row for row in rows if row.point == str(FULL)), None)
    if first is None or now is None:
        return rows
    assert first.p50_ms is not None
    assert now.p50_ms is not None
    scale = first.p50_ms / now.p50_ms
    return [_scaled(row, scale) for row in rows if row is not now]


def _scaled(row: Row, scale: float) -> Row:
    known: dict[str, Any] = {name: scale * ms for name in TIMES if (ms := getattr(row, name)) is not None}
    return replace(row, **known)


def _timed(row: Row, times: Row) -> Row:
    names = ("engine", "precision", "batch", "threads", "machine", *TIMES)
    return replace(row, **{name: getattr(times, name) for name in names})


def _in_parts(points: Sequence[T]) -> Iterator[Sequence[T]]:
    return (points[start : start + TOGETHER] for start in range(0, len(points), TOGETHER))


# --- the tools of a model ---------------------------------------------------------------------------------------------


def check_engine(model: FlexibleModel, engine: str, device: str) -> None:
    """Refuses an engine that is not here or cannot run the model."""
    if engine not in ENGINES:
        raise RecipeError(f'there is no engine "{engine}".', did_you_mean(engine, ENGINES))
    kind = ENGINES[engine][2][0]
    if engine not in available(kind):
        raise not_installed(engine)
    check_device(engine, device)
    if engine != "torch":
        precision_of(kind, int8=False, bf16=False)
        must_be_exportable(model)


def tools_of(model: FlexibleModel, data: Any, *, engine: str, threads: int, device: str) -> Tools:
    """How the points of a model are counted, scored on some data (on the device), and timed on an engine."""
    costs = PointCosts()

    def score(points: Sequence[Point], on_progress: OnProgress) -> list[Score]:
        with placed(model, device):
            return evaluate(model, data, points, on_progress=on_progress)

    def time(points: Sequence[Point]) -> Ladder:
        known = [Row(str(point), macs=costs.macs(model, point)) for point in points]
        view = with_points(model, points, known)
        return time_points(view, points, data, engine=engine, threads=threads, device=device)

    return Tools(partial(costs.macs, model), score, time)


def with_points(model: FlexibleModel, points: Sequence[Point], known: Iterable[Row] = ()) -> FlexibleModel:
    """The model with these points and a ladder of its own, without a policy; it shares the weights."""
    view = copy.copy(model)
    view.ladder, view.policy = Ladder(known), None
    if model.publishes:
        view.publish(points)
    return view


def time_points(
    model: FlexibleModel, points: Sequence[Point], data: Any, *, engine: str, threads: int, device: str
) -> Ladder:
    """The times of some of a model's points for one sample. An engine gets each as a graph, which is checked on data;
    a point that cannot be exported, other than the full model, is named and left out."""
    how: dict[str, Any] = {"batch": 1, "threads": threads, "rounds": ROUNDS, "seconds": SECONDS}
    if engine == "torch":
        return time_model(model, [str(point) for point in points], device=device, **how)
    made: list[tuple[Choice, Predictor]] = []
    with tempfile.TemporaryDirectory(prefix="supple-search-") as place:
        for number, point in enumerate(points):
            folder = Path(place) / str(number)
            try:
                wanted = Wanted(ENGINES[engine][2][0], points=(point,), chain=False)
                write_graphs(model, "", folder, wanted, Held(val=data))
            except SuppleError as error:
                if point == FULL:
                    raise
                say(f"{point} is left out: {error.cause}")
                continue
            bundle = open_bundle(folder)
            made.append((Choice(engine, bundle, device=device), of_bundle(bundle, engine, threads, device)))
        found = compare(made, **how) if made else Ladder()
        for _, one in made:
            one.close()
    return Ladder(replace(row, folder=None) for row in found)
