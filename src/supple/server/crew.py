"""The worker processes of one generation of models, and their queue: decisions are made in dispatch.py, here they are
carried out. A worker that dies is replaced; the event loop watches the pipes, no thread waits.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from supple.errors import IMPORTED, CheckpointError, SuppleError
from supple.server.dispatch import Dispatcher
from supple.server.jobs import Effect, Forget, Job, Kill, Run, Send, Shorten, Step
from supple.server.messages import (
    Broke,
    Command,
    Facts,
    Failed,
    Forgotten,
    Opening,
    Setup,
    Shortened,
    Stop,
    Told,
    Up,
    UseSlots,
)
from supple.server.pacing import Drift
from supple.server.served import Served
from supple.server.slots import Slots
from supple.text import say

AGAIN_S = 0.05  # until a worker that died at its start is replaced, doubled each time
MOST_AGAIN_S = 10.0
END_S = 5.0  # that a worker may take to end


class Process:
    """A worker, seen from the front."""

    def __init__(self, setup: Setup) -> None:
        mine, theirs = socket.socketpair()
        words = [sys.executable, "-m", "supple.server.worker", str(theirs.fileno())]
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            words, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env={**os.environ, **one_thread}
        )
        theirs.close()
        self.pipe = Connection(mine.detach())
        self.facts: list[Facts] = []
        self.tell(setup)

    def tell(self, message: Any) -> None:
        """Where it is gone, its end of the pipe says so."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(message)

    def end(self) -> None:
        self.pipe.close()
        if self.process.poll() is None:
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


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

    def close(self) -> None:
        """Ends the workers; nobody waits for them any more."""
        self._closed = True
        for timer in (self._timer, *self._starting):
            if timer is not None:
                timer.cancel()
        loop = asyncio.get_running_loop()
        processes = list(self._processes.values())
        self._processes.clear()
        for process in processes:
            loop.remove_reader(process.pipe.fileno())
            process.tell(Stop())
        for process in processes:
            process.end()

    def _again(self) -> Setup:
        return Setup(self.openings, self.max_batch, False, tuple(IMPORTED))

    def _start(self, setup: Setup) -> int:
        self._number += 1
        number = self._number
        process = self._processes[number] = Process(setup)
        asyncio.get_running_loop().add_reader(process.pipe.fileno(), self._heard, number)
        self.queue.hire(number, self._clock() + self._startup_s)
        return number

    # --- what workers say ---------------------------------------------------------------------------------------------

    def _heard(self, number: int) -> None:
        process = self._processes[number]
        try:
            while process.pipe.poll():
                self._hear(number, process, process.pipe.recv())
                if number not in self._processes:
                    return
        except (EOFError, OSError):
            self._lost(number)
        self.step()

    def _hear(self, number: int, process: Process, message: Any) -> None:
        if isinstance(message, Told):
            steps = [Step(*step) for step in message.steps]
            self.queue.ran(number, message.id, steps, message.final, self._clock())
        elif isinstance(message, Broke):
            self.queue.failed(number, message.id)
        elif isinstance(message, Facts):
            process.facts.append(message)
            if self._opening is not None and not self._opening.done() and len(process.facts) == len(self.openings):
                self._opening.set_result(process.facts)
        elif isinstance(message, Up):
            self._failures = 0
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

    def _lost(self, number: int) -> None:
        """A worker is gone: whoever it ran goes to another one, and it is replaced."""
        process = self._processes.pop(number)
        asyncio.get_running_loop().remove_reader(process.pipe.fileno())
        process.pipe.close()
        process.kill()
        was_up = self.queue.hands[number].up_at is None
        self.queue.died(number)
        cause = f"a worker ended by itself ({process.process.returncode})."
        if self._settle(number, CheckpointError(cause, "Look at what it wrote before.")) or self._closed:
            return
        say(cause)
        self._failures = 0 if was_up else self._failures + 1
        wait = 0.0 if was_up else min(MOST_AGAIN_S, AGAIN_S * 2**self._failures)
        self._replace(wait)

    def _replace(self, wait: float) -> None:
        loop = asyncio.get_running_loop()

        def start() -> None:
            self._starting.discard(timer)
            assert self.slots is not None
            number = self._start(self._again())
            self._processes[number].tell(UseSlots(self.slots))

        timer = loop.call_later(wait, start)
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
                self._processes[effect.worker].process.kill()
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
        if process is None:
            return
        if isinstance(what, Run):
            process.tell(_command(what))
        elif isinstance(what, Shorten):
            process.tell(Shortened(what.id, what.target))
        elif isinstance(what, Forget):
            process.tell(Forgotten(tuple(what.jobs)))


def _command(run: Run) -> Command:
    jobs: list[Job] = run.jobs
    return Command(
        run.id,
        run.track.model,
        run.track.chain,
        run.track.points,
        tuple(job.id for job in jobs),
        tuple(job.slot for job in jobs),
        run.place,
        run.target,
        run.reads,
        run.tells,
    )
