"""One input of a request, on its way from its arrival to its answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supple.inference.result import predictions
from supple.inference.walk import Reached
from supple.server.jobs import Done, Job
from supple.server.requests import Answer, Refusal
from supple.server.served import Served, Way
from supple.tasks import get_task

if TYPE_CHECKING:
    from supple.server.crew import Crew


@dataclass(eq=False, slots=True)
class Ticket:
    index: int
    job: Job
    way: Way
    crew: "Crew"
    served: Served
    deadline_ms: float | None
    told: Callable[[Answer | Refusal], None]
    shown: Answer | None = None  # the last exit that was told in time, of a stream
    decoding: asyncio.Task[None] | None = None  # while it is
    released: bool = False  # its slot may go as soon as it is not decoded any more

    def answer(self, done: Done, now: float) -> Answer | Refusal:
        """What is told; of a final answer that comes too late, the one that was shown before it."""
        job, way = self.job, self.way
        elapsed = 1000 * (now - job.arrived)
        if done.final and self.deadline_ms is not None and elapsed > self.deadline_ms:
            late = Refusal(504, "late", "The answer was not ready within its deadline.")
            return late if self.shown is None else replace(self.shown, final=True)
        point = job.track.points[done.place]
        assert point is not None
        temperatures = {} if way.policy is None else dict(zip(map(str, way.policy.points), way.policy.temperatures))
        (prediction,) = predictions(
            get_task(self.served.task),
            self.served.classes,
            [Reached(point, done.logits, done.reason)],
            temperatures,
            way.options or {},
            elapsed_ms=elapsed,
            in_time=None if self.deadline_ms is None else elapsed <= self.deadline_ms,
            within_budget=None if way.budget is None else self.served.within_budget(point, way.budget),
        )
        answer = Answer(self.index, prediction, max(0.0, elapsed - job.compute_ms), job.compute_ms, done.final)
        if prediction.in_time:
            self.shown = answer
        return answer
