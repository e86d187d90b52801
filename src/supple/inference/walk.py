"""A chain of stages walked until the time is up, somebody cancels, or the answers are sure. A pure function of what the
stages give: who runs them, how long they are expected to take, and the clock are the caller's.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from supple.errors import DataError, LateError
from supple.inference.engines import Array, Stage, State, take
from supple.policy.policy import Policy


class Reached(NamedTuple):
    """Of one sample: the point that answered, its logits, and why it was that one."""

    point: str
    logits: Array
    reason: str


def walk(
    stages: Sequence[Stage],
    run_body: Callable[[int, State], State],
    run_head: Callable[[int, State], Array],
    x: State,
    *,
    left_ms: float | None = None,
    expected_ms: Callable[[int], float] = lambda k: 0.0,  # from stage k to the next answer
    cancel: threading.Event | None = None,
    policy: Policy | None = None,
    regroup: Callable[[range, int, int], bool] = lambda stages, going, count: True,  # whether it pays to gather before
    strict: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Reached]:
    """Who answered each sample, with what, and why it ended there.

    Heads that the policy does not read do not run. Samples that are sure have their answer; they leave the batch where
    `regroup` says that it pays for the stages up to the next answer, else they run along unread.
    """
    began, state, found = clock(), x, Answers(len(x[0]), stages, policy)
    for k in range(found.last + 1):
        stop = None
        if left_ms is not None and ends_late(expected_ms(k), left_ms - 1000 * (clock() - began)):
            stop = "deadline"
            if k == 0 and strict:
                left = f"{max(0.0, left_ms):.2g} ms are left after decoding"
                raise LateError(f"{left}, and the first exit takes {expected_ms(0):.2g} ms.", "Allow more time.")
        if cancel is not None and cancel.is_set():
            stop = "cancelled"
        if stop is not None and found.all_answered():
            found.end(stop)
            break
        if stages[k].body is not None:
            state = run_body(k, state)
        if not found.reads(k):
            continue
        found.note(k, run_head(k, state))
        going = found.going()
        count = int(np.count_nonzero(going))
        if not count:
            break
        if count < len(going) and k < found.last and regroup(found.until_next(k), count, len(going)):
            state = take(state, going)
            found.leave(going)
    return found.result()


def ends_late(expected_ms: float, left_ms: float) -> bool:
    """The rule of time that every deadline follows: what is expected to end after it is not started."""
    return expected_ms > left_ms


class Answers:
    """What is known of the samples of a batch on their way along a chain."""

    def __init__(self, count: int, stages: Sequence[Stage], policy: Policy | None) -> None:
        self.stages, self.policy = stages, policy
        self._places = {} if policy is None else {str(point): place for place, point in enumerate(policy.points)}
        answering = [k for k, stage in enumerate(stages) if stage.point and (not policy or stage.point in self._places)]
        if not answering:
            raise DataError("no stage here answers at a point of this policy.", "Calibrate and export again.")
        self._answering, self.last = answering, answering[-1]
        self._rows = np.arange(count)  # of the samples that the state holds
        self._ended = np.zeros(count, bool)  # those of them that have their answer
        self._logits: dict[int, Array] = {}  # of the stages that answered
        self._stage = np.full(count, -1)  # of every sample: the stage that answered last,
        self._place = np.zeros(count, np.intp)  # its place among the logits there,
        self._reasons: dict[int, str] = {}  # and why it ended there, if neither the policy nor the chain's end did it

    def reads(self, k: int) -> bool:
        return k in self._answering

    def until_next(self, k: int) -> range:
        """The stages behind stage k up to the next one that is read."""
        return range(k + 1, next(place for place in self._answering if place > k) + 1)

    def all_answered(self) -> bool:
        return bool((self._stage[self._rows] >= 0).all())

    def going(self) -> Array:
        return ~self._ended

    def leave(self, going: Array) -> None:
        """The state holds these samples only, from now on."""
        self._rows, self._ended = self._rows[going], self._ended[going]

    def note(self, k: int, logits: Array) -> None:
        """Writes down the answers of a head. The last finite answer of a sample stays."""
        point, last = self.stages[k].point, k == self.last
        assert point is not None
        self._logits[k] = logits
        finite = np.isfinite(logits).all(tuple(range(1, logits.ndim)))
        good = finite & ~self._ended
        rows = self._rows[good]
        self._stage[rows], self._place[rows] = k, np.flatnonzero(good)
        if last:
            self._ended |= good
        elif self.policy is not None:
            self._ended |= good & self.policy.stops(self._places[point], logits)
        if not finite.all():
            broken = np.flatnonzero(~self._ended & ~finite)
            self._stop(broken[self._stage[self._rows[broken]] >= 0], "not finite")

    def end(self, reason: str) -> None:
        """Whoever is still on the way ends with the answer that there is."""
        self._stop(np.flatnonzero(~self._ended), reason)

    def _stop(self, places: Array, reason: str) -> None:
        self._ended[places] = True
        self._reasons |= dict.fromkeys(self._rows[places].tolist(), reason)

    def result(self) -> list[Reached]:
        if (self._stage < 0).any():
            raise DataError("no exit gave finite numbers.", "The weights or the input hold values that are not finite.")
        names = {k: (str(self.stages[k].point), self._ending(k)) for k in self._logits}
        made = []
        for row, (k, place) in enumerate(zip(self._stage.tolist(), self._place.tolist())):
            point, ending = names[k]
            made.append(Reached(point, self._logits[k][place], self._reasons.get(row, ending)))
        return made

    def _ending(self, k: int) -> str:
        """Why samples end at a stage, where nothing else is written down."""
        if k < self.last:
            return "confident"
        if self.stages[k].point == "full":
            return "full"
        return "budget" if self.policy is not None and self.policy.calibrated else "largest"
