"""Whether stopping early saves time for batches of a size: from measured times of the stages, never from their MACs."""

from collections.abc import Sequence

import numpy as np

from supple.inference.engines import Stage
from supple.inference.latency import LatencyEstimator
from supple.policy.policy import Policy


class ChainCosts:
    """Usual milliseconds of the steps of a chain, for batches that were measured and, between these, interpolated.

    Steps: `body` and `head` of a stage, and `take`, which gathers half of the samples behind it.
    """

    def __init__(self, latency: LatencyEstimator) -> None:
        self.latency, self._batches = latency, set[int]()

    @staticmethod
    def sizes(batch: int) -> list[int]:
        """A batch, its half, its quarter, and so on: the sizes that are measured for it."""
        return [batch, *(ChainCosts.sizes(-(-batch // 2)) if batch > 1 else ())]

    def known(self, batch: int) -> bool:
        return batch in self._batches

    def measured(self, batch: int) -> None:
        self._batches.add(batch)

    def ms(self, kind: str, k: int, count: float, batch: int) -> float:
        """Of a step, for `count` samples left of a batch."""
        sizes = self.sizes(batch)[::-1]
        return float(np.interp(count, sizes, [self.latency.usual_ms((kind, k, size)) for size in sizes]))

    def pays(self, stages: Sequence[Stage], k: int, going: int, count: int) -> bool:
        """Whether stage k takes less time for those going on than for all, by more than gathering them takes. Where
        nothing was measured for such a batch, they are gathered."""
        whole = min((batch for batch in self._batches if batch >= count), default=None)
        if whole is None:
            return True
        kinds = [kind for kind, graph in (("body", stages[k].body), ("head", stages[k].point)) if graph is not None]
        saved = sum(self.ms(kind, k, count, whole) - self.ms(kind, k, going, whole) for kind in kinds)
        return saved > self.ms("take", k - 1, count, whole)

    def saves(self, stages: Sequence[Stage], policy: Policy, batch: int) -> bool:
        """Whether a policy is expected to answer a batch sooner than its last point as one graph."""
        return self.expected_ms(stages, policy, batch) < self.latency.usual_ms(("point", str(policy.points[-1]), batch))

    def expected_ms(self, stages: Sequence[Stage], policy: Policy, batch: int) -> float:
        """Of a batch of which the expected shares stop at the points of a policy."""
        shares = dict(zip(map(str, policy.points), policy.shares))
        count, left, total = float(batch), float(batch), 0.0  # samples in the state; those without an answer
        for k, stage in enumerate(stages):
            reached = left if batch == 1 else 1.0  # one sample goes on or does not: on average so often it does
            if stage.body is not None:
                total += reached * self.ms("body", k, count, batch)
            if stage.point in shares:
                total += reached * self.ms("head", k, count, batch)
                left -= batch * shares[stage.point]
                if stage.point == str(policy.points[-1]):
                    break
                if batch > 1 and left < count and self.pays(stages, k + 1, max(1, round(left)), round(count)):
                    total += self.ms("take", k, count, batch)
                    count = max(1.0, left)
        return total
