"""What the page talks to in its tests: the routes of `supple serve` with canned answers, and faults that can be set."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from supple.server.app import FOLDERS
from supple.server.assets import Assets
from supple.server.forms import parts_of

Json = dict[str, Any]
ROWS = (
    ("exit=1", 9.8e6, 0.654, 2.0),
    ("exit=2", 28e6, 0.702, 6.5),
    ("exit=3", 51e6, 0.731, 14.0),
    ("full", 75e6, 0.742, 31.0),
)
IMAGES = {"kind": "image", "endings": [".jpg", ".png"]}


def model(name: str = "pictures", rows: Any = ROWS, **changes: Any) -> Json:
    ladder = [
        {"point": point, "macs": macs, "metric": "accuracy", "metric_label": "top-1", "unit": "%", "score": score,
         "higher_is_better": True, "expected_ms": time}
        for point, macs, score, time in rows
    ]  # fmt: skip
    about = {"name": name, "task": "classes", "engine": "onnxruntime", "precision": "fp32", "accepts": IMAGES}
    about |= {"input_shape": [[3, 32, 32]], "num_classes": 10, "calibrated": False}
    return {**about, "points": [row["point"] for row in ladder], "ladder": ladder, **changes}


@dataclass
class Refused(Exception):
    status: int
    code: str
    message: str
    again: float | None = None

    def body(self) -> Json:
        told = {"code": self.code, "message": self.message}
        return {"error": told if self.again is None else {**told, "retry_after_s": self.again}}


@dataclass
class Tiny:
    """A server on a port of its own; what it answers is set between requests."""

    models: list[Json] = field(default_factory=lambda: [model()])
    token: str | None = None
    refusal: Refused | None = None  # of every prediction
    broken: Refused | None = None  # of every second input of a stream
    cut: Refused | None = None  # instead of every final answer
    held_from: int | None = None  # exits from this place on do not come while it is set
    label: str = "ship"
    reason: str | None = None  # None: full or deadline, as the time allows
    asked: list[Json] = field(default_factory=list)
    answered: dict[str, Counter[str]] = field(default_factory=dict)
    starting: Refused | None = None  # what /ready says
    looks: int = 0  # at the load
    waiting: int = 0
    port: int = 0

    def start(self) -> "Tiny":
        config = uvicorn.Config(self._app(), port=self.port, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def _app(self) -> FastAPI:
        app, page = FastAPI(), Assets(FOLDERS["page"])

        @app.exception_handler(Refused)
        async def refused(request: Request, refusal: Refused) -> Response:
            headers = {} if refusal.again is None else {"retry-after": str(round(refusal.again))}
            return JSONResponse(refusal.body(), refusal.status, headers)

        @app.get("/")
        async def index(request: Request) -> Response:
            return page.response("index.html", request)

        @app.get("/page/{name:path}")
        async def file(name: str, request: Request) -> Response:
            return page.response(name, request)

        @app.get("/live")
        async def live() -> Json:
            return {"live": True}

        @app.get("/ready")
        async def ready() -> Json:
            if self.starting is not None:
                raise self.starting
            return {"ready": True}

        @app.get("/v1/models")
        async def models(request: Request) -> Json:
            self._let_in(request)
            return {"models": self.models}

        @app.get("/v1/load")
        async def load(request: Request) -> Json:
            self._let_in(request)
            self.looks += 1
            return {"waiting": self.waiting, "running": int(self.waiting > 0), "slots": 256, "answered": self.answered}

        @app.post("/v1/models/{name}/predict")
        async def predict(name: str, request: Request) -> Response:
            self._let_in(request)
            body, kind = await request.body(), request.headers["content-type"]
            parts = parts_of(body, kind, 1000) if kind.startswith("multipart") else []
            options = dict(request.query_params)
            self.asked.append({"model": name, "kind": kind, "inputs": len(parts) or 1, "bytes": len(body), **options})
            if self.refusal is not None:
                raise self.refusal
            found = next(one for one in self.models if one["name"] == name)
            lines = self._lines(found, len(parts) or 1, float(options["deadline_ms"]))
            return StreamingResponse(lines, media_type="application/x-ndjson")

        return app

    def _let_in(self, request: Request) -> None:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            raise Refused(401, "unauthorized", "Send the token of this server: Authorization: Bearer TOKEN.")

    async def _lines(self, about: Json, inputs: int, deadline_ms: float) -> AsyncIterator[bytes]:
        """One input after the other, each as deep as lets all that wait behind it be in time."""
        began, ladder = time.monotonic(), about["ladder"]
        answered = self.answered.setdefault(about["name"], Counter())
        self.waiting += inputs
        for index in range(inputs):
            if self.broken is not None and index % 2:
                yield json.dumps({"index": index, "final": True, **self.broken.body()}).encode() + b"\n"
                continue
            share = (deadline_ms - 1e3 * (time.monotonic() - began)) / (inputs - index)
            depth = max(1, sum(row["expected_ms"] is None or row["expected_ms"] < share for row in ladder))
            for place, row in enumerate(ladder[:depth]):
                final = place == depth - 1
                while self.held_from is not None and place >= self.held_from:
                    await asyncio.sleep(0.01)
                spent = row["expected_ms"] or 1.0
                await asyncio.sleep((spent - (ladder[place - 1]["expected_ms"] or 0 if place else 0)) / 1e3)
                if final and self.cut is not None:
                    yield json.dumps({"index": index, "final": True, **self.cut.body()}).encode() + b"\n"
                    continue
                if final:
                    answered[row["point"]] += 1
                    self.waiting -= 1
                yield json.dumps(self._answer(index, row["point"], spent, place, final, len(ladder))).encode() + b"\n"

    def _answer(self, index: int, point: str, spent: float, place: int, final: bool, points: int) -> Json:
        sure = 0.5 + 0.45 * (place + 1) / points
        scores = [{"label": self.label, "score": sure}, {"label": "truck", "score": 0.7 * (1 - sure)}]
        reason = self.reason or ("full" if place == points - 1 else "deadline")
        return {"index": index, "label": self.label, "scores": scores, "point": point, "reason": reason,
                "queue_ms": 0.4, "compute_ms": spent, "in_time": True, "final": final}  # fmt: skip
