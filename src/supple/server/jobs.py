"""What is in the queue, and what comes out of it: plain data that the dispatcher and those who carry it out share."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from supple.policy.policy import Policy
from supple.server.requests import Array, Refusal
from supple.server.schedule import Sample, Track


@dataclass(eq=False, slots=True)
class Job(Sample):
    """A sample on its way, with all that is known of it."""

    arrived: float = 0.0
    explicit: bool = False  # whether a deadline was asked for
    reason: str = "full"  # why it ends where it may go no further
    policy: Policy | None = None
    every: bool = False  # whether each exit is told
    tries: bool = False  # whether it was let in although it is not expected to be in time
    alone: int = 0  # how deep it would have gone if nobody else were there
    slot: int = -1
    given: int = -1  # the place of the answer in hand
    logits: Array | None = None  # that answer
    compute_ms: float = 0.0
    deaths: int = 0
    broken: bool = False  # the model gave values that are not finite
    running: bool = False
    gone: bool = False  # answered or cancelled; what still runs of it is not read

    @property
    def deepest(self) -> int:
        return self.choices[-1]

    def cut_reason(self) -> str:
        """Why it ended before it had to: others wanted their turn, or its own time was up."""
        if self.given >= self.deepest:
            return self.reason
        return "load" if self.given < self.alone else "deadline"

    def foresee(self, until: int) -> None:
        """Where it will be when what runs of it is over: behind a place, with its answer if that gives one."""
        self.place = len(self.track.points) if self.track.choice else until + 1
        self.answered = until if until in self.choices else self.given


class Run(NamedTuple):
    """What a worker is told: from one place to another, reading the answers of some places, and telling some of them
    before the end."""

    id: int
    track: Track
    jobs: list[Job]
    place: int
    target: int
    reads: frozenset[int]
    tells: frozenset[int]


class Shorten(NamedTuple):
    """A run goes no further than to this place: or, where that lies behind it, ends after the place that it is at."""

    id: int
    target: int


class Forget(NamedTuple):
    jobs: list[int]


class Send(NamedTuple):
    worker: int
    what: Run | Shorten | Forget


class Done(NamedTuple):
    """The job has its answer, of a place for a reason; not final: a better one may follow."""

    job: Job
    place: int
    logits: Array
    reason: str
    final: bool


class Refused(NamedTuple):
    job: Job
    why: Refusal


class Release(NamedTuple):
    """Nobody reads the job's input any more."""

    job: Job


class Kill(NamedTuple):
    """A worker hangs."""

    worker: int


Effect = Send | Done | Refused | Release | Kill


class Step(NamedTuple):
    """One place that a worker ran: what it took of the model's time, and the logits where they were read."""

    place: int
    ms: float
    logits: Array | None


# --- answers of a place -----------------------------------------------------------------------------------------------


def note(jobs: list[Job], place: int, logits: Array) -> None:
    """The answers in hand from now on, one for each job."""
    finite = np.asarray(np.isfinite(logits.reshape(len(logits), -1)).all(1))
    for row, job in enumerate(jobs):
        if job.gone or place not in job.choices:
            continue
        if not finite[row]:
            job.broken = True
            continue
        job.logits, job.given = logits[row], place


def sure_of(jobs: list[Job], place: int) -> list[Job]:
    """Those whose policy says that they stop here."""
    asked = [job for job in jobs if job.policy is not None and not job.gone and job.given == place]
    found = []
    for policy in dict.fromkeys(job.policy for job in asked):
        own = [job for job in asked if job.policy == policy]  # every request has a policy of its own
        assert policy is not None
        number = own[0].choices.index(place)
        stops = policy.stops(number, np.stack([job.logits for job in own if job.logits is not None]))
        found += [job for job, stop in zip(own, stops.tolist()) if stop]
    return found
