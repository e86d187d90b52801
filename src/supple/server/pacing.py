"""What is expected of the machine, from what was seen lately. What is not confirmed for a while is believed less: an
estimate that keeps everybody out would otherwise never be corrected. Without clocks: the time is given.
"""

import math
import statistics
from collections import deque

from supple.inference.latency import LARGEST, LATEST, WIDEST

KEPT_S = 10.0  # that a step is remembered
FADES_S = 1.0  # until an average that nobody has confirmed halves, and again


class Recent:
    """The latest values, sorted. Those seen long ago do not count; after a silence, the median of what was before."""

    def __init__(self, first: float, count: int) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=count)  # when, and what
        self._sorted = [first]

    def observe(self, value: float, now: float) -> None:
        while self._latest and self._latest[0][0] < now - KEPT_S:
            self._latest.popleft()
        self._latest.append((now, value))
        self._sorted = sorted(value for _, value in self._latest)

    def at(self, now: float) -> list[float]:
        if self._latest and self._latest[-1][0] < now - KEPT_S:
            return [statistics.median(self._sorted)]
        return self._sorted


class Drift:
    """How many times their usual time the latest steps took: 1 is the machine as it was when they were measured."""

    def __init__(self) -> None:
        self._ratios = Recent(1.0, LATEST)

    def observe(self, ratio: float, now: float) -> None:
        """A step has taken so many times what is usual."""
        self._ratios.observe(min(WIDEST, ratio), now)

    def expected(self, now: float) -> tuple[float, float]:
        """On average, and at most with few exceptions."""
        ratios = self._ratios.at(now)
        return sum(ratios) / len(ratios), ratios[math.ceil(LARGEST * len(ratios)) - 1]


class Fading:
    """An average that fades to nothing where it is not confirmed."""

    def __init__(self, value: float, share: float = 0.1) -> None:
        """share: of the average that is left to the latest value."""
        self._value, self._share = value, share
        self._seen: float | None = None

    def at(self, now: float) -> float:
        if self._seen is None:
            self._seen = now
        return self._value * math.pow(0.5, max(0.0, (now - self._seen) / FADES_S - 1))

    def observe(self, value: float, now: float) -> None:
        known = self.at(now)
        self._value, self._seen = known + self._share * (value - known), now
