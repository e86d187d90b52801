"""The workers as the queue knows them: what each is at, and when it is expected to be done. Pure functions of that, of
the machine's pace and of the time.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from supple.server.jobs import Job, Run
from supple.server.schedule import Pace

HUNG_S, HUNG = 10.0, 30.0  # a command that takes this long, and so many times what is expected, will not end


@dataclass(eq=False, slots=True)
class Busy:
    """What a worker is at."""

    run: Run
    began: float
    target: int  # as far as it goes, as far as is known here
    ms: float = 0.0


@dataclass(eq=False, slots=True)
class Hand:
    """One worker, as it is known here."""

    up_at: float | None  # when it is expected to be ready; None: it is
    busy: Busy | None = None
    killed: bool = False
    forgotten: list[int] = field(default_factory=list)


Hands = Mapping[int, Hand]


def expected_s(busy: Busy, pace: Pace) -> float:
    run = busy.run
    return pace.one(run.track.usual_ms(run.place, max(run.place, busy.target), len(run.jobs))) / 1000


def hung_at(busy: Busy, pace: Pace) -> float:
    """From when on it is taken for lost."""
    return busy.began + max(HUNG_S, HUNG * expected_s(busy, pace))


def free_at(hands: Hands, pace: Pace, now: float) -> dict[int, float]:
    """When each worker is expected to be done; one that is overdue, in as much time again."""
    found = {}
    for worker, hand in hands.items():
        if hand.up_at is not None:
            found[worker] = max(now, hand.up_at)
        elif hand.busy is None:
            found[worker] = now
        else:
            run, began = hand.busy.run, hand.busy.began
            whole = pace.one(run.track.usual_ms(run.place, run.target, len(run.jobs))) / 1000
            found[worker] = max(now, began + expected_s(hand.busy, pace), now + (now - began - whole))
    return found


def cut_short(hands: Hands, pace: Pace, now: float) -> tuple[dict[int, float], dict[Job, int]] | None:
    """When each worker would be free if what runs ended after the place that it is at, and where its jobs would go on.
    None: nothing that runs can end sooner."""
    free, places = free_at(hands, pace, now), dict[Job, int]()
    for worker, hand in hands.items():
        busy = hand.busy
        if busy is None or busy.run.track.choice or busy.target <= busy.run.place:
            continue
        track, size, place = busy.run.track, len(busy.run.jobs), busy.run.place
        spent = 1000 * (now - busy.began)
        while place < busy.target and pace.mean * track.usual_ms(busy.run.place, place, size) <= spent:
            place += 1
        if place >= busy.target:
            continue
        longest = max(track.usual_ms(k, k, size) for k in range(place, busy.target + 1))
        free[worker] = min(free[worker], now + pace.one(longest) / 1000)
        places |= {job: place + 1 for job in busy.run.jobs if not job.gone}
    return (free, places) if places else None


@contextmanager
def as_if_cut(places: Mapping[Job, int]) -> Iterator[None]:
    """Within it, what runs ends before these places."""
    before = {job: job.place for job in places}
    for job, place in places.items():
        job.foresee(place - 1)
    try:
        yield
    finally:
        for job, place in before.items():
            job.foresee(place - 1)


def later(free: Mapping[int, float], ms: float) -> dict[int, float]:
    """With so much kept of every deadline: as if each worker were free that much later."""
    return {worker: time + ms / 1000 for worker, time in free.items()}
