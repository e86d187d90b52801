"""The Ladder is the measured table: one row per way to run a model, with what it costs and how well it scores."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from supple import text
from supple.errors import CheckpointError, PointError, SuppleError
from supple.machine import machine, same_instructions, short_names
from supple.point import Point
from supple.text import did_you_mean, millions, quantity, table

if TYPE_CHECKING:
    from supple.tasks import Metric

TIMES = ("p50_ms", "p95_ms", "p99_ms", "iqr_ms")  # the fields that are times
ERRORS = 2.0  # standard errors of their difference by which two scores must differ to be told apart
DEARER = 1.25  # times the cost: from here on it is worth saying that a point gains nothing


@dataclass(frozen=True)
class Row:
    """One measured way to run a model. The first seven fields are its key; None: not measured, or it does not matter.

    A time counts on the machine that it names. A score in fp32 counts everywhere; in int8 and bf16 the machine says
    where it was measured, and it counts on the same instruction set.
    """

    point: str  # a point as text, or the name of a group
    engine: str = "torch"
    precision: str = "fp32"
    batch: int | None = None
    threads: int | None = None
    machine: str | None = None
    folder: str | None = None  # of the graphs, where exported folders are compared

    macs: int | None = None  # one run of this point alone, one sample
    macs_through: int | None = None  # what a policy pays that looked at every point on the way
    macs_worst: int | None = None  # the ceiling, where the cost depends on the data
    params: int | None = None
    branch_params: int | None = None
    extra_params: int | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    iqr_ms: float | None = None  # interquartile range of the calls: how far they spread around p50_ms
    metric: str | None = None
    score: float | None = None
    higher_is_better: bool = True
    n: int | None = None  # samples the score was measured on
    score_error: float | None = None  # standard error of the score, where it is a mean over samples
    lost: float | None = None  # int8, bf16: how much of the score in fp32, on the samples that decided
    lost_error: float | None = None  # its standard error, sample by sample
    deviation: float | None = None  # of the score over the draws of a group
    draws: int | None = None
    extra_metrics: dict[str, float] | None = None  # further figures of the task, such as mse

    @property
    def key(self) -> tuple[object, ...]:
        return (self.point, self.engine, self.precision, self.batch, self.threads, self.machine, self.folder)

    @property
    def is_group(self) -> bool:
        """A mean over points drawn from a group."""
        return self.draws is not None

    @property
    def ceiling(self) -> int | None:
        """The MACs to plan with: the worst case where there is one."""
        return self.macs if self.macs_worst is None else self.macs_worst

    @property
    def merit(self) -> float:
        """The score, signed so that more is always better; NaN: there is none."""
        return math.nan if self.score is None else self.score if self.higher_is_better else -self.score

    def score_on(self, machine: str) -> float | None:
        """The score, if it counts on a machine."""
        own = self.precision == "fp32" or (self.machine is not None and same_instructions(self.machine, machine))
        return self.score if own else None

    def on(self, machine: str) -> "Row":
        """What of this counts on a machine."""
        score = self.score_on(machine)
        unknown: tuple[str, ...] = ("lost", "lost_error", "score_error") if score is None else ()
        unknown += () if self.machine in (None, machine) else TIMES
        return dataclasses.replace(self, score=score, **dict.fromkeys(unknown))  # type: ignore[arg-type]

    def counts(self) -> dict[str, Any]:
        """What was counted, not measured: the same on every machine."""
        names = ("macs", "macs_through", "macs_worst", "params", "branch_params", "extra_params")
        return {name: getattr(self, name) for name in names}

    def beats(self, other: "Row", cost: str) -> bool:
        """Whether this row costs no more, scores no worse, and is not the same in both. Groups stand beside the points,
        and compete neither with them nor with each other: nobody can ask for one.
        """
        if self.is_group or other.is_group:
            return False
        mine, theirs = getattr(self, cost), getattr(other, cost)
        if None in (mine, theirs, self.score, other.score):
            return False
        gain, saving = self.merit - other.merit, theirs - mine
        return gain >= 0 and saving >= 0 and (gain > 0 or saving > 0)

    def is_cheaper(self, other: "Row", cost: str) -> bool:
        """Whether this row really costs less. MACs are counted: any difference is one. Times are told apart where the
        medians differ by more than the mean of the two interquartile ranges, which is where the middle halves of the
        calls no longer overlap; a time of unknown spread is not told apart from any.
        """
        mine, theirs = getattr(self, cost), getattr(other, cost)
        if None in (mine, theirs):
            return False
        if cost == "p50_ms":
            if self.iqr_ms is None or other.iqr_ms is None:
                return False
            return bool(theirs - mine > (self.iqr_ms + other.iqr_ms) / 2)
        return bool(mine < theirs)

    def error_of_difference(self, other: "Row") -> float | None:
        """The standard error of the difference of two scores, as if they came from different samples. Two points are
        scored on the same ones, and right and wrong on many of them together, so that the true error is smaller; but
        a ladder does not hold the answers to each sample, and this errs on the careful side. None: not known.
        """
        mine, theirs = self._error(), other._error()
        return None if mine is None or theirs is None else math.hypot(mine, theirs)

    def _error(self) -> float | None:
        """Of a share p of n samples, sqrt(p (1 - p) / n), with one right and one wrong sample added (Agresti and
        Caffo), so that 100 % of ten samples has an error too. Of other means, as it was measured.
        """
        from supple.tasks import get_metric

        metric = get_metric(self.metric)
        if metric.unit != "%" or metric.each is None or self.score is None or self.n is None or self.n < 1:
            return self.score_error
        share = (self.n * self.score + 1) / (self.n + 2)
        return math.sqrt(max(0.0, share * (1 - share)) / (self.n + 2))

    def to_json(self) -> dict[str, Any]:
        accuracy = self.score if self.metric == "accuracy" else None
        return {**dataclasses.asdict(self), "accuracy": accuracy}


class Ladder:
    """Rows, cheapest first. data: what the scores are of, where that is not a run's own test data."""

    def __init__(self, rows: Iterable[Row] = (), data: str | None = None) -> None:
        self._rows = {row.key: row for row in rows}
        self.data = data

    @property
    def rows(self) -> tuple[Row, ...]:
        infinite = float("inf")
        places = [infinite if row.macs is None else row.macs for row in self._rows.values()]
        return tuple(row for _, row in sorted(zip(places, self._rows.values()), key=lambda pair: pair[0]))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, row: Row) -> None:
        """Adds a row, or replaces the one with the same key."""
        self._rows[row.key] = row

    def update(
        self, point: str, engine: str = "torch", precision: str = "fp32", machine: str | None = None, **facts: Any
    ) -> None:
        """Writes facts that do not depend on a batch (counts, scores) into every row of a point; those that depend on
        the machine, as scores in int8 and bf16 do, into the rows of that machine.
        """
        found = [row for row in self._rows.values() if row.key[:3] == (point, engine, precision)]
        found = [row for row in found if machine in (None, row.machine)]
        for row in found or [Row(point, engine, precision, machine=machine)]:
            self.put(dataclasses.replace(row, **facts))

    def time(
        self,
        point: str,
        *,
        batch: int,
        threads: int,
        machine: str,
        engine: str = "torch",
        precision: str = "fp32",
        **times: float,
    ) -> None:
        """Adds a timed row, with the facts already known of its point there."""
        key: dict[str, Any] = {"engine": engine, "precision": precision, "batch": batch, "threads": threads}
        known = self._known(point, engine, precision, machine)
        self.put(dataclasses.replace(known, machine=machine, **key, **times))  # type: ignore[arg-type]
        for where in (None, machine):
            self._rows.pop((point, engine, precision, None, None, where, None), None)

    def _known(self, point: str, engine: str, precision: str, machine: str) -> Row:
        """What holds for a point on an engine: scores of fp32 for every engine, other ones for their own; counts of any
        precision."""
        rows = [row.on(machine) for row in self._rows.values() if row.point == point]
        mine = [row for row in rows if row.precision == precision and (precision == "fp32" or row.engine == engine)]
        first = sorted(mine, key=lambda row: (row.engine != engine, row.score is None))
        return first[0] if first else Row(point, **(rows[0].counts() if rows else {}))

    def on(self, machine: str) -> "Ladder":
        """What counts on a machine: times of its own, and scores that hold there."""
        return Ladder(row.on(machine) for row in self)

    def where(self, **key: object) -> "Ladder":
        """The rows whose fields have these values: `ladder.where(batch=1, threads=2)`."""
        names = [field.name for field in dataclasses.fields(Row)]
        for name in key:
            if name not in names:
                raise PointError(f'a ladder has no column "{name}".', did_you_mean(name, names))
        return Ladder(row for row in self if all(getattr(row, name) == value for name, value in key.items()))

    def pareto(self, cost: str = "macs") -> list[Row]:
        """The points that no other one beats."""
        rows = [row for row in self if getattr(row, cost) is not None and row.score is not None and not row.is_group]
        return [row for row in rows if not any(other.beats(row, cost) for other in rows)]

    def best_under(self, *, ms: float | None = None, macs: float | None = None, **key: object) -> Point:
        """The best-scoring point within a limit: `ms` against the measured p95, `macs` against the worst case.

        `key` narrows the rows (batch=1, threads=2, engine="torch"). Times count for batch 1, unless another batch is
        asked for, and only if they were measured on this machine. Where there is fp32, other precisions are to be
        asked for; their scores count on the instruction set that they were measured with.
        """
        if ms is None and macs is None:
            raise PointError("best_under needs a limit.", "Say ms=5, or macs=20e6.")
        if ms is not None:
            key.setdefault("batch", 1)
        here = str(key.get("machine") or machine())
        rows = [row.on(here) for row in self.where(**key) if _is_point(row.point)]
        if ms is not None:
            rows = [row for row in rows if row.p95_ms]
            if not rows:
                cause = f"this ladder has no times of this machine for batch {key['batch']}."
                raise PointError(cause, "Measure them first: supple bench RUN.")
        rows = rows if "precision" in key else [row for row in rows if row.precision == "fp32"] or rows
        fits = [row for row in rows if _within(row.p95_ms, ms) and _within(row.ceiling, macs)]
        if not fits:
            limit = f"{ms:g} ms" if ms is not None else text.macs(macs)
            raise PointError(f"no point of this ladder runs within {limit}.", f"The cheapest is {self.cheapest()}.")

        def rank(row: Row) -> tuple[float, float]:
            cost = (row.p95_ms if ms is not None else row.ceiling) or 0
            # Without scores, the most expensive point that fits is the best guess.
            return (row.merit, -cost) if row.score is not None else (-math.inf, cost)

        return Point.parse(max(fits, key=rank).point)

    def cheapest(self) -> Point:
        for row in self:
            if _is_point(row.point):
                return Point.parse(row.point)
        raise PointError("this ladder has no points.", "Measure them first: supple evaluate RUN.")

    def to_json(self) -> dict[str, Any]:
        named = {} if self.data is None else {"data": self.data}
        return {**named, "points": [row.to_json() for row in self]}

    def to_pandas(self) -> Any:
        """A data frame, a column for every field of `Row` ([table])."""
        try:
            from pandas import DataFrame
        except ImportError:
            cure = "Install it: pip install 'supple[table]'."
            raise SuppleError("a data frame needs pandas, which is not installed.", cure) from None
        return DataFrame([dataclasses.asdict(row) for row in self])

    @classmethod
    def from_json(cls, document: Any) -> "Ladder":
        kinds = {field.name: field.type for field in dataclasses.fields(Row)} | {"extra_metrics": dict | NoneType}
        try:
            rows = [Row(**{k: v for k, v in row.items() if k in kinds}) for row in document["points"]]
            for name, value in (pair for row in rows for pair in vars(row).items()):
                figures = value.values() if isinstance(value, dict) else ()
                if not _fits(value, kinds[name]) or not all(isinstance(figure, (int, float)) for figure in figures):
                    raise TypeError(f"{name} is {value!r}")
            return cls(rows)
        except (TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"this is not a valid ladder ({error}).", "Measure it again: supple evaluate RUN."
            ) from None

    def __str__(self) -> str:
        """The table: cheapest first, dominated points marked."""
        from supple.tasks import get_metric

        timed = any(row.p50_ms is not None for row in self)
        metric = next((row.metric for row in self if row.metric), None)
        several = len({(row.engine, row.precision) for row in self}) > 1
        header = ["point", *(["engine"] if several else []), "MMACs", "params"]
        header += ["batch", "threads", "ms p50 / p95"] if timed else []
        machines = short_names({row.machine for row in self if row.machine and row.p50_ms is not None})
        header += ["machine"] if len(machines) > 1 else []
        further = list(dict.fromkeys(name for row in self for name in row.extra_metrics or ()))
        header += [get_metric(name).title for name in ([metric] if metric else []) + further]
        lines = []
        for row in sorted(self, key=lambda row: (row.batch is None, row.batch or 0, row.threads or 0)):
            engine = [f"{row.engine} {row.precision}"] if several else []
            line = [row.point, *engine, millions(row.macs), quantity(row.params)]
            if timed:
                line += [_or_dash(row.batch), _or_dash(row.threads), _times(row)]
            if len(machines) > 1:
                line += [machines.get(row.machine or "", "-")]
            if metric:
                line += [_score(row, get_metric(row.metric).scale)]
            line += [_short((row.extra_metrics or {}).get(name), get_metric(name)) for name in further]
            remark = self.remark(row)
            lines.append([*line, f"-  {remark}" if remark else ""])
        return table([*header, ""], lines, left=(0, *([1] if several else []), len(header)))

    def remark(self, row: Row) -> str:
        """The verdict on a row among those of its configuration: by its time where it was timed, else by its MACs."""
        rivals = [other for other in self if other.key[1:] == row.key[1:] and other.metric == row.metric]
        return verdict(row, rivals, "macs" if row.p50_ms is None else "p50_ms")

    def plot(self, path: str | Path) -> Path:
        """Draws score against MACs (and against measured ms, where there are times)."""
        from supple.reporting.plots import draw_ladder

        return draw_ladder(self, Path(path))


def verdict(row: Row, rivals: Iterable[Row], cost: str) -> str:
    """What may be said against a row beside others, or nothing. "worse": the other one really costs less (see
    `Row.is_cheaper`) or has exactly the same MACs, and scores higher by more than ERRORS standard errors of the
    difference. "no better": it costs less by a factor of DEARER or more, and this one, which does not score higher,
    cannot be told from it.
    """
    worse, no_better = [], []
    for other in rivals:
        if not other.beats(row, cost):
            continue
        gap, error = abs(other.score - row.score), other.error_of_difference(row)  # type: ignore[operator]
        if gap and error is not None and gap > ERRORS * error:
            if other.is_cheaper(row, cost) or (cost == "macs" and other.macs == row.macs):
                worse.append(other)
        elif other.is_cheaper(row, cost) and getattr(row, cost) >= DEARER * getattr(other, cost):
            no_better += [other] if error is not None or not gap else []
    if not worse and not no_better:
        return ""
    winner = max(worse or no_better, key=lambda other: (other.merit, -getattr(other, cost)))
    if worse:
        return f"worse than {winner.point} at {'higher' if winner.is_cheaper(row, cost) else 'the same'} cost"
    within = "" if winner.score == row.score else " within the error,"
    return f"no better than {winner.point}{within} at higher cost"


def _is_point(text: str) -> bool:
    try:
        Point.parse(text)
    except PointError:
        return False
    return True


def _fits(value: object, kind: Any) -> bool:
    """Whether a value read from JSON may stand in a field of this type: any number where a number belongs."""
    if isinstance(value, bool):
        return kind is bool
    numeric = isinstance(0, kind) or isinstance(0.0, kind)
    return isinstance(value, kind) or (numeric and isinstance(value, (int, float)))


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value <= limit)


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _times(row: Row) -> str:
    return "-" if row.p50_ms is None or row.p95_ms is None else f"{row.p50_ms:.3g} / {row.p95_ms:.3g}"


def _short(value: float | None, metric: "Metric") -> str:
    return "-" if value is None else f"{metric.scale * value:{'.1f' if metric.unit else '.4g'}}"


def _score(row: Row, scale: float) -> str:
    if row.score is None:
        return "-"
    spread = f" ± {scale * row.deviation:.1f}" if row.deviation is not None else ""
    return f"{scale * row.score:.1f}{spread}"
