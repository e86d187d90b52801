"""Requests at a steady rate, while nodes are killed at random: for demonstrations and benchmarks."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from supple.cluster.members import Facts, Members
from supple.cluster.walk import Walked
from supple.errors import SuppleError

MOST = 64  # requests that are on their way at once


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
