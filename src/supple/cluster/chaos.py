"""Requests at a steady rate while nodes are killed at random, and what is shown of it: a line for every few seconds."""

import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from supple.cluster import remote
from supple.cluster.members import Facts, Members
from supple.cluster.session import Session
from supple.cluster.walk import Walked
from supple.data.loaders import as_batches
from supple.errors import SuppleError
from supple.opening import open_source
from supple.text import one_line

MOST = 64  # requests that are on their way at once
EVERY_S = 5.0  # between lines
HEADER = "    s  answered  failed  killed  up  correct %  layers  ms p50     p95     max  replays"


@dataclass(frozen=True)
class Answered:
    number: int  # of the request, from 0
    at_s: float  # since the first request
    answer: Walked | SuppleError


@dataclass(frozen=True)
class Killed:
    name: str
    at_s: float


def storm(
    walk: Callable[[Any], Walked],
    inputs: Iterable[Any],
    members: Members,
    kill: Callable[[Facts], None],
    *,
    rate: float,
    kill_every_s: float = 0.0,
    most_kills: int | None = None,
    rng: random.Random | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Answered | Killed]:
    """Sends every input at its time, whether those before are answered or not; yields what happens, as it does."""
    happened: SimpleQueue[Answered] = SimpleQueue()
    rng, began, kills, open_ = rng or random.Random(0), clock(), 0, 0

    def request(number: int, x: Any) -> None:
        try:
            answer: Walked | SuppleError = walk(x)
        except SuppleError as error:
            answer = error
        except Exception as error:
            answer = SuppleError(f"{type(error).__name__}: {error}")
        happened.put(Answered(number, clock() - began, answer))

    def victim() -> Facts | None:
        up = [member.facts for member in members.everybody().values() if member.up]
        return rng.choice(up) if up else None

    with ThreadPoolExecutor(MOST, "request") as pool:
        for number, x in enumerate(inputs):
            while True:
                now = clock() - began
                due = kill_every_s > 0 and now >= (kills + 1) * kill_every_s
                if due and (most_kills is None or kills < most_kills):
                    chosen = victim()
                    if chosen is not None:
                        kill(chosen)
                        kills += 1
                        yield Killed(chosen.name, now)
                left = number / rate - now
                if left <= 0:
                    break
                try:
                    yield happened.get(timeout=min(left, 0.05))
                    open_ -= 1
                except Empty:
                    pass
            pool.submit(request, number, x)
            open_ += 1
        for _ in range(open_):
            yield happened.get()


@dataclass
class Tally:
    """What happened so far."""

    answered: list[tuple[Walked, bool]] = field(default_factory=list)  # with whether it is correct
    failed: int = 0
    killed: int = 0
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        times = sorted(walked.elapsed_ms for walked, _ in self.answered)
        found: dict[str, Any] = {"answered": len(self.answered), "failed": self.failed, "killed": self.killed}
        if times:
            found |= {"accuracy": statistics.fmean(hit for _, hit in self.answered)}
            found |= {"layers": statistics.fmean(len(walked.layers) for walked, _ in self.answered)}
            found |= {f"p{q}_ms": times[min(len(times) - 1, q * len(times) // 100)] for q in (50, 95, 99)}
            found |= {"max_ms": times[-1], "replays": sum(walked.replays for walked, _ in self.answered)}
        return found

    def line(self, second: float, up: int) -> str:
        found = self.to_json()
        counts = f"{second:5.0f}  {len(self.answered):8}  {self.failed:6}  {self.killed:6}  {up:2}"
        if not self.answered:
            return counts
        rest = f"{100 * found['accuracy']:9.1f}  {found['layers']:6.2f}  {found['p50_ms']:6.1f}  {found['p95_ms']:6.1f}"
        return f"{counts}  {rest}  {found['max_ms']:6.1f}  {found['replays']:7}"


def lines(
    session: Session,
    tally: Tally,
    for_s: float,
    *,
    rate: float,
    kill_every_s: float,
    deadline_ms: float | None,
    seed: int,
) -> Iterator[str]:
    """Requests with test samples for so many seconds; all is counted in the tally, a line tells of the last seconds."""
    drawn = islice(samples(session.folder, seed), max(1, round(for_s * rate)))
    targets: list[int] = []

    def inputs() -> Iterator[Any]:
        for x, target in drawn:
            targets.append(target)
            yield x

    yield HEADER
    shown, part = EVERY_S, Tally()
    walk = partial(session.walker.walk, deadline_ms=deadline_ms)
    how: dict[str, Any] = {"rate": rate, "kill_every_s": kill_every_s, "rng": random.Random(seed)}
    for event in storm(walk, inputs(), session.members, remote.kill, **how):
        while event.at_s >= shown:
            yield part.line(shown, _up(session))
            shown, part = shown + EVERY_S, Tally()
        for each in (tally, part):
            if not isinstance(event, Answered):
                each.killed += 1
            elif isinstance(event.answer, Walked):
                each.answered.append((event.answer, int(event.answer.logits[0].argmax()) == targets[event.number]))
            else:
                each.failed, each.problem = each.failed + 1, one_line(event.answer)
    yield part.line(min(shown, for_s), _up(session))
    yield f"\nall together\n{tally.line(for_s, _up(session))}"


def _up(session: Session) -> int:
    return sum(member.up for member in session.members.everybody().values())


def samples(run: Path, seed: int = 0) -> Iterator[tuple[Any, int]]:
    """Test samples of a run, one by one as batches of one, with their targets; without end."""
    data = as_batches(open_source(run).data(None, "test"))
    while True:
        for x, y in data.drawn(1024, 64, seed):
            yield from ((x[place : place + 1], int(y[place])) for place in range(len(y)))
        seed += 1
