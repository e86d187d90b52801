"""Who is let in, what runs next and how deep: pure functions of the queue, the costs and the time. Nothing here waits,
measures or sends.

Samples that are at the same place of the same track, and go to the same one, form chunks, earliest deadline first. A
plan runs its chunks one after the other on each worker. It holds if every chunk is expected to end before the first
deadline in it; what is expected follows the machine (`Pace`). A plan that holds still holds when its first chunk has
run and nobody came, so whoever was let in is answered in time as long as the costs are right.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from supple.inference.walk import ends_late

PAYS = 0.97  # of the time per sample in a smaller batch: a larger one must save at least the rest


@dataclass(frozen=True, eq=False)
class Track:
    """A list of places that samples of one model go along. Along a chain each place continues from the one before; a
    cascade runs a point from the start at each; a choice runs one of its points and is done."""

    model: str
    points: tuple[str | None, ...]  # that each place answers; None: nobody
    ms: tuple[tuple[float, ...], ...]  # usual ms of each place, for a batch of 1, 2, 3, ...
    choice: bool = False
    chain: bool = False
    _upto: tuple[tuple[float, ...], ...] = field(init=False, repr=False)
    batches: tuple[int, ...] = field(init=False)  # the sizes that pay, smallest first

    def __post_init__(self) -> None:
        upto, largest = [], [0.0] * (len(self.points) + 1)
        for row in self.ms:
            sums = [0.0]
            for one in row:
                sums.append(one if self.choice else sums[-1] + one)
            largest = [max(pair) for pair in zip(sums, largest)]  # a larger batch never takes less
            upto.append(tuple(largest))
        object.__setattr__(self, "_upto", tuple(upto))
        sizes = [1]
        for power in range(1, len(upto).bit_length()):
            size, last = 2**power, sizes[-1]
            if upto[size - 1][-1] / size <= PAYS * upto[last - 1][-1] / last:
                sizes.append(size)
        object.__setattr__(self, "batches", tuple(sizes))

    def usual_ms(self, place: int, target: int, size: int) -> float:
        """From before a place to behind another one, for a batch."""
        upto = self._upto[min(size, len(self._upto)) - 1]
        return upto[target + 1] if self.choice else upto[target + 1] - upto[place]

    def steps(self, place: int, target: int) -> int:
        return 1 if self.choice else target + 1 - place


class Pace(NamedTuple):
    """How the machine is doing: how many times their usual time steps take on average, how much more at most a single
    one does, and what every command takes beside the model."""

    mean: float = 1.0
    deviation: float = 0.0
    overhead_ms: float = 0.0

    def ms(self, usual: float, squares: float, commands: int) -> float:
        """What several steps are expected to take at most, with few exceptions: what is above the mean for one is made
        up for by another, so that deviations add up as their squares do."""
        return self.mean * usual + self.deviation * math.sqrt(squares) + self.overhead_ms * commands

    def one(self, usual: float) -> float:
        return self.ms(usual, usual * usual, 1)


@dataclass(eq=False, slots=True)
class Sample:
    """What decisions need to know of a sample."""

    id: int
    track: Track
    deadline: float  # on the clock, in seconds; there always is one
    choices: tuple[int, ...]  # places that may answer it, in order; the last one is as deep as it may go
    place: int = 0  # that runs next
    answered: int = -1  # the place of the answer that it has
    worker: int | None = None  # that holds what it has come to
    ready: bool = True  # whether its input is there

    @property
    def started(self) -> bool:
        return self.place > 0

    def target(self, depth: float) -> int:
        """How deep it goes at a depth from 0, as far as it must, to 1, as far as it may."""
        return self.choices[int(depth * (len(self.choices) - 1) + 0.5)]

    def cheapest(self) -> int:
        """The place of the first answer it can have; the one in hand, if there is one."""
        return self.answered if self.answered >= 0 else self.choices[0]


@dataclass(eq=False, slots=True)
class Chunk:
    """Samples that run together, from one place to another."""

    track: Track
    place: int
    target: int
    worker: int | None
    deadline: float  # the earliest
    samples: list[Sample]

    def usual_ms(self) -> float:
        return self.track.usual_ms(self.place, self.target, len(self.samples))


class Plan(NamedTuple):
    """Chunks in the order in which they run, and how well that goes."""

    chunks: list[Chunk]
    late: float | None  # the deadline of the first chunk that is expected to end too late; None: there is none
    waiting_ms: float  # until each sample has its answer, added up over those that are in time


Work = list[tuple[Sample, int]]  # samples by deadline, and where each goes


def work_at(samples: Iterable[Sample], depths: Mapping[int, float] | float, own: Mapping[int, int] | None) -> Work:
    """Who has something to run, and up to where: at most to what it can reach alone in its own time."""
    found = []
    for sample in samples:
        depth = depths if isinstance(depths, float) else depths[sample.id]
        target = sample.target(depth)
        if own is not None:
            target = min(target, own[sample.id])
        target = max(target, sample.cheapest())
        if target >= sample.place and target > sample.answered:
            found.append((sample, target))
    return found


def planned(work: Work, largest: int, free: Mapping[int, float], pace: Pace) -> Plan:
    """The chunks of at most so many samples, and whether every one is in time. free: when each worker is done with
    what it does now; a chunk that has not begun goes to whoever is free first."""
    chunks: list[Chunk] = []
    filling: dict[tuple[Track, int, int, int | None], Chunk] = {}
    for sample, target in work:
        track = sample.track
        place = 0 if track.choice else sample.place
        key = track, place, target, sample.worker
        chunk = filling.get(key)
        if chunk is None or len(chunk.samples) >= min(largest, track.batches[-1]):
            chunk = filling[key] = Chunk(track, place, target, sample.worker, sample.deadline, [])
            chunks.append(chunk)
        chunk.samples.append(sample)
    spent = dict.fromkeys(free, (0.0, 0.0, 0))
    ends, waiting = dict(free), 0.0
    for chunk in chunks:
        worker = chunk.worker
        if worker is None or worker not in ends:
            worker = min(ends, key=ends.__getitem__)
        usual = chunk.usual_ms()
        total, squares, commands = spent[worker]
        spent[worker] = total, squares, commands = total + usual, squares + usual * usual, commands + 1
        end = ends[worker] = free[worker] + pace.ms(total, squares, commands) / 1000
        if end > chunk.deadline:
            return Plan(chunks, chunk.deadline, math.inf)
        waiting += len(chunk.samples) * end
    return Plan(chunks, None, 1000 * waiting)


def sizes_for(work: Work) -> list[int]:
    """The sizes of batches worth trying, the one that gets most done first."""
    if not work:
        return [1]
    paying = max(sample.track.batches[-1] for sample, _ in work)
    most = 1
    while most < min(paying, len(work)):
        most *= 2
    sizes = [most]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes


def best_plan(work: Work, free: Mapping[int, float], pace: Pace) -> Plan:
    """Of the plans that hold, for batches of some sizes, the one with the least waiting; else the one that holds for
    longest."""
    plans = [planned(work, size, free, pace) for size in sizes_for(work)]
    return min(plans, key=lambda plan: (plan.late is not None, plan.waiting_ms if plan.late is None else -plan.late))


def by_deadline(samples: Iterable[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda sample: (sample.deadline, sample.id))


# --- who is let in ----------------------------------------------------------------------------------------------------


def own_ms(sample: Sample, target: int, pace: Pace) -> float:
    """What it takes alone."""
    return pace.one(sample.track.usual_ms(sample.place, target, 1))


def own_target(sample: Sample, free: float, pace: Pace) -> int:
    """How deep it gets alone in its own time; the cheapest answer, if not even that is in time."""
    left = 1000 * (sample.deadline - free)
    if not ends_late(own_ms(sample, sample.choices[-1], pace), left):
        return sample.choices[-1]
    cheapest = sample.cheapest()
    inside = [place for place in sample.choices if place >= cheapest]
    reached = bisect_right(inside, left, key=lambda place: own_ms(sample, max(place, sample.place), pace))
    return inside[max(0, reached - 1)] if inside else cheapest


def admits(sample: Sample, queue: Sequence[Sample], free: Mapping[int, float], pace: Pace) -> bool:
    """Whether a new sample is answered in time at its cheapest, and everybody else still is. queue: by deadline."""
    if not free or ends_late(own_ms(sample, sample.cheapest(), pace), 1000 * (sample.deadline - min(free.values()))):
        return False
    place = bisect_right(queue, sample.deadline, key=lambda one: one.deadline)
    work = work_at([*queue[:place], sample, *queue[place:]], 0.0, None)
    return any(planned(work, size, free, pace).late is None for size in sizes_for(work))


def retry_after_s(queue: Sequence[Sample], free: Mapping[int, float], pace: Pace, now: float) -> float:
    """When what waits now is expected to be done, at its cheapest."""
    work = work_at(queue, 0.0, None)
    usual = sum(s.track.usual_ms(s.place, target, 1) for s, target in work) / max(1, len(free))
    busy = max(0.0, min(free.values(), default=now) - now)
    return busy + pace.mean * usual / 1000


# --- how deep, and what runs next -------------------------------------------------------------------------------------


def depths_of(samples: Sequence[Sample]) -> list[float]:
    """The depths that make a difference, the deepest first."""
    most = max((len(sample.choices) for sample in samples), default=1)
    return [1.0] if most == 1 else [place / (most - 1) for place in range(most - 1, -1, -1)]


def deepest(queue: Sequence[Sample], free: Mapping[int, float], pace: Pace) -> tuple[Plan, dict[int, int]]:
    """How deep each sample goes: all equally deep, as deep as everybody is in time; whoever comes behind the deadline
    that sets this goes deeper if that holds. Returns the plan, and where each sample goes. queue: by deadline."""
    first = min(free.values())
    own = {sample.id: own_target(sample, free.get(_worker(sample), first), pace) for sample in queue}
    ladder = depths_of(queue)

    def at(depth: float, held: int, below: float) -> Plan:
        """The first samples stay below, the others go to a depth."""
        depths = {one.id: min(depth, below) if place < held else depth for place, one in enumerate(queue)}
        return best_plan(work_at(queue, depths, own), free, pace)

    def search(held: int, below: float) -> tuple[int, Plan]:
        low, high, found = 0, len(ladder) - 1, None  # the deepest is tried first: it mostly holds
        middle = 0
        while low <= high:
            plan = at(ladder[middle], held, below)
            if plan.late is None:
                high, found = middle - 1, plan
            else:
                low, critical[middle] = middle + 1, plan.late
            middle = (low + high) // 2
        return low, found or at(0.0, held, below)

    critical: dict[int, float] = {}
    place, plan = search(0, 1.0)
    depth = ladder[min(place, len(ladder) - 1)]
    held, deeper = len(queue), depth
    if 0 < place < len(ladder):
        behind = bisect_right(queue, critical[place - 1], key=lambda one: one.deadline)
        if behind < len(queue):
            critical.clear()
            further, other = search(behind, depth)
            if further < place and other.late is None:
                plan, held, deeper = other, behind, ladder[further]
    goes = {}
    for number, sample in enumerate(queue):
        target = sample.target(min(depth, deeper) if number < held else deeper)
        goes[sample.id] = max(min(target, own[sample.id]), sample.cheapest())
    return plan, goes


def _worker(sample: Sample) -> int:
    return -1 if sample.worker is None else sample.worker


def next_chunk(plan: Plan, worker: int) -> Chunk | None:
    """What a worker that is free runs now: the first chunk that it can, with those whose input is there."""
    for chunk in plan.chunks:
        if chunk.worker not in (None, worker):
            continue
        there = [sample for sample in chunk.samples if sample.ready]
        if there:
            return Chunk(chunk.track, chunk.place, chunk.target, worker, there[0].deadline, there)
    return None


def ends_in_time(sample: Sample, target: int, now: float, pace: Pace) -> bool:
    """Whether it is in time if it begins now, alone."""
    return not ends_late(own_ms(sample, target, pace), 1000 * (sample.deadline - now))
