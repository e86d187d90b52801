"""Who is let in, what runs next and how deep: pure functions of the queue, the costs and the time. Nothing here waits,
measures or sends.

Samples that are at the same place of the same track, and go to the same one, form chunks, earliest deadline first. A
plan runs its chunks one after the other on each worker. It holds if every chunk is expected to end before the first
deadline in it; what is expected follows the machine (`Pace`). A plan that holds still holds when its first chunk has
run and nobody came, so whoever was let in is answered in time as long as the costs are right.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
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
    skips: bool = False  # whether `ms` are those of samples that skip no layer, and others take less
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
    answered: int = -1  # the place of the answer that it has, or will have when what runs now is over
    worker: int | None = None  # that holds what it has come to
    ready: bool = True  # whether its input is there
    apart: bool = False  # whether it runs in a batch of its own

    def target(self, depth: float) -> int:
        """How deep it goes at a depth from 0, as far as it must, to 1, as far as it may."""
        return self.choices[int(depth * (len(self.choices) - 1) + 0.5)]

    def cheapest(self) -> int:
        """The place of the first answer it can have; the one in hand, if there is one."""
        if self.answered >= 0:
            return self.answered
        return self.choices[min(bisect_left(self.choices, self.place), len(self.choices) - 1)]


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


def work_at(
    queue: Sequence[Sample], own: Sequence[int] | None, depth: float, held: int = 0, below: float = 1.0
) -> Work:
    """Who has something to run, and up to where: at a depth, but at most to what it can reach alone in its own time;
    the first samples stay below another depth. queue: by deadline."""
    found = []
    least = min(depth, below)
    for number, sample in enumerate(queue):
        choices, answered = sample.choices, sample.answered
        target = choices[int((least if number < held else depth) * (len(choices) - 1) + 0.5)]
        if own is not None and own[number] < target:
            target = own[number]
        cheapest = sample.cheapest() if sample.place > choices[0] else choices[0]
        if target < cheapest:
            target = cheapest
        if target >= sample.place and target > answered:
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
        chunk = None if sample.apart else filling.get(key)
        if chunk is None or len(chunk.samples) >= min(largest, track.batches[-1]):
            chunk = Chunk(track, place, target, sample.worker, sample.deadline, [])
            chunks.append(chunk)
            if not sample.apart:
                filling[key] = chunk
        chunk.samples.append(sample)
    spent = dict.fromkeys(free, (0.0, 0.0, 0))
    ends, waiting, only = dict(free), 0.0, next(iter(free)) if len(free) == 1 else None
    mean, deviation, overhead = pace
    for chunk in chunks:
        worker = only if only is not None else chunk.worker
        if worker is None or worker not in ends:
            worker = min(ends, key=ends.__getitem__)
        usual = chunk.track.usual_ms(chunk.place, chunk.target, len(chunk.samples))
        total, squares, commands = spent[worker]
        total, squares, commands = spent[worker] = total + usual, squares + usual * usual, commands + 1
        end = free[worker] + (mean * total + deviation * math.sqrt(squares) + overhead * commands) / 1000
        if end > chunk.deadline:
            return Plan(chunks, chunk.deadline, math.inf)
        ends[worker] = end
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


def holds_until(work: Work, free: Mapping[int, float], pace: Pace) -> float | None:
    """The first deadline that batches of no size keep; None: some keep all."""
    latest = -math.inf
    for size in sizes_for(work):
        late = planned(work, size, free, pace).late
        if late is None:
            return None
        latest = max(latest, late)
    return latest


# --- who is let in ----------------------------------------------------------------------------------------------------


def own_ms(sample: Sample, target: int, pace: Pace) -> float:
    """What it takes alone."""
    return pace.one(sample.track.usual_ms(sample.place, target, 1))


def own_target(sample: Sample, free: float, pace: Pace) -> int:
    """How deep it gets alone in its own time; the cheapest answer, if not even that is in time."""
    left = 1000 * (sample.deadline - free)
    if sample.place > sample.choices[-1] or not ends_late(own_ms(sample, sample.choices[-1], pace), left):
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
    work = work_at([*queue[:place], sample, *queue[place:]], None, 0.0)
    return holds_until(work, free, pace) is None


def retry_after_s(queue: Sequence[Sample], free: Mapping[int, float], pace: Pace, now: float) -> float:
    """When what waits now is expected to be done, at its cheapest."""
    work = work_at(queue, None, 0.0)
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
    own = [
        own_target(sample, first if sample.worker is None else free.get(sample.worker, first), pace) for sample in queue
    ]
    ladder = depths_of(queue)
    place, critical = _deepest_place(queue, own, ladder, 0, 1.0, free, pace)
    depth = further = ladder[place]
    held = len(queue)
    if critical is not None and place > 0:
        behind = bisect_right(queue, critical, key=lambda one: one.deadline)
        if behind < len(queue):
            deeper, _ = _deepest_place(queue, own, ladder[: place + 1], behind, depth, free, pace)
            held, further = behind, ladder[deeper]
    plan = best_plan(work_at(queue, own, further, held, depth), free, pace)
    goes = {}
    for number, sample in enumerate(queue):
        target = sample.target(min(depth, further) if number < held else further)
        goes[sample.id] = max(min(target, own[number]), sample.cheapest())
    return plan, goes


def _deepest_place(
    queue: Sequence[Sample],
    own: Sequence[int],
    ladder: Sequence[float],
    held: int,
    below: float,
    free: Mapping[int, float],
    pace: Pace,
) -> tuple[int, float | None]:
    """The place on a ladder of depths, the deepest first, of the first that holds, and the deadline that forbids the
    one before; the last place, if none does. The deepest is tried first: it mostly holds."""
    low, high, middle, critical = 0, len(ladder) - 1, 0, None
    while low <= high:
        late = holds_until(work_at(queue, own, ladder[middle], held, below), free, pace)
        if late is None:
            high = middle - 1
        else:
            low, critical = middle + 1, late
        middle = (low + high) // 2
    return min(low, len(ladder) - 1), critical


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
