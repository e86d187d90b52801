"""How long things take here and now: measured when a predictor opens, and corrected as calls are seen.

Every step has a usual time, the median of a few calls. What is expected is that time, multiplied by the 98th percentile
of how many times longer than usual the latest steps took, whichever they were. So a machine that becomes slower (other
programs, heat, clock rates) is noticed after a few calls, and one that was busy when it was measured is forgiven.
"""

import math
import statistics
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import Any

LATEST = 128  # steps that are remembered
WIDEST = 8.0  # a single step counts for at most so many times what is usual
LARGEST = 0.98  # of the remembered ones: with 0.95, more than 1 % of short deadlines were missed
ENOUGH = 8  # calls of a step that was not measured, until it is known


class LatencyEstimator:
    """Estimated milliseconds of named steps. Safe to use from several threads."""

    def __init__(self) -> None:
        self._usual: dict[object, float] = {}  # medians
        self._seen: dict[object, list[float]] = {}  # of steps that are not known yet
        self._latest: deque[float] = deque()  # how many times its usual time each step took
        self._sorted: list[float] = []  # the same
        self._sum = 0.0  # of them
        self._lock = threading.Lock()

    def learn(self, step: object, times_ms: Iterable[float]) -> None:
        """A step was measured."""
        times = list(times_ms)
        self._usual[step] = statistics.median(times)
        for took in times:
            self.note(step, took)

    def knows(self, step: object) -> bool:
        return step in self._usual

    def usual_ms(self, step: object) -> float:
        """The median of what was measured."""
        return self._usual[step]

    def ms(self, step: object) -> float:
        """What a step is expected to take at most, as things are now."""
        return self._usual[step] * self.spread

    def expected_ms(self, step: tuple[Any, ...], batch: int) -> float:
        """The same of a step with a batch; one whose size is new takes as long as its samples one by one."""
        known = self.knows((*step, batch))
        return self.ms((*step, batch)) if known else batch * self.ms((*step, 1))

    @property
    def spread(self) -> float:
        """How many times its usual time a step takes at most, with few exceptions."""
        with self._lock:
            place = math.ceil(LARGEST * len(self._sorted)) - 1
            return self._sorted[place] if self._sorted else 1.0

    @property
    def mean(self) -> float:
        """How many times its usual time a step takes on average: what many steps one after the other come to."""
        with self._lock:
            return self._sum / len(self._sorted) if self._sorted else 1.0

    def note(self, step: object, took_ms: float) -> None:
        """A step has taken so long."""
        usual = self._usual.get(step)
        if usual is None:
            seen = self._seen.setdefault(step, [])
            seen.append(took_ms)
            if len(seen) > ENOUGH:  # the first one may have paid for opening a graph
                self.learn(step, seen[1:])
                self._seen.pop(step, None)
            return
        self.observe(took_ms / max(1e-6, usual))

    def observe(self, ratio: float) -> None:
        """A step has taken so many times what is usual."""
        ratio = min(WIDEST, ratio)
        with self._lock:
            self._latest.append(ratio)
            insort(self._sorted, ratio)
            self._sum += ratio
            if len(self._latest) > LATEST:
                oldest = self._latest.popleft()
                self._sum -= oldest
                del self._sorted[bisect_left(self._sorted, oldest)]
