"""From the first step to the last of a server: models opened while it already says that it lives, requests, the end.

On SIGTERM (or Ctrl-C) `/ready` turns to 503, new requests are refused, those that came before are answered, the
workers end, and so does the process. Without torch.
"""

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from uvicorn.loops.auto import auto_loop_factory

from supple.errors import RecipeError
from supple.server.app import make_app
from supple.server.front import Front, make_front
from supple.server.limits import Limits
from supple.server.logs import IntoLog, Log
from supple.server.protocol import protocol_class
from supple.server.service import Service
from supple.server.settings import Plan
from supple.text import first, say

BACKLOG = 1024  # connections that wait to be taken
GRACE_S = 3  # for last bytes on their way when the server ends
STEP_S = 0.02  # between looks at whether everybody has been answered


def run(plan: Plan) -> None:
    with listening(plan.host, plan.port) as listener, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(_run(plan, listener))


def listening(host: str, port: int) -> socket.socket:
    """Before models are opened, which takes a while: an address that cannot be had is refused at once."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        cause = f"--host {host} --port {port} cannot be listened on: {error.strerror}."
        raise RecipeError(cause, "Choose another --port (0: any that is free), or end what uses it.") from None


class Ending:
    """SIGTERM and Ctrl-C: the first asks the server to end, the second not to wait for anybody."""

    def __init__(self) -> None:
        self.asked, self.at_once, self.interrupted = asyncio.Event(), False, False

    def ask(self, signal_: int) -> None:
        self.at_once = self.asked.is_set()
        self.interrupted |= signal_ == signal.SIGINT
        self.asked.set()


async def _run(plan: Plan, listener: socket.socket) -> None:
    ending, log, clock = Ending(), Log(), time.monotonic
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, ending.ask, one)
    handler = IntoLog(log)
    logging.getLogger().addHandler(handler)
    service = Service(plan.sources, clock=clock, **plan.service)
    front = make_front(service, plan.settings, log, clock)
    try:
        await _served(plan, front, listener, ending)
    finally:
        logging.getLogger().removeHandler(handler)
        log.close()
    if ending.interrupted:
        raise KeyboardInterrupt


async def _served(plan: Plan, front: Front, listener: socket.socket, ending: Ending) -> None:
    """Runs until somebody asks to end, or the models cannot be opened."""
    server = http_server(make_app(front), front)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    opening = asyncio.create_task(front.service.start())
    asked = asyncio.create_task(ending.asked.wait())
    try:
        await asyncio.wait({serving, opening, asked}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            await opening  # raises what has failed
            _announce(plan, front, listener)
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _ended(plan, front, ending, opening)
        asked.cancel()
        server.should_exit = True
        await serving


async def _ended(plan: Plan, front: Front, ending: Ending, opening: asyncio.Task[None]) -> None:
    """Waits for those that came before the end was asked for, and ends the service."""
    front.doors.closed = True
    until = front.clock() + plan.drain_s
    while front.doors.inside and front.clock() < until and not ending.at_once:
        await asyncio.sleep(STEP_S)
    if not opening.done():
        opening.cancel()
        await asyncio.wait({opening})
    await front.service.stop(0.0 if ending.at_once else max(0.0, until - front.clock()))


def _announce(plan: Plan, front: Front, listener: socket.socket) -> None:
    gc.collect()
    gc.freeze()  # what stands now stays: later collections need not look at it
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    front.log.line("ready", address=address, models=list(plan.sources))
    say(f"serving {first(list(plan.sources))} at {address} (a page to try it: {address}/, API: {address}/docs)")


def http_server(app: FastAPI, front: Front) -> uvicorn.Server:
    """uvicorn, without its own signals, logs and pages. It waits for nobody: that has been done before it ends."""
    most = front.settings.max_body
    limits = Limits(body_bytes=most, all_bodies_bytes=max(Limits.all_bodies_bytes, 4 * most))

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            http=protocol_class(limits, front.refused_early),
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_S,
        )
    )
