"""Which points are worth looking at for batches of a size: from measured times of the stages, never from their MACs."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from supple.inference.engines import Stage
from supple.inference.latency import LatencyEstimator
from supple.point import Point
from supple.policy.policy import Policy

SAVED = 0.1  # of the time of one static graph that a chain must be expected to save: less may be noise

Step = tuple[str, int | str]


class ChainCosts:
    """Usual milliseconds of the steps along some stages, of a chain or a cascade, for batches that were measured and,
    between these, interpolated.

    Steps of stage k: `body`, `head`, `note`, which finds who is sure, and `take`, which gathers half of the samples
    behind it. The step `static` of a point is that point as one graph.
    """

    def __init__(self, latency: LatencyEstimator, stages: Sequence[Stage]) -> None:
        self.latency, self.stages = latency, stages
        self._table: tuple[list[int], dict[tuple[Step, ...], list[float]]] = [], {}  # sizes, and times of each
        self._reduced: dict[tuple[Policy, int], Policy] = {}

    def unmeasured(self, batch: int) -> list[int]:
        """What is still to be measured for batches of this size: it, or the next larger size that was measured, and the
        half of that, its quarter, and so on."""
        sizes, _ = self._table
        wanted = [sizes[bisect_left(sizes, batch)] if self._known(batch) else batch]
        while wanted[-1] > 1:
            wanted.append(-(-wanted[-1] // 2))
        return [size for size in wanted if size not in sizes]

    def measured(self, size: int) -> None:
        self._table = sorted({*self._table[0], size}), {}
        self._reduced = {}

    def _known(self, count: float) -> bool:
        sizes, _ = self._table
        return bool(sizes) and count <= sizes[-1]

    def ms(self, count: float, steps: Iterable[Step]) -> float:
        """Of some steps for so many samples, at least one."""
        (sizes, curves), steps = self._table, tuple(steps)
        if steps not in curves:
            curves[steps] = [sum(self.latency.usual_ms((*step, size)) for step in steps) for size in sizes]
        above = bisect_left(sizes, count)
        below = max(0, above - 1)
        share = (count - sizes[below]) / max(1, sizes[above] - sizes[below])
        return (1 - share) * curves[steps][below] + share * curves[steps][above]

    def until_answer_ms(self, k: int, batch: int) -> float:
        """What it is expected to take, as things are now, from stage k to the next one that answers."""
        total = 0.0
        for place, stage in enumerate(self.stages[k:], k):
            total += self.latency.expected_ms(("body", place), batch) if stage.body is not None else 0.0
            if stage.point is not None:
                return total + self.latency.expected_ms(("head", place), batch)
        return total

    def until_answer(self, stages: range) -> list[Step]:
        """The bodies of some stages, and the answer of the last of them."""
        bodies: list[Step] = [("body", k) for k in stages if self.stages[k].body is not None]
        return [*bodies, ("head", stages[-1]), ("note", stages[-1])]

    def pays(self, stages: range, going: float, count: float) -> bool:
        """Whether these stages take less time for those going on than for all, by more than gathering them takes.
        Where nothing was measured for such a batch, they are gathered."""
        if not self._known(count):
            return True
        steps = self.until_answer(stages)
        return self.ms(count, steps) - self.ms(going, steps) > self.ms(count, [("take", stages[0] - 1)])

    def reduced(self, policy: Policy, batch: int) -> Policy:
        """The policy with those of its points that are expected to answer batches of this size soonest. Its last point
        alone, where the others save less than SAVED of the time that this one takes as a static graph."""
        found = self._reduced.get((policy, batch))
        if found is None:
            ms, places = self._fastest(policy, batch)
            static: Step = "static", str(policy.points[-1])
            if self.latency.knows((*static, self._table[0][0])) and ms > (1 - SAVED) * self.ms(batch, [static]):
                places = places[-1:]
            found = self._reduced[policy, batch] = policy.only(places)
        return found

    def _fastest(self, policy: Policy, batch: int) -> tuple[float, tuple[int, ...]]:
        """The expected ms of a batch, and the places in the policy's points that are looked at for that."""
        at = {stage.point: k for k, stage in enumerate(self.stages)}
        ends, last = [at[str(point)] for point in policy.points], len(policy.points) - 1
        left = 1 - np.cumsum([*policy.shares[:-1], 0.0])  # share of the samples that go on behind each point

        @cache
        def behind(place: int, count: float) -> tuple[float, tuple[int, ...]]:
            """The same for what follows a point that was looked at, with so many samples in the state."""
            if place == last:
                return 0.0, ()
            share = 1.0 if place < 0 else max(1e-9, float(left[place]))
            reached = 1 - (1 - share) ** batch  # how often at least one sample goes on,
            going = batch * share / reached  # and how many then do
            ways = []
            for following in range(place + 1, last + 1):
                stages = range(ends[place] + 1 if place >= 0 else 0, ends[following] + 1)
                ms, held = self.ms(count, self.until_answer(stages)), count
                if going < count and self.pays(stages, going, count):
                    gathering = self.ms(count, [("take", stages[0] - 1)])
                    ms, held = gathering + self.ms(going, self.until_answer(stages)), going
                rest, places = behind(following, held)
                ways.append((reached * ms + rest, (following, *places)))
            return min(ways)

        return behind(-1, float(batch))


def points_of(stages: Sequence[Stage]) -> list[Point]:
    """The points that stages answer, in their order."""
    return [Point.parse(stage.point) for stage in stages if stage.point is not None]


def answered_by(stages: Sequence[Stage], policy: Policy | None) -> Policy | None:
    """A calibrated policy without the points that no stage answers: what lost too much on an engine is left out there.
    None: there is nothing to choose between."""
    if policy is None or not policy.calibrated:
        return None
    there = {stage.point for stage in stages}
    places = [place for place, point in enumerate(policy.points) if str(point) in there]
    return policy.only(places) if len(places) > 1 else None
