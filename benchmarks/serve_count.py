"""What became of many requests, as figures: pure functions over outcomes."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from serve_client import Outcome

LAG_MS = 5.0  # a run counts only if sends are late by less than this at the 99th percentile
REFUSED = (429, 503)


def arrivals(rate: float, count: int, seconds: float, seed: int, start: float = 0.0) -> list[float]:
    """When requests are due: a Poisson process, which ends at a count or a time, whichever comes first."""
    if rate <= 0:
        raise SystemExit(f"A rate of {rate:g} requests per second sends nothing.")
    due = start + np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    return [float(moment) for moment in due[due < start + seconds]]


@dataclass(frozen=True)
class Phase:
    """A stretch of a run with a rate of its own."""

    name: str
    rate: float
    seconds: float


def phased(phases: Sequence[Phase], seed: int) -> tuple[list[float], list[float]]:
    """When requests are due, phase after phase, and when each phase begins; the last of these is the end."""
    due: list[float] = []
    begins = [0.0]
    for number, phase in enumerate(phases):
        most = int(2 * phase.rate * phase.seconds + 100)
        due += arrivals(phase.rate, most, phase.seconds, seed + number, begins[-1])
        begins.append(begins[-1] + phase.seconds)
    return due, begins


def between(outcomes: Iterable[Outcome], start: float, begin: float, end: float) -> list[Outcome]:
    """Those that were due in a stretch of a run that started at `start`."""
    return [one for one in outcomes if begin <= one.due - start < end]


def read(outcome: Outcome) -> dict[str, Any]:
    """The answer or the error in a body; empty where there is none."""
    try:
        document = json.loads(outcome.body)
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    if isinstance(found := document.get("predictions"), list) and found:
        return dict(found[0])
    error = document.get("error")
    return error if isinstance(error, dict) else document


def became(outcome: Outcome) -> str:
    """in time, late, rejected or lost."""
    if outcome.status == 200:
        deadline = outcome.request.deadline_ms
        return "late" if deadline is not None and outcome.took_ms > deadline else "in time"
    if outcome.status == 504:
        return "late"
    return "rejected" if outcome.status in REFUSED else "lost"


@dataclass(frozen=True)
class Figures:
    """Of a run. Times in ms, from when a request was due until its answer was complete."""

    sent: int
    in_time: int
    late: int
    rejected: int
    lost: int
    answered: int  # with 200
    right: int
    answer_ms: tuple[float, float] | None  # p50 and p99
    refusal_ms: tuple[float, float, float] | None  # p50, p99 and the largest
    late_by_ms: tuple[float, float] | None  # p50 and the largest, of answers with 200
    lag_ms: float  # p99
    points: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)  # everything but 200

    @property
    def share(self) -> float:
        return self.in_time / max(1, self.sent)

    @property
    def accuracy(self) -> float:
        """Of the answers given."""
        return self.right / max(1, self.answered)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "share_in_time": self.share, "accuracy": self.accuracy}


def figures(outcomes: Sequence[Outcome]) -> Figures:
    counts = Counter(map(became, outcomes))
    documents = [(one, read(one)) for one in outcomes]
    answers = [(one, found) for one, found in documents if one.status == 200]
    others = [(one, found) for one, found in documents if one.status != 200]
    refusals = [one.took_ms for one in outcomes if became(one) == "rejected"]
    late_by = [one.took_ms - (one.request.deadline_ms or 0) for one, _ in answers if became(one) == "late"]
    at = quantiles([one.took_ms for one, _ in answers], 50, 99)
    return Figures(
        sent=len(outcomes),
        in_time=counts["in time"],
        late=counts["late"],
        rejected=counts["rejected"],
        lost=counts["lost"],
        answered=len(answers),
        right=sum(found.get("label") == one.request.truth for one, found in answers),
        answer_ms=(at[0], at[1]) if at else None,
        refusal_ms=(*quantiles(refusals, 50, 99), max(refusals)) if refusals else None,  # type: ignore[arg-type]
        late_by_ms=(quantiles(late_by, 50)[0], max(late_by)) if late_by else None,
        lag_ms=quantiles([one.lag_ms for one in outcomes], 99)[0] if outcomes else 0.0,
        points=in_order(Counter(str(found.get("point")) for _, found in answers)),
        reasons=in_order(Counter(str(found.get("reason")) for _, found in answers)),
        codes=in_order(Counter(trouble(one, found) for one, found in others)),
    )


def trouble(outcome: Outcome, found: dict[str, Any]) -> str:
    return outcome.trouble if outcome.status is None else f"{outcome.status} {found.get('code', '')}".strip()


def in_order(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def quantiles(values: Sequence[float], *percents: float) -> tuple[float, ...]:
    """Empty of nothing."""
    return tuple(float(found) for found in np.percentile(values, percents)) if values else ()


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A figure with its goal; met None: there is no goal."""

    what: str
    figure: str
    goal: str = ""
    met: bool | None = None


def table(rows: Iterable[Row], title: str = "") -> str:
    lines = [f"| {title} | figure | goal |", "|---|---|---|"]
    for row in rows:
        missed = ": **missed**" if row.met is False else ""
        lines.append(f"| {row.what} | {row.figure} | {row.goal}{missed} |")
    return "\n".join(lines)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def at_least(what: str, share: float, goal: float) -> Row:
    return Row(what, f"{100 * share:.2f} %", f"at least {100 * goal:g} %", share >= goal)


def lag_row(found: Figures) -> Row:
    return Row(
        "sends late by, p99",
        f"{found.lag_ms:.2f} ms",
        f"under {LAG_MS:g} ms, or the run does not count",
        found.lag_ms < LAG_MS,
    )


def about(found: Figures) -> list[Row]:
    """What every run says of itself."""
    rows = [
        Row(
            "answered in time, late, rejected, lost",
            f"{found.in_time}, {found.late}, {found.rejected}, {found.lost} of {found.sent}",
        ),
        Row("accuracy of the answers given", percent(found.accuracy)),
    ]
    if found.answer_ms is not None:
        rows.append(Row("answers, p50 and p99", "{:.1f}, {:.1f} ms".format(*found.answer_ms)))
    if found.refusal_ms is not None:
        rows.append(Row("refusals, p50, p99, largest", "{:.1f}, {:.1f}, {:.1f} ms".format(*found.refusal_ms)))
    if found.late_by_ms is not None:
        rows.append(Row("late answers were late by, p50 and largest", "{:.1f}, {:.1f} ms".format(*found.late_by_ms)))
    rows.append(Row("points", histogram(found.points)))
    rows.append(Row("reasons", histogram(found.reasons)))
    if found.codes:
        rows.append(Row("not 200", ", ".join(f"{what}: {count}" for what, count in found.codes.items())))
    return [*rows, lag_row(found)]


def histogram(counts: dict[str, int]) -> str:
    total = max(1, sum(counts.values()))
    return ", ".join(f"{name} {100 * count / total:.0f} %" for name, count in counts.items()) or "none"


def grown(values: Sequence[float]) -> float:
    """How much a series has grown, from the median of its first fifth to that of its last."""
    fifth = max(1, len(values) // 5)
    return float(np.median(values[-fifth:]) - np.median(values[:fifth])) if values else 0.0
