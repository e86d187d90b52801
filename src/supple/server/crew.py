"""The worker processes of one generation of models, and their queue: decisions are made in dispatch.py, here they are
carried out. A worker that dies is replaced, by one that opens the same model.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from supple.errors import IMPORTED, CheckpointError, SuppleError
from supple.server.children import Child, ended
from supple.server.dispatch import Dispatcher
from supple.server.jobs import Effect, Kill, Run, Send
from supple.server.messages import (
    Broke,
    Command,
    Facts,
    Failed,
    Opening,
    Setup,
    Told,
    Up,
    UseSlots,
    packed,
    unpacked,
)
from supple.server.pacing import Drift
from supple.server.served import Served
from supple.server.slots import Slots
from supple.text import say

AGAIN_S = 0.05  # until a worker that died at its start is replaced, doubled each time
MOST_AGAIN_S = 10.0
OPEN_S = 600.0  # that a worker may take to open, warm up and measure its models
END_S = 5.0  # that a worker may take to end, and
STEP_S = 1.0  # when it has hung up by itself


class Process(Child):
    """A worker, seen from the front."""

    def __init__(self, setup: Setup, on_messages: Callable[[list[Any]], None], on_gone: Callable[[], None]) -> None:
        super().__init__("supple.server.worker")
        self._heard, self._on_messages, self._on_gone = bytearray(), on_messages, on_gone
        self.facts: list[Facts] = []
        self.refused = False  # nothing that it says counts any more
        self.limit: asyncio.TimerHandle | None = None  # of its opening
        self.tell(setup)

    def tell(self, message: Any) -> None:
        self.send(packed(message))

    def heard(self, data: bytes) -> None:
        self._heard += data
        if messages := unpacked(self._heard):
            self._on_messages(messages)

    def gone(self) -> None:
        self._on_gone()


class Crew:
    """Workers that all hold the same models. `on_effects` is called with what the queue decided."""

    def __init__(
        self,
        openings: Sequence[Opening],
        workers: int,
        max_batch: int,
        clock: Callable[[], float],
        drift: Drift,
        on_effects: Callable[["Crew", list[Effect]], None],
    ) -> None:
        self.openings, self.workers, self.max_batch = tuple(openings), workers, max_batch
        self.served: Mapping[str, Served] = {}
        self.queue = Dispatcher(drift)
        self.slots: Slots | None = None
        self.tickets = 0  # of requests that are on their way here
        self._clock, self._on_effects = clock, on_effects
        self._processes: dict[int, Process] = {}
        self._number, self._failures, self._startup_s = 0, 0, 2.0
        self._opening: asyncio.Future[list[Facts]] | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wakes: float | None = None
        self._closed = False
        self._starting: set[asyncio.TimerHandle] = set()
        self._burials: set[asyncio.Task[None]] = set()

    # --- the beginning and the end ------------------------------------------------------------------------------------

    async def open(self, slots_for: Callable[[Mapping[str, Served]], Slots]) -> None:
        """The first worker measures; the others open what it has chosen. Raises SuppleError."""
        loop = asyncio.get_running_loop()
        self._opening = loop.create_future()
        first = self._start(Setup(self.openings, self.max_batch, True, tuple(IMPORTED)))
        facts = await self._opening
        chosen = {one.name: one for one in facts}
        self.openings = tuple(
            replace(one, engine=chosen[one.name].engine, precision=chosen[one.name].precision) for one in self.openings
        )
        self.served = {one.name: Served(one) for one in facts}
        self.slots = slots_for(self.served)
        began = self._clock()
        numbers = [first, *(self._start(self._again()) for _ in range(self.workers - 1))]
        for number in numbers:
            self._waiting[number] = loop.create_future()
            self._processes[number].tell(UseSlots(self.slots))
        for number in numbers:
            await self._waiting[number]
        if self.workers > 1:
            self._startup_s = max(0.5, self._clock() - began)

    async def close(self) -> None:
        """Ends the workers; nobody waits for them any more."""
        self._closed = True
        processes = list(self._processes.values())
        self._processes.clear()
        for timer in (self._timer, *self._starting, *(process.limit for process in processes)):
            if timer is not None:
                timer.cancel()
        await ended(processes, END_S)
        await asyncio.gather(*self._burials)

    def _again(self) -> Setup:
        return Setup(self.openings, self.max_batch, False, tuple(IMPORTED))

    def _start(self, setup: Setup) -> int:
        """Raises SuppleError where no process can be started."""
        self._number += 1
        number = self._number
        process = Process(setup, partial(self._heard, number), partial(self._lost, number))
        self._processes[number] = process
        cause = f"a worker has not opened its models within {OPEN_S:g} s."
        too_long = CheckpointError(cause, "Look at what it wrote before.")
        process.limit = asyncio.get_running_loop().call_later(OPEN_S, self._refuse, number, too_long)
        self.queue.hire(number, self._clock() + self._startup_s)
        return number

    # --- what workers say ---------------------------------------------------------------------------------------------

    def _heard(self, number: int, messages: list[Any]) -> None:
        process = self._processes[number]
        for message in messages:
            if not process.refused:
                self._hear(number, process, message)
        self.step()

    def _hear(self, number: int, process: Process, message: Any) -> None:
        if isinstance(message, Told):
            self.queue.ran(number, message.id, message.steps, message.final, self._clock())
        elif isinstance(message, Broke):
            self.queue.failed(number, message.id)
        elif isinstance(message, Facts):
            process.facts.append(message)
            if message.name in self.served:
                self._must_be_the_same(number, message)
            elif self._opening is not None and not self._opening.done() and len(process.facts) == len(self.openings):
                self._opening.set_result(process.facts)
        elif isinstance(message, Up):
            self._failures = 0
            if process.limit is not None:
                process.limit.cancel()
            self.queue.up(number)
            self._settle(number, None)
        elif isinstance(message, Failed):
            problem = SuppleError(message.cause, message.cure)
            if not self._settle(number, problem):
                say(f"a worker cannot open {message.name}: {message.cause}")

    def _settle(self, number: int, problem: SuppleError | None) -> bool:
        """Tells whoever waits for a worker to be up. False: nobody does."""
        waiting: list[asyncio.Future[Any] | None] = [self._waiting.get(number)]
        if problem is not None:
            waiting.insert(0, self._opening)
        for future in waiting:
            if future is not None and not future.done():
                if problem is None:
                    future.set_result(None)
                else:
                    future.set_exception(problem)
                return True
        return False

    def _must_be_the_same(self, number: int, found: Facts) -> None:
        """A worker that opened what its folder has become would answer with other weights under the old classes."""
        if not found.same_model(self.served[found.name].facts):
            cause = f"the folder of {found.name} has changed since it was opened: a new worker cannot be used."
            self._refuse(number, CheckpointError(cause, "Put it back, reload the model, or start the server again."))

    def _refuse(self, number: int, problem: SuppleError) -> None:
        """A worker that cannot be used ends, and is replaced like any other."""
        process = self._processes[number]
        process.refused = True
        process.kill()
        if not self._settle(number, problem):
            say(f"{problem.cause} {problem.cure}")

    def _lost(self, number: int) -> None:
        """A worker is gone: whoever it ran goes to another one, and it is replaced."""
        process = self._processes.pop(number)
        if process.limit is not None:
            process.limit.cancel()
        was_up = self.queue.hands[number].up_at is None
        awaited = any(one is not None and not one.done() for one in (self._opening, self._waiting.get(number)))
        self.queue.died(number)
        burial = asyncio.get_running_loop().create_task(self._bury(number, process))
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)
        if not awaited:
            self._failures = 0 if was_up else self._failures + 1
            self._replace(0.0 if was_up else min(MOST_AGAIN_S, AGAIN_S * 2**self._failures))
        self.step()

    async def _bury(self, number: int, process: Process) -> None:
        await ended([process], STEP_S)
        if not process.refused:
            cause = f"a worker ended by itself ({process.process.returncode})."
            if not self._settle(number, CheckpointError(cause, "Look at what it wrote before.")):
                say(cause)

    def _replace(self, wait: float) -> None:
        def start() -> None:
            self._starting.discard(timer)
            assert self.slots is not None
            try:
                number = self._start(self._again())
            except SuppleError as problem:
                self._failures += 1
                say(f"a worker cannot be replaced yet: {problem.cause}")
                self._replace(min(MOST_AGAIN_S, AGAIN_S * 2**self._failures))
            else:
                self._processes[number].tell(UseSlots(self.slots))

        timer = asyncio.get_running_loop().call_later(wait, start)
        self._starting.add(timer)

    # --- the queue ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Lets the queue decide, carries it out, and wakes up in time for the next deadline."""
        if self._closed:
            return
        now = self._clock()
        self.queue.step(now)
        effects, self.queue.effects = self.queue.effects, []
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Kill):
                self._processes[effect.worker].kill()
            else:
                others.append(effect)
        if others:
            self._on_effects(self, others)
        self._wake(now)

    def _wake(self, now: float) -> None:
        wakes = self.queue.wake_at(now)
        if wakes == self._wakes:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wakes = wakes
        if wakes is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wakes - now), self._woken)

    def _woken(self) -> None:
        self._timer = self._wakes = None
        self.step()

    def _send(self, effect: Send) -> None:
        process, what = self._processes.get(effect.worker), effect.what
        if process is not None:
            process.tell(_command(what) if isinstance(what, Run) else what)


def _command(run: Run) -> Command:
    return Command(
        run.id,
        run.track.model,
        run.track.chain,
        run.track.points,
        tuple(job.id for job in run.jobs),
        tuple(job.slot for job in run.jobs),
        run.place,
        run.target,
        run.reads,
        run.tells,
    )
