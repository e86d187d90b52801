"""What is measured, with what, and how fast it is: settings of a run, labelled pictures, capacity."""

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from serve_client import Outcome, Pool, Request, closed_loop
from serve_count import figures, quantiles, read
from serve_process import Started, supple_serve

WIDTHS = (4, 16, 32)  # clients at the same time: the best of these is the capacity
WARM_S = 1.0


@dataclass(frozen=True)
class Settings:
    """Of all scenarios."""

    export: Path
    pictures: Path  # a folder for each class
    server_core: int | None = 0
    load_core: int | None = 1
    scale: float = 1.0
    seed: int = 0
    minutes: float = 30.0  # of the soak
    against: tuple[str, ...] = ()  # baselines
    only: tuple[str, ...] = ()  # faults

    def count(self, whole: int, least: int = 20) -> int:
        return max(least, round(whole * self.scale))

    def seconds(self, whole: float, least: float = 1.5) -> float:
        return max(min(least, whole), whole * self.scale)


@dataclass(frozen=True)
class Picture:
    file: bytes
    label: str


def pictures_in(folder: Path, most: int = 1000) -> list[Picture]:
    """The first of each class, the second of each class, and so on."""
    files = {
        one: sorted(path for path in one.iterdir() if path.is_file())
        for one in sorted(folder.iterdir())
        if one.is_dir()
    }
    found: list[Picture] = []
    for turn in range(max(map(len, files.values()), default=0)):
        found += [Picture(those[turn].read_bytes(), one.name) for one, those in files.items() if turn < len(those)]
        if len(found) >= most:
            break
    if not found:
        raise SystemExit(f"{folder} has no folders of pictures. python benchmarks/serve_model.py makes some.")
    return found[:most]


@dataclass(frozen=True)
class Target:
    """A server to send pictures to. Options that it does not know are left out: baselines have one point."""

    name: str
    port: int
    path: str = "/predict"
    takes_options: bool = False
    takes_json: bool = False  # and not a picture as it is

    def request(self, picture: Picture, deadline_ms: float | None = None, **options: object) -> Request:
        asked = {"deadline_ms": deadline_ms, "top_k": 1, **options}
        words = {name: value for name, value in asked.items() if value is not None} if self.takes_options else {}
        address = self.path + (f"?{urlencode(words)}" if words else "")
        media, body = "image/png", picture.file
        if self.takes_json:
            media, body = "application/json", json.dumps({"file": base64.b64encode(body).decode()}).encode()
        head = f"POST {address} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: {media}\r\n"
        return Request(head.encode(), body, picture.label, deadline_ms)

    def get(self, path: str) -> Request:
        return Request(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n".encode(), kind="get")

    def requests(
        self, pictures: Sequence[Picture], deadlines: Iterable[float | None], **options: object
    ) -> list[Request]:
        """One for each deadline; pictures come again and again."""
        return [self.request(pictures[i % len(pictures)], ms, **options) for i, ms in enumerate(deadlines)]


def supple_target(started: Started) -> Target:
    return Target("supple", started.port, "/v1/models/model/predict", takes_options=True)


@dataclass(frozen=True)
class Yardstick:
    """The full model on one server, with nothing else going on."""

    full_ms: float  # p50 of single requests
    capacity: float  # requests per second, closed loop, batching included
    width: int  # clients at which that was reached

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def throughput(
    target: Target, pictures: Sequence[Picture], width: int, seconds: float, warm_s: float = WARM_S, **options: object
) -> tuple[float, list[Outcome]]:
    """Answers per second of so many clients that ask one thing after the other; others than answers end the run."""
    pool = Pool(target.port)
    try:
        one: Callable[[int], Request] = lambda i: target.request(pictures[i % len(pictures)], **options)
        if warm_s > 0:
            await closed_loop(pool, one, width, min(warm_s, seconds))
        outcomes, took = await closed_loop(pool, one, width, seconds)
    finally:
        await pool.close()
    found = figures(outcomes)
    if found.answered < found.sent:
        raise SystemExit(f"{target.name} did not answer everything while its capacity was measured: {found.codes}.")
    return found.answered / took, outcomes


async def measure(target: Target, pictures: Sequence[Picture], seconds: float) -> Yardstick:
    """seconds: of each measurement."""
    _, singly = await throughput(target, pictures, 1, seconds, point="full")
    full_ms = quantiles([one.took_ms for one in singly], 50)[0]
    best, width = 0.0, 0
    for clients in WIDTHS:
        found, _ = await throughput(target, pictures, clients, seconds, point="full")
        if found > best:
            best, width = found, clients
    return Yardstick(full_ms, best, width)


async def started_supple(s: Settings, *words: str, extra: dict[str, str] | None = None) -> tuple[Started, Target]:
    """Ready, with every point warmed up."""
    server = supple_serve(s.export, s.server_core, *words, extra=extra)
    try:
        await server.ready()
    except BaseException:
        server.stop(5)
        raise
    return server, supple_target(server)


async def points_of(target: Target) -> list[str]:
    """Of the model that is served, cheapest first."""
    pool = Pool(target.port)
    outcome = await pool.ask(target.get("/v1/models"))
    await pool.close()
    (model,) = read(outcome)["models"]
    return [str(point) for point in model["points"]]


def accuracies(export: Path, pictures: Sequence[Picture]) -> dict[str, float]:
    """Of every point on these very pictures, from the bare predictor; exits all at once, along the chain."""
    import supple

    right: dict[str, int] = {}
    with supple.predictor(export, "onnxruntime", threads=1, precision="fp32", warm=False) as one:
        for start in range(0, len(pictures), 16):
            some = pictures[start : start + 16]
            x = tuple(np.concatenate(parts) for parts in zip(*(one.preprocess.arrays(p.file) for p in some)))
            for name, logits in logits_of(one, x):
                labels = [one.classes[row.argmax()] for row in logits]
                right[name] = right.get(name, 0) + sum(label == p.label for label, p in zip(labels, some))
    return {name: count / len(pictures) for name, count in right.items()}


def logits_of(one: Any, x: tuple[Any, ...]) -> Iterable[tuple[str, Any]]:
    if not one.stages:
        for point in map(str, one.points):
            yield point, one.run_point(point, x)
    state = x
    for k, stage in enumerate(one.stages):
        if stage.body is not None:
            state = one.run_body(k, state)
        if stage.point is not None:
            yield stage.point, one.run_head(k, state)
