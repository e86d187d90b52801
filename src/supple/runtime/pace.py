"""How long things take here and now: measured when a predictor opens, and corrected as calls are seen.

A machine drifts (other programs, heat, clock rates): all estimates of one engine are scaled by one factor that follows
the ratio of what calls took to what was expected.
"""

import math
import threading
from collections.abc import Iterable

MEMORY = 0.1  # weight of the newest call in the drift
WIDEST = 8.0  # a single call counts for at most so many times what was expected
LARGEST = 0.95  # of the measured calls: estimates are their 95th percentile
ENOUGH = 8  # calls of a step that was not measured, until it is known


class Pace:
    """Estimated milliseconds of named steps. Safe to use from several threads."""

    def __init__(self) -> None:
        self._usual: dict[object, tuple[float, float]] = {}  # median and 95th percentile
        self._seen: dict[object, list[float]] = {}  # of steps that are not known yet
        self._drift = 1.0
        self._lock = threading.Lock()

    def learn(self, step: object, times_ms: Iterable[float]) -> None:
        times = sorted(times_ms)
        place = min(len(times) - 1, math.ceil(LARGEST * len(times)) - 1)
        self._usual[step] = times[len(times) // 2], times[place]

    def knows(self, step: object) -> bool:
        return step in self._usual

    def ms(self, step: object) -> float:
        """What a step is expected to take at most, as things are now."""
        return self._usual[step][1] * self.drift

    @property
    def drift(self) -> float:
        """How much slower than at the start things are now (at least 1: a lucky moment is no promise)."""
        return max(1.0, self._drift)

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
        ratio = min(WIDEST, took_ms / max(1e-6, usual[0]))
        with self._lock:
            self._drift += MEMORY * (ratio - self._drift)
