"""The service behind the routes: requests go in with the time of their arrival, answers or refusals come out.

It carries out what dispatch.py decides. A reload opens a new generation of workers beside the old one, which ends when
what it has taken in is answered.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from supple.errors import SuppleError
from supple.inference.inputs import parts_of
from supple.server.crew import Crew
from supple.server.jobs import Done, Effect, Job, Refused, Release
from supple.server.messages import Opening
from supple.server.pacing import Drift, Fading
from supple.server.requests import Answer, Given, Options, Refusal
from supple.server.served import Served
from supple.server.slots import Slots
from supple.server.tickets import Ticket
from supple.text import say

RECENT_S = 10.0  # that `load` looks back
STEP_S = 0.02  # between looks whether everybody has an answer, when the service ends


class Service:
    """See the module's text."""

    def __init__(
        self,
        sources: Mapping[str, Path],
        *,
        engine: str = "auto",
        precision: str | None = None,
        workers: int = 1,
        decoders: int = 1,
        slots: int = 256,
        max_batch: int = 32,
        timeout_ms: float = 30_000,
        max_pixels: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.draining = False
        self._openings = {name: Opening(name, Path(path), engine, precision) for name, path in sources.items()}
        self._workers, self._max_batch, self._timeout_ms = workers, max_batch, timeout_ms
        self._number_of_decoders, self._number_of_slots, self._max_pixels = decoders, slots, max_pixels
        self._clock = clock
        self._drift = Drift()
        self._crew: Crew | None = None
        self._retired: list[Crew] = []
        self._slots: Slots | None = None
        self._decoders: Any = None
        self._decode_ms, self._decoding = Fading(5.0), 0
        self._tickets: dict[int, Ticket] = {}
        self._jobs = 0
        self._recent: deque[tuple[float, str, float]] = deque()  # when, point, ms
        self._background: set[asyncio.Task[None]] = set()
        self._closings: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()

    # --- the beginning and the end ------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether every model is warm and some worker takes commands."""
        crew = self._crew
        return not self.draining and crew is not None and any(hand.up_at is None for hand in crew.queue.hands.values())

    @property
    def models(self) -> Mapping[str, Served]:
        return {} if self._crew is None else self._crew.served

    async def start(self) -> None:
        """Workers up, every point warm and measured, decoders there. Raises SuppleError, and leaves no process."""
        crew = self._new_crew(tuple(self._openings.values()))
        try:
            await crew.open(self._slots_for)
            await self._start_decoders(crew.served)
        except BaseException:
            await crew.close()
            await self._close()
            raise
        self._crew = crew

    async def stop(self, drain_s: float = 30.0) -> None:
        """What is in flight is answered, if it can be in this time; then all processes end."""
        self.draining = True
        until = time.monotonic() + drain_s
        while self._tickets and time.monotonic() < until:
            await asyncio.sleep(STEP_S)
        crews = [*self._retired, *([self._crew] if self._crew is not None else [])]
        for crew in crews:
            crew.queue.refuse_all(Refusal(503, "draining", "The server is about to end."))
            crew.step()
        await asyncio.gather(*(crew.close() for crew in crews), *self._closings)
        self._crew, self._retired = None, []
        await self._close()

    async def _close(self) -> None:
        for task in list(self._background):
            task.cancel()
        if self._decoders is not None:
            await self._decoders.stop()
            self._decoders = None
        if self._slots is not None:
            self._slots.close()
            self._slots = None

    def _new_crew(self, openings: Sequence[Opening]) -> Crew:
        return Crew(openings, self._workers, self._max_batch, self._clock, self._drift, self._carry_out)

    def _slots_for(self, served: Mapping[str, Served]) -> Slots:
        shapes = {name: one.input_shape for name, one in served.items()}
        if self._slots is None:
            self._slots = Slots(self._number_of_slots, shapes)
        for name, shape in shapes.items():
            if not self._slots.fits(shape):
                raise SuppleError(f"the new {name} takes larger inputs than the one before.", "Start the server again.")
        return self._slots

    async def _start_decoders(self, served: Mapping[str, Served]) -> None:
        known = {name: found for name, one in served.items() if (found := self._preparation(one)) is not None}
        if known:
            from supple.server.decoding import Decoders

            assert self._slots is not None
            self._decoders = Decoders(known, self._number_of_decoders, slots=self._slots)
            await self._decoders.start()

    def _preparation(self, served: Served) -> tuple[str, dict[str, Any]] | None:
        if served.preprocess is None:
            return None
        saved = dict(served.preprocess)
        if self._max_pixels is not None:
            saved["max_pixels"] = min(self._max_pixels, saved.get("max_pixels", self._max_pixels))
        return served.task, saved

    # --- requests -----------------------------------------------------------------------------------------------------

    async def predict(self, model: str, given: Sequence[Given], options: Options, *, arrived: float) -> list[Answer]:
        """An answer for every input, or the first refusal of one, which takes the others back."""
        answers: list[Answer | None] = [None] * len(given)
        if len(given) == 1:
            future: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()

            def one(told: Answer | Refusal) -> None:
                if not future.done():
                    future.set_result(told)

            ticket = self._enter(model, 0, given[0], options, arrived, one, False)
            try:
                answer = await future
            finally:
                self._drop([ticket])
            if isinstance(answer, Refusal):
                raise answer
            return [answer]
        async for told in self.stream(model, given, replace(options), arrived=arrived, every=False):
            if not isinstance(told, Answer):
                raise told[1]
            answers[told.index] = told
        return [answer for answer in answers if answer is not None]

    async def stream(
        self, model: str, given: Sequence[Given], options: Options, *, arrived: float, every: bool = True
    ) -> AsyncIterator[Answer | tuple[int, Refusal]]:
        """Answers as they come, of each input every exit that it passes; or its refusal. A request with more inputs
        than half of the slots enters them one by one, as its first ones are answered."""
        self._served(model).way(options)
        queue: asyncio.Queue[tuple[int, Answer | Refusal]] = asyncio.Queue()
        tickets: dict[int, Ticket] = {}
        window, entered, ended = max(1, self._number_of_slots // 2), 0, 0
        try:
            while ended < len(given):
                while entered < len(given) and entered - ended < window:
                    index = entered
                    entered += 1

                    def told(what: Answer | Refusal, index: int = index) -> None:
                        queue.put_nowait((index, what))

                    try:
                        tickets[index] = self._enter(model, index, given[index], options, arrived, told, every)
                    except Refusal as why:
                        queue.put_nowait((index, why))
                index, what = await queue.get()
                if isinstance(what, Refusal) or what.final:
                    ended += 1
                    tickets.pop(index, None)
                yield (index, what) if isinstance(what, Refusal) else what
        finally:
            self._drop(tickets.values())

    def _served(self, model: str) -> Served:
        if self.draining:
            raise Refusal(503, "draining", "The server is about to end.")
        found = self.models.get(model)
        if found is None:
            raise Refusal(404, "model_not_found", "There is no model of this name here.")
        return found

    def _enter(
        self,
        model: str,
        index: int,
        given: Given,
        options: Options,
        arrived: float,
        told: Callable[[Answer | Refusal], None],
        every: bool,
    ) -> Ticket:
        """Lets one input in, or raises Refusal."""
        served, crew, slots = self._served(model), self._crew, self._slots
        assert crew is not None
        assert slots is not None
        way = served.way(options)
        decoded = not isinstance(given, bytes)
        if decoded:
            self._check(served, given)
        elif self._decoders is None or served.preprocess is None:
            raise Refusal(415, "unsupported_media_type", "This model takes arrays, not files.")
        limit = self._timeout_ms if options.deadline_ms is None else min(options.deadline_ms, self._timeout_ms)
        self._jobs += 1
        job = Job(self._jobs, way.track, arrived + limit / 1000, way.choices, ready=decoded)
        job.arrived, job.explicit, job.reason = arrived, options.deadline_ms is not None, way.reason
        job.policy, job.every = way.policy, every
        slot = slots.take()
        if slot is None:
            raise Refusal(503, "overloaded", "Too many inputs are waiting.", 1.0)
        job.slot = slot
        lead_ms = 0.0
        if decoded:
            slots.write(slot, given)  # type: ignore[arg-type]
        else:
            lead_ms = self._decode_ms.at(self._clock()) * (1 + self._decoding / self._number_of_decoders)
        try:
            crew.queue.admit(job, self._clock(), lead_ms)
        except Refusal:
            slots.give_back(slot)
            raise
        ticket = Ticket(index, job, way, crew, served, options.deadline_ms, told)
        self._tickets[job.id] = ticket
        crew.tickets += 1
        if decoded:
            crew.step()
        else:
            self._decoding += 1
            work = self._decode(model, ticket, given)  # type: ignore[arg-type]
            ticket.decoding = asyncio.get_running_loop().create_task(work)
            self._background.add(ticket.decoding)
            ticket.decoding.add_done_callback(partial(self._decoded, ticket))
        return ticket

    def _check(self, served: Served, given: Given) -> None:
        assert not isinstance(given, bytes)
        expected = parts_of(served.input_shape)
        shapes = [part.shape for part in given]
        if shapes != expected:
            raise Refusal(422, "unusable_input", f"Inputs of shapes {shapes}; this model takes {expected}."[:300])
        for part in given:
            if not np.isfinite(part).all():
                raise Refusal(422, "not_finite", "The input holds values that are not finite.")

    async def _decode(self, model: str, ticket: Ticket, file: bytes) -> None:
        job, queue = ticket.job, ticket.crew.queue
        try:
            took_ms: float = await self._decoders.decode(model, file, job.slot, job.deadline)
            self._decode_ms.observe(took_ms, self._clock())
            queue.begin(job)
        except Refusal as why:
            ticket.told(why)
            queue.drop([job])
        except SuppleError as error:
            ticket.told(Refusal(422, "unusable_input", error.cause[:300]))
            queue.drop([job])
        ticket.crew.step()

    def _decoded(self, ticket: Ticket, task: asyncio.Task[None]) -> None:
        """Also when it was cancelled, perhaps before it began."""
        self._background.discard(task)
        self._decoding -= 1
        ticket.decoding = None
        if ticket.released:
            self._release(ticket)

    def _drop(self, tickets: Any) -> None:
        """Nobody waits for these any more."""
        for ticket in tickets:
            if not ticket.job.gone:
                ticket.crew.queue.drop([ticket.job])
                ticket.crew.step()

    # --- what the queue decided ---------------------------------------------------------------------------------------

    def _carry_out(self, crew: Crew, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Done):
                self._answer(self._tickets[effect.job.id], effect)
            elif isinstance(effect, Refused):
                self._tickets[effect.job.id].told(effect.why)
            elif isinstance(effect, Release):
                ticket = self._tickets[effect.job.id]
                ticket.released = True
                if ticket.decoding is None:
                    self._release(ticket)
                else:
                    ticket.decoding.cancel()

    def _release(self, ticket: Ticket) -> None:
        del self._tickets[ticket.job.id]
        if self._slots is not None:
            self._slots.give_back(ticket.job.slot)
        ticket.crew.tickets -= 1
        if ticket.crew in self._retired and not ticket.crew.tickets:
            self._retired.remove(ticket.crew)
            self._end(ticket.crew)

    def _end(self, crew: Crew) -> None:
        closing = asyncio.get_running_loop().create_task(crew.close())
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)

    def _answer(self, ticket: Ticket, done: Done) -> None:
        now = self._clock()
        what = ticket.answer(done, now)
        if isinstance(what, Answer) and what.final:
            self._recent.append((now, what.prediction.point, what.prediction.elapsed_ms))
            while self._recent[0][0] < now - RECENT_S:
                self._recent.popleft()
        ticket.told(what)

    # --- beside requests ----------------------------------------------------------------------------------------------

    async def reload(self, model: str) -> None:
        """Opens the model's folder again, in new workers beside the old ones; requests go to them once they are warm.
        What cannot be opened is refused, and the old one goes on. New workers open the other folders, too: as they are
        now."""
        self._served(model)
        async with self._reloading:
            old = self._crew
            assert old is not None
            fresh = {**{one.name: one for one in old.openings}, model: self._openings[model]}
            crew = self._new_crew(tuple(fresh[name] for name in self._openings))
            try:
                await crew.open(self._slots_for)
                if self._decoders is not None:
                    await self._decoders.replace(self._preparations(crew, old))
            except SuppleError as error:
                await crew.close()
                say(f"the new {model} cannot be served, and the old one goes on: {error.cause}")
                cause = error.cause
                for name, opening in fresh.items():  # no path is told
                    cause = cause.replace(str(opening.source), f"the folder of {name}")
                raise Refusal(422, "invalid_options", f"The new {model} cannot be served: {cause}"[:300]) from None
            except BaseException:
                await crew.close()
                raise
            self._crew = crew
            for name, one in crew.served.items():
                if name != model and not one.facts.same_model(old.served[name].facts):
                    say(f"{name} was opened again, too: its folder has changed.")
            if old.tickets:
                self._retired.append(old)
            else:
                self._end(old)

    def _preparations(self, crew: Crew, old: Crew) -> dict[str, tuple[str, dict[str, Any]]]:
        """How files become inputs, where that has changed."""
        made = {name: self._preparation(one) for name, one in crew.served.items()}
        before = {name: self._preparation(one) for name, one in old.served.items()}
        return {name: one for name, one in made.items() if one is not None and one != before[name]}

    def load(self) -> dict[str, Any]:
        """How busy it is: for the page and /metrics."""
        now = self._clock()
        recent = [one for one in self._recent if one[0] >= now - RECENT_S]
        elapsed = sorted(one[2] for one in recent)
        running = sum(ticket.job.running for ticket in self._tickets.values())
        return {
            "waiting": len(self._tickets) - running,
            "running": running,
            "slots": self._number_of_slots,
            "free": 0 if self._slots is None else self._slots.free,
            "workers": 0 if self._crew is None else sum(h.up_at is None for h in self._crew.queue.hands.values()),
            "points": dict(Counter(one[1] for one in recent)),
            "p50_ms": elapsed[len(elapsed) // 2] if elapsed else None,
            "p99_ms": elapsed[min(len(elapsed) - 1, len(elapsed) * 99 // 100)] if elapsed else None,
            "spread": self._drift.expected(now)[1],
        }
