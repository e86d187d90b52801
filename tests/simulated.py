"""Load on the server's queue, played through on a clock of its own: workers that take the time they are said to take,
arrivals by a seed, and a count of what everybody was answered."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from supple.server.dispatch import Dispatcher
from supple.server.jobs import Done, Forget, Job, Kill, Refused, Release, Run, Send, Shorten, Step
from supple.server.requests import Refusal
from supple.server.schedule import Track


def chain(stages: int = 6, ms: float = 8.0, largest: int = 8, gain: float = 0.8, fixed: float = 0.0) -> Track:
    """Exits behind stages that take equally long; a batch takes `gain` of the time of its samples one by one."""
    rows = [tuple([fixed + ms * (1 + gain * (size - 1))] * stages) for size in range(1, largest + 1)]
    points = (*(f"exit={k + 1}" for k in range(stages - 1)), "full")
    return Track("m", points, tuple(rows), chain=True)


def widths(*ms: float, largest: int = 4, gain: float = 0.9) -> Track:
    rows = [tuple(one * (1 + gain * (size - 1)) for one in ms) for size in range(1, largest + 1)]
    points = (*(f"width=0.{k + 1}" for k in range(len(ms) - 1)), "full")
    return Track("m", points, tuple(rows), choice=True)


@dataclass(frozen=True)
class Arrival:
    at: float
    deadline_ms: float
    track: Track
    choices: tuple[int, ...]
    explicit: bool = True
    patience_ms: float | None = None  # until it goes away


@dataclass
class Outcome:
    arrival: Arrival
    place: int | None = None
    reason: str = ""
    at: float = 0.0

    @property
    def answered(self) -> bool:
        return self.place is not None

    @property
    def in_time(self) -> bool:
        return self.answered and 1000 * (self.at - self.arrival.at) <= self.arrival.deadline_ms


@dataclass
class Running:
    run: Run
    target: int
    place: int
    steps: list[Step] = field(default_factory=list)


class Simulation:
    """Runs until everybody has left. noise: what each step's usual time is multiplied by, given the time."""

    def __init__(
        self, arrivals: Iterable[Arrival], workers: int = 1, noise: Callable[[float], float] = lambda now: 1.0
    ):
        self.now, self.noise, self.busy_s = 0.0, noise, 0.0
        self.queue = Dispatcher()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.running: dict[int, Running] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.held: set[int] = set()  # inputs that are not released
        self.places = Counter[int]()
        for number in range(workers):
            self.queue.hire(number, None)
        for number, arrival in enumerate(sorted(arrivals, key=lambda one: one.at), 1):
            self.at(arrival.at, lambda number=number, arrival=arrival: self.arrive(number, arrival))

    def at(self, when: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what))

    def play(self) -> list[Outcome]:
        while self.events:
            self.now, _, what = heapq.heappop(self.events)
            what()
            self.step()
        assert not self.held, "inputs that nobody released"
        assert not self.queue.queue
        return list(self.outcomes.values())

    def arrive(self, number: int, arrival: Arrival) -> None:
        outcome = self.outcomes[number] = Outcome(arrival)
        job = Job(number, arrival.track, arrival.at + arrival.deadline_ms / 1000, arrival.choices)
        job.arrived, job.explicit = arrival.at, arrival.explicit
        try:
            self.queue.admit(job, self.now)
            self.held.add(number)
        except Refusal as why:
            outcome.reason = why.code
            return
        if arrival.patience_ms is not None:
            self.at(arrival.at + arrival.patience_ms / 1000, lambda: self.queue.drop([job]))

    def step(self) -> None:
        self.queue.step(self.now)
        effects, self.queue.effects = self.queue.effects, []
        for effect in effects:
            if isinstance(effect, Send):
                self.send(effect)
            elif isinstance(effect, Done):
                if effect.final:
                    outcome = self.outcomes[effect.job.id]
                    outcome.place, outcome.reason, outcome.at = effect.place, effect.reason, self.now
                    self.places[effect.place] += 1
            elif isinstance(effect, Refused):
                self.outcomes[effect.job.id].reason = effect.why.code
            elif isinstance(effect, Release):
                self.held.remove(effect.job.id)
            else:
                assert not isinstance(effect, Kill), "nothing hangs here"
        wake = self.queue.wake_at(self.now)
        if wake is not None and not (self.events and self.events[0][0] <= wake):
            self.at(wake, lambda: None)

    def send(self, effect: Send) -> None:
        what = effect.what
        if isinstance(what, Shorten):
            running = self.running.get(effect.worker)
            if running is not None and running.run.id == what.id:
                running.target = min(running.target, what.target)
        elif isinstance(what, Run):
            assert effect.worker not in self.running, "a worker was told two things at once"
            first = what.target if what.track.choice else what.place
            self.running[effect.worker] = Running(what, what.target, first)
            self.place(effect.worker)
        else:
            assert isinstance(what, Forget)

    def place(self, worker: int) -> None:
        """Runs the place that comes next."""
        running = self.running[worker]
        run = running.run
        usual = run.track.usual_ms(running.place, running.place, len(run.jobs))
        took = usual * self.noise(self.now)
        self.busy_s += took / 1000
        self.at(self.now + took / 1000, lambda: self.ended(worker, took))

    def ended(self, worker: int, took: float) -> None:
        running = self.running[worker]
        run, place = running.run, running.place
        read = place in run.reads or place >= running.target
        logits = np.zeros((len(run.jobs), 2), np.float32) if read and run.track.points[place] else None
        running.steps.append(Step(place, took, logits))
        final = place >= running.target
        if final or place in run.tells:
            steps, running.steps = running.steps, []
            if final:
                del self.running[worker]
            self.queue.ran(worker, run.id, steps, final, self.now)
        if not final:
            running.place += 1
            self.place(worker)


def poisson(
    track: Track,
    rate: float,
    count: int,
    deadline: Callable[[np.random.Generator], float],
    seed: int = 0,
    **more: object,
) -> list[Arrival]:
    """Arrivals by chance, so many a second."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, count))
    choices = more.pop("choices", tuple(k for k, point in enumerate(track.points) if point))
    return [Arrival(float(at), deadline(rng), track, choices, **more) for at in times]


def capacity(track: Track) -> float:
    """Samples a second that run to the end, in the batches that pay most."""
    last = len(track.points) - 1
    return max(1000 * size / track.usual_ms(0, last, size) for size in track.batches)
