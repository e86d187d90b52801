"""A service without processes, for tests of what speaks HTTP: it answers by what it is given, or as it is told."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvicorn

from supple.inference.result import Prediction
from supple.ladder import Ladder, Row
from supple.server.app import make_app
from supple.server.front import Front, make_front
from supple.server.logs import Log
from supple.server.requests import Answer, Given, Options, Refusal
from supple.server.settings import Settings

CLASSES = ("cat", "dog", "owl")
ROWS = (
    Row("exit=1", macs=100, metric="accuracy", score=0.5, p50_ms=1.0),
    Row("full", macs=300, metric="accuracy", score=0.75, p50_ms=3.0),
)


@dataclass
class FakeModel:
    name: str = "pets"
    task: str = "classes"
    classes: tuple[str, ...] = CLASSES
    points: tuple[str, ...] = ("exit=1", "full")
    input_shape: tuple[Any, ...] = (1, 2, 2)
    ladder: Ladder = field(default_factory=lambda: Ladder(ROWS))
    engine: str = "onnxruntime"
    precision: str = "fp32"
    kind: str | None = "image"
    endings: tuple[str, ...] = (".png",)
    has_policy: bool = False


def logits_of(given: Given) -> np.ndarray:
    """The first byte, or the first pixel, decides."""
    best = given[0] % 3 if isinstance(given, bytes) else int(given[0].ravel()[0]) % 3
    return np.eye(3, dtype=np.float32)[best] * 4


def answered(index: int, given: Given, point: str = "full", reason: str = "full", final: bool = True) -> Answer:
    logits = logits_of(given)
    shares = np.exp(logits) / np.exp(logits).sum()
    scores = {CLASSES[i]: float(shares[i]) for i in np.argsort(-shares, kind="stable")}
    made = Prediction(CLASSES[int(logits.argmax())], scores, point, reason, 5.0, in_time=True, logits=logits)
    return Answer(index, made, 1.25, 3.5, final)


class FakeService:
    def __init__(self, models: Sequence[FakeModel] = (FakeModel(),)) -> None:
        self.models: Mapping[str, FakeModel] = {model.name: model for model in models}
        self.ready, self.draining = True, False
        self.refusal: Refusal | Exception | None = None  # what predict raises
        self.later: dict[int, Refusal] = {}  # by input: what a stream gives for it
        self.hold: Callable[[], bool] | None = None  # while it is true, answers wait
        self.asked: list[tuple[str, list[Given], Options, float]] = []
        self.reloaded: list[str] = []
        self.cancelled = self.answered = 0

    async def _work(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        try:
            while self.hold is not None and self.hold():
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.answered += 1

    async def predict(self, model: str, given: Sequence[Given], options: Options, *, arrived: float) -> list[Answer]:
        self.asked.append((model, list(given), options, arrived))
        await self._work()
        point, reason = (options.point, "asked") if options.point else ("full", "full")
        return [answered(index, one, point, reason) for index, one in enumerate(given)]

    async def stream(
        self, model: str, given: Sequence[Given], options: Options, *, arrived: float
    ) -> AsyncIterator[Answer | tuple[int, Refusal]]:
        self.asked.append((model, list(given), options, arrived))
        for index, one in enumerate(given):
            if index in self.later:
                yield index, self.later[index]
                continue
            yield answered(index, one, "exit=1", "deadline", final=False)
            await self._work()
            yield answered(index, one)

    async def reload(self, model: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.reloaded.append(model)

    def load(self) -> dict[str, Any]:
        return {"waiting": 2, "running": 1, "slots": 256, "points": {"full": 3}, "p50_ms": 4.0}


class Lines:
    """Where a log writes in tests."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def front_of(service: FakeService, **settings: Any) -> Front:
    log = Log(Lines(), every_s=0.01)  # type: ignore[arg-type]
    ticks = iter(range(1, 10**9))
    clock = lambda: next(ticks) / 1000
    return make_front(service, Settings(**settings), log, clock)  # type: ignore[arg-type]


@contextmanager
def listening(front: Front, **config: Any) -> Iterator[str]:
    """The application behind a real socket, in a thread of its own: its address."""

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    how: dict[str, Any] = {"port": 0, "lifespan": "off", "log_config": None, "access_log": False, "ws": "none"}
    server = Server(uvicorn.Config(make_app(front), **how, **config))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        front.log.close()
