"""The same engine behind other servers, each a process of its own: what the figures of `supple serve` stand beside.

    python benchmarks/serve_baselines.py fastapi EXPORT --port 8001            # or litserve, ray
    python benchmarks/serve_baselines.py fastapi --sleep-ms 30 --port 8001     # a sleeping model

Each answers a picture posted to /predict with {"label": ..., "point": ...}, always at one point: a static model.
FastAPI has one queue, first in first out, and refuses nothing. LitServe and Ray Serve make batches, and shed load with
what they offer: LitServe gives up what has not begun within the deadline (`timeout`), Ray Serve refuses what its queue
has no room for (`max_queued_requests`, as many as can be answered within the deadline).
LitServe is not among supple's own extras: pip install -c constraints.txt litserve
"""

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from serve_client import Pool, open_loop, until
from serve_count import Figures, Row, arrivals, figures, histogram, percent
from serve_process import Started, free_port
from serve_target import Picture, Settings, Target, Yardstick

Answer = Callable[[list[bytes]], list[dict[str, str]]]
MOST_AT_ONCE, WAIT_S = 8, 0.005  # of batches, where a server makes some
READY = {"fastapi": "/ready", "litserve": "/health", "ray": "/-/healthz"}


class Sleeper:
    """A model that takes its time and none of the processor's; a batch takes as long as its samples one by one."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __call__(self, files: list[bytes]) -> list[dict[str, str]]:
        time.sleep(self.ms * len(files) / 1000)
        return [{"label": "nothing", "point": "full"} for _ in files]


class Model:
    """The bare predictor at one point."""

    def __init__(self, export: str, point: str) -> None:
        import numpy as np

        import supple

        self._join = np.concatenate
        self._one, self._point = supple.predictor(export, "onnxruntime", threads=1, precision="fp32"), point

    def __call__(self, files: list[bytes]) -> list[dict[str, str]]:
        assert self._one.preprocess is not None
        x = tuple(self._join(parts) for parts in zip(*map(self._one.preprocess.arrays, files)))
        rows = self._one.run_point(self._point, x)
        return [{"label": self._one.classes[row.argmax()], "point": self._point} for row in rows]


def model_of(export: str | None, point: str, sleep_ms: float) -> Answer:
    return Sleeper(sleep_ms) if export is None else Model(export, point)


# --- the servers ------------------------------------------------------------------------------------------------------


def fastapi(given: argparse.Namespace) -> None:
    """One thread computes, so that the event loop goes on reading; its queue is first in, first out."""
    from concurrent.futures import ThreadPoolExecutor

    import uvicorn
    from fastapi import FastAPI, Request

    app, one_by_one = FastAPI(), ThreadPoolExecutor(1)
    model = model_of(given.export, given.point, given.sleep_ms)

    @app.get("/ready")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.post("/predict")
    async def predict(request: Request) -> dict[str, str]:
        body = await request.body()
        (answer,) = await asyncio.get_running_loop().run_in_executor(one_by_one, model, [body])
        return answer

    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning")


def litserve(given: argparse.Namespace) -> None:
    from serve_litserve import Api, run

    run(Api(given.export, given.point, given.sleep_ms, MOST_AT_ONCE, WAIT_S), given.port, given.deadline_ms)


def ray(given: argparse.Namespace) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray as ray_
    from ray import serve
    from starlette.requests import Request

    queued = -1 if not given.deadline_ms else max(1, int(given.deadline_ms / given.full_ms) - MOST_AT_ONCE)

    @serve.deployment(max_ongoing_requests=MOST_AT_ONCE, max_queued_requests=queued, ray_actor_options={"num_cpus": 1})
    class Deployed:
        def __init__(self, export: str | None, point: str, sleep_ms: float, here: str) -> None:
            sys.path.insert(0, here)
            from serve_baselines import model_of

            self.model = model_of(export, point, sleep_ms)

        @serve.batch(max_batch_size=MOST_AT_ONCE, batch_wait_timeout_s=WAIT_S)  # type: ignore[misc]
        async def together(self, files: list[bytes]) -> list[dict[str, str]]:
            return await asyncio.get_running_loop().run_in_executor(None, self.model, files)

        async def __call__(self, request: Request) -> dict[str, str]:
            return await self.together(await request.body())

    here = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "log_to_driver": False}
    ray_.init(num_cpus=2, object_store_memory=10**8, **here)
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    made = Deployed.bind(given.export, given.point, given.sleep_ms, str(Path(__file__).parent))  # type: ignore[attr-defined]
    serve.run(made, route_prefix="/predict")
    threading.Event().wait()


SERVERS: dict[str, Callable[[argparse.Namespace], None]] = {"fastapi": fastapi, "litserve": litserve, "ray": ray}


# --- the same load ----------------------------------------------------------------------------------------------------


def start(
    name: str,
    export: Path | None,
    core: int | None,
    *,
    point: str = "full",
    sleep_ms: float = 0.0,
    full_ms: float = 1.0,
    deadline_ms: float = 0.0,
) -> tuple[Started, Target]:
    """full_ms and deadline_ms: what servers that shed load decide by."""
    port = free_port()
    command = [sys.executable, __file__, name, *([] if export is None else [str(export.resolve())])]
    command += ["--port", str(port), "--point", point, "--sleep-ms", str(sleep_ms)]
    command += ["--full-ms", str(full_ms), "--deadline-ms", str(deadline_ms)]
    return Started(command, port, core), Target(name, port, takes_json=name == "litserve")


async def beside(
    s: Settings, pictures: Sequence[Picture], yard: Yardstick, count: int, own: Figures, times: float = 2
) -> tuple[list[Row], dict[str, Any]]:
    """The load of figure 1 on each baseline that was asked for."""
    from serve_scenarios import DEADLINE

    rows, facts = [], {}
    deadline_ms = DEADLINE * yard.full_ms
    for name in s.against:
        server, target = start(name, s.export, s.server_core, full_ms=yard.full_ms, deadline_ms=deadline_ms)
        try:
            await server.ready(READY[name])
            await warmed(target, pictures)
            pool = Pool(server.port)
            await pool.prepare(16)
            requests = target.requests(pictures, [deadline_ms] * count)
            found = figures(await open_loop(pool, requests, arrivals(times * yard.capacity, count, 3600, s.seed)))
            await pool.close()
        finally:
            server.stop()
        facts[name] = found.to_json()
        rows.append(Row(f"{name}: in time, late, rejected, lost", shares(found)))
        rows.append(Row(f"{name}: accuracy, p50 and p99 of answers", accuracy_and_times(found)))
        rows.append(Row(f"{name}: sends late by, p99", f"{found.lag_ms:.2f} ms", "under 5 ms", found.lag_ms < 5))
    if rows:
        rows.insert(0, Row("supple: in time, late, rejected, lost", shares(own)))
        rows.insert(1, Row("supple: accuracy, p50 and p99 of answers", accuracy_and_times(own)))
        rows.insert(2, Row("supple: points", histogram(own.points)))
    return rows, facts


async def warmed(target: Target, pictures: Sequence[Picture], calls: int = 20) -> None:
    """Some answers, one after the other; Ray's proxy says that it is healthy before there is anything behind it."""
    pool = Pool(target.port)

    async def answers() -> bool:
        return (await pool.ask(target.request(pictures[0]))).status == 200

    await until(answers, 120, f"an answer of {target.name}")
    for picture in pictures[:calls]:
        await pool.ask(target.request(picture))
    await pool.close()


def shares(found: Figures) -> str:
    counts = (found.in_time, found.late, found.rejected, found.lost)
    return ", ".join(percent(count / max(1, found.sent)) for count in counts)


def accuracy_and_times(found: Figures) -> str:
    times = "no answers" if found.answer_ms is None else "{:.0f}, {:.0f} ms".format(*found.answer_ms)
    return f"{percent(found.accuracy)}, {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("export", nargs="?", help="an exported folder; none: a model that sleeps")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--point", default="full")
    parser.add_argument("--sleep-ms", type=float, default=30.0)
    parser.add_argument("--full-ms", type=float, default=1.0, help="what one answer takes")
    parser.add_argument("--deadline-ms", type=float, default=0.0, help="load is shed by this; 0: it is not")
    given = parser.parse_args()
    SERVERS[given.server](given)


if __name__ == "__main__":
    main()
