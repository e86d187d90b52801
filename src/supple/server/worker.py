"""A process that holds models and does as it is told: which samples run which stages is decided in the front.

Started as `python -m supple.server.worker DESCRIPTOR`, with one end of a socket. It ends when the other end is closed,
also by the front's death. Between two stages it looks whether there is news.
"""

import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from supple.errors import IMPORTED, SuppleError
from supple.files import read_json
from supple.inference.bundle import MANIFEST
from supple.inference.engines import State, join, take
from supple.inference.inputs import zeros
from supple.inference.predictor import Predictor
from supple.inference.select import predictor
from supple.networks import located
from supple.server.jobs import Forget, Shorten, Step
from supple.server.messages import (
    Broke,
    Command,
    Facts,
    Failed,
    Opening,
    Setup,
    Times,
    Told,
    Up,
    UseSlots,
    packed,
    unpacked,
)
from supple.server.schedule import PAYS
from supple.server.slots import Slots
from supple.text import one_line

ROUNDS, SECONDS = 7, 1.0  # of measuring a step: so many calls, unless they take longer together
SLOW_MS = 100.0  # a batch that takes this long, and saves nothing against its half, is the largest that is measured
READ = 65_536  # bytes


class Pipe:
    """Messages over a socket; whoever is at the other end being gone is an EOFError or an OSError."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._heard, self._messages = link, bytearray(), deque[Any]()

    def send(self, message: Any) -> None:
        self._link.sendall(packed(message))

    def waiting(self) -> bool:
        """Whether somebody has said something."""
        return bool(self._messages) or bool(select.select([self._link], [], [], 0)[0])

    def recv(self) -> Any:
        while not self._messages:
            data = self._link.recv(READ)
            if not data:
                raise EOFError
            self._heard += data
            self._messages.extend(unpacked(self._heard))
        return self._messages.popleft()


class Worker:
    def __init__(self, pipe: Pipe) -> None:
        self.pipe, self.models = pipe, dict[str, Predictor]()
        self.slots: Slots | None = None
        self._held: dict[int, tuple[State, int]] = {}  # of samples on their way: the state they lie in, and where
        self._news: deque[Any] = deque()

    # --- the front's messages -----------------------------------------------------------------------------------------

    def serve(self) -> None:
        setup: Setup = self.pipe.recv()
        if not self._open(setup):
            return
        while True:
            self._obey(self._news.popleft() if self._news else self.pipe.recv())

    def _obey(self, message: Any) -> None:
        if isinstance(message, Command):
            try:
                self._run(message)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:  # whatever an engine says: its samples are refused, the others go on
                print(f"supple: {message.model} does not run: {one_line(error)}", file=sys.stderr, flush=True)
                self.pipe.send(Broke(message.id, one_line(error)))
        elif isinstance(message, Forget):
            for sample in message.jobs:
                self._held.pop(sample, None)
        elif isinstance(message, UseSlots):
            self.slots = message.slots
            self.pipe.send(Up())

    def _look(self, command: Command, target: int) -> int:
        """How far a command goes, after what has come in meanwhile."""
        while self.pipe.waiting():
            message = self.pipe.recv()
            if isinstance(message, Shorten):
                target = min(target, message.target) if message.id == command.id else target
            else:
                self._news.append(message)
        return target

    # --- running ------------------------------------------------------------------------------------------------------

    def _run(self, command: Command) -> None:
        if command.chain:
            self._along(command)
            return
        model, point = self.models[command.model], command.points[command.target]
        assert point is not None
        began = time.perf_counter()
        logits = model.run_point(point, self._inputs(command))
        took = 1000 * (time.perf_counter() - began)
        self.pipe.send(Told(command.id, (Step(command.target, took, logits),), True))

    def _along(self, command: Command) -> None:
        """Stage by stage, until the place that is asked for; where news shorten the way, the place where it ends
        answers too."""
        model, target = self.models[command.model], command.target
        steps: list[Step] = []
        began = time.perf_counter()
        state = self._inputs(command) if command.place == 0 else self._gathered(command.samples)
        for k in range(command.place, target + 1):
            stage, logits = model.stages[k], None
            if stage.body is not None:
                state = model.run_body(k, state)
            target = self._look(command, target)
            if stage.head is not None and (k in command.reads or k >= target):
                logits = model.run_head(k, state)
            now = time.perf_counter()
            steps.append(Step(k, 1000 * (now - began), logits))
            began = now
            if k >= target:
                break
            if k in command.tells:
                self.pipe.send(Told(command.id, tuple(steps), False))
                steps = []
        self.pipe.send(Told(command.id, tuple(steps), True))
        last = k == len(model.stages) - 1
        for row, sample in enumerate(command.samples):
            if last:
                self._held.pop(sample, None)
            else:
                self._held[sample] = state, row

    def _inputs(self, command: Command) -> State:
        assert self.slots is not None
        shape = self.models[command.model].shape
        samples = [self.slots.read(slot, shape) for slot in command.slots]
        if any(part is None for parts in samples for part in parts):
            raise ValueError("a part of the input is missing")
        return join([tuple(part[None] for part in parts if part is not None) for parts in samples])

    def _gathered(self, samples: Sequence[int]) -> State:
        """The states of samples that were brought to the same place, as one batch in their order."""
        groups: list[tuple[State, list[int]]] = []
        for sample in samples:
            state, row = self._held[sample]
            if not groups or groups[-1][0] is not state:
                groups.append((state, []))
            groups[-1][1].append(row)
        return join([state if _whole(state, rows) else take(state, np.array(rows)) for state, rows in groups])

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self, setup: Setup) -> bool:
        for module in setup.imports:
            import_module(module)
            IMPORTED.append(module)
        for opening in setup.openings:
            try:
                made = self.models[opening.name] = opened(opening)
                found = facts(opening, made, measured(made, setup.max_batch) if setup.measure else {})
            except SuppleError as error:
                self.pipe.send(Failed(opening.name, error.cause, error.cure))
                return False
            except Exception as error:
                self.pipe.send(Failed(opening.name, f"{opening.source} does not open: {one_line(error)}", ""))
                return False
            self.pipe.send(found)
        return True


def _whole(state: State, rows: list[int]) -> bool:
    first = next(part for part in state if part is not None)
    return rows == list(range(len(first)))


def opened(opening: Opening) -> Predictor:
    made = predictor(opening.source, opening.engine, threads=1, precision=opening.precision, warm=True)
    if not made.task.exportable:
        cause = f"{opening.source} answers {made.task.name}, whose inputs vary in size."
        raise SuppleError(cause, "Use it from Python or the command line: supple predict.")
    return made


def facts(opening: Opening, made: Predictor, times: dict[str, Any]) -> Facts:
    preprocess = made.preprocess
    digests = read_json(Path(located(opening.source)) / MANIFEST, "").get("files", {})
    return Facts(
        opening.name,
        made.task.name,
        made.classes,
        made.shape,
        made.engine.name,
        made.engine.precision,
        bool(made.graphs.layers),
        made.ladder_now().to_json(),
        tuple(made.graphs.points),
        made.graphs.stages,
        made.policy,
        () if made.policy is None else made.graphs.stages_for(made.policy.points),
        None if preprocess is None else preprocess.to_json(),
        "" if preprocess is None else preprocess.kind,
        () if preprocess is None else tuple(preprocess.endings),
        tuple(sorted(digests.items())),
        **times,
    )


# --- measuring --------------------------------------------------------------------------------------------------------


def measured(model: Predictor, max_batch: int) -> dict[str, Any]:
    """Median ms of every stage and point, for batches of 1, 2, 4, ... as long as larger ones may pay."""
    bodies: dict[int, Times] = {}
    heads: dict[int, Times] = {}
    whole: dict[str, Times] = {}
    size, last = 1, float("inf")
    while size <= max_batch:
        x, total = zeros(model.shape, size), 0.0
        if model.graphs.stages:
            state = x
            for k, stage in enumerate(model.graphs.stages):
                before = state
                if stage.body is not None:
                    bodies.setdefault(k, {})[size] = _usual(partial(model.run_body, k, before))
                    state = model.run_body(k, before)
                    total += bodies[k][size]
                if stage.head is not None:
                    heads.setdefault(k, {})[size] = _usual(partial(model.run_head, k, state))
            total += heads[k][size] if stage.body is None else 0.0
        for point in model.graphs.points:
            whole.setdefault(point, {})[size] = _usual(partial(model.run_worst, point, x))
        total = total or max(times[size] for times in whole.values())
        if total > SLOW_MS and total / size > PAYS * last:
            break
        size, last = 2 * size, total / size
    return {"bodies": bodies, "heads": heads, "whole": whole}


def _usual(call: Callable[[], object]) -> float:
    """The median ms of a few calls; the first one may pay for memory."""
    call()
    times: list[float] = []
    while len(times) < ROUNDS and (len(times) < 2 or sum(times) < 1000 * SECONDS):
        began = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - began))
    return median(times)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever stops the service stops the front, which lets this end
        signal.signal(number, signal.SIG_IGN)
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the front is gone
        Worker(pipe).serve()
    os._exit(0)  # an engine's threads may take their time to end


if __name__ == "__main__":
    main()
