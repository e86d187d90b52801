"""HTTP of uvicorn, with the limits that it has not: on time, on size, on connections. Without torch.

Whatever is refused here has cost no more than the bytes that were read: no task, no thread, no decoded file.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from supple.server.limits import Limits, Pace, wire_allowed
from supple.server.requests import Refusal

AT_ONCE = 65_536  # bytes that are parsed before the limits are looked at again
RETRY_AFTER_S = 1.0

OnRefusal = Callable[[Refusal], None]


def protocol_class(limits: Limits, on_refusal: OnRefusal | None = None) -> type[asyncio.Protocol]:
    """What `uvicorn.Config(http=...)` takes. on_refusal is told of every request refused here, for logs and metrics."""
    shared = _Shared(limits, on_refusal)
    return type("LimitedProtocol", (_LimitedProtocol,), {"shared": shared})


@dataclass
class _Shared:
    """What all connections of a server have in common."""

    limits: Limits
    on_refusal: OnRefusal | None = None
    bodies: int = 0  # bytes of all requests that are not answered yet


class _Flow(FlowControl):
    """Time in which nothing is read is not held against the client."""

    def __init__(self, transport: asyncio.Transport, protocol: "_LimitedProtocol") -> None:
        super().__init__(transport)
        self._protocol = protocol

    def pause_reading(self) -> None:
        super().pause_reading()
        if self._protocol.pace is not None:
            self._protocol.pace.pause(self._protocol.loop.time())

    def resume_reading(self) -> None:
        super().resume_reading()
        if self._protocol.pace is not None:
            self._protocol.pace.resume(self._protocol.loop.time())


class _LimitedProtocol(HttpToolsProtocol):
    """A connection is between requests, in a head, in a body, or waits for its answer; `_watch` keeps one timer for it.

    Bodies of earlier requests on the same connection may still be unanswered (pipelining): answers keep their order.
    """

    shared: ClassVar[_Shared]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits = self.shared.limits
        self.timeout_keep_alive = self.limits.idle_s
        self.ws_protocol_class = None  # websockets have limits of their own, and nothing here speaks it
        self.pace: Pace | None = None  # of the body that is arriving
        self._timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._deaf = False  # what still arrives is thrown away
        self._in_head = False
        self._head_since: float | None = None
        self._head_fed = 0  # bytes of an unfinished head
        self._head_read = 0  # bytes of its lines that are complete, and of trailers
        self._begun = 0  # requests on this connection
        self._content = self._wire = 0  # bytes of the body that is arriving
        self._bodies: deque[int] = deque()  # bytes of each request that is not answered yet
        self._active: RequestResponseCycle | None = None  # whose answer is next

    # What the transport tells

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        most = self.limits.connections
        if len(self.connections) > most + most // 4 + 8:
            transport.abort()  # not even room to say so
        elif len(self.connections) > most:
            self._refuse(Refusal(503, "overloaded", "There are too many connections.", RETRY_AFTER_S))
        else:
            self._head_since = self.loop.time()
            self._watch()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        if self.pace is None and self._head_since is None:
            self._head_since = self.loop.time()
        try:
            while data and not self._deaf:
                data = self._fed(data)
        except httptools.HttpParserUpgrade:  # to another protocol; the request is answered as if it had not asked
            self.cycle.keep_alive = False
            self._deaf = True
            self._stop_timers()
        except httptools.HttpParserError as problem:
            cause = problem.__context__
            malformed = Refusal(400, "malformed", "The request is not valid HTTP/1.1.")
            self._refuse(cause if isinstance(cause, Refusal) else malformed)
        except Refusal as refusal:
            self._refuse(refusal)
        if not self._deaf:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._forget_bodies()
        active = self._active
        if active is not None and not active.response_complete:
            active.disconnected = True
            active.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._must_drain()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._drain_timer is not None and not self.transport.is_closing():
            self._drain_timer.cancel()
            self._drain_timer = None

    # What uvicorn and its parser tell

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun += 1
        self._in_head = True
        self._head_fed = self._head_read = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._read(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._read(len(name) + len(value) + 4)
        if len(self.headers) > self.limits.head_fields:
            raise _headers_too_large(f"{self.limits.head_fields} fields")

    def on_headers_complete(self) -> None:
        self._in_head, self._head_since = False, None
        has_body = False
        for name, value in self.headers:
            if name == b"content-length":
                has_body = int(value) > 0
                if int(value) > self.limits.body_bytes:
                    raise self._too_large()
            elif name == b"transfer-encoding":
                has_body = True
        if has_body and self.parser.should_upgrade():  # the parser would take the body for the other protocol
            raise Refusal(400, "malformed", "A request with a body cannot ask for another protocol (Upgrade).")
        if len(self.pipeline) >= self.limits.pipelined:
            raise Refusal(400, "malformed", "Too many requests are sent ahead of their answers.")
        super().on_headers_complete()
        self._bodies.append(0)
        self._content = self._wire = 0
        self.pace = Pace(self.limits, self.loop.time())
        if self.flow.read_paused:
            self.pace.pause(self.loop.time())

    def on_body(self, body: bytes) -> None:
        self._content += len(body)
        if self._content > self.limits.body_bytes:
            raise self._too_large()
        if not self.cycle.response_complete:
            self._bodies[-1] += len(body)
            self.shared.bodies += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.pace = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._bodies:
            self.shared.bodies -= self._bodies.popleft()
        super().on_response_complete()
        self._must_drain_if_closing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._must_drain_if_closing()

    def shutdown(self) -> None:
        super().shutdown()
        self._must_drain_if_closing()

    # Sizes

    def _fed(self, data: bytes) -> bytes:
        """Parse the next piece, hold it against the limits, and return the rest."""
        in_body, in_head, begun = self.pace is not None, self._in_head, self._begun
        content = self._content if in_body else 0
        most = AT_ONCE if in_body else min(AT_ONCE, self.limits.head_bytes + 1 - self._head_fed)
        piece = data[:most]
        self.parser.feed_data(piece)
        if self._in_head and not in_body and self._begun == begun + (not in_head):
            self._head_fed += len(piece)
            if self._head_fed > self.limits.head_bytes:
                raise _headers_too_large(f"{self.limits.head_bytes:,} bytes")
        if self.pace is not None:
            if in_body and self._begun == begun:
                self._wire += len(piece)
                if self._wire > wire_allowed(self.limits, self._content):
                    raise Refusal(400, "malformed", "The chunks of the body are too small.")
            else:
                content = 0
            self.pace.received(self._content - content, self.loop.time())
        if self.shared.bodies > self.limits.all_bodies_bytes:
            self._make_room()
        return data[most:]

    def _read(self, count: int) -> None:
        self._head_read += count
        if self._head_read > self.limits.head_bytes:
            raise _headers_too_large(f"{self.limits.head_bytes:,} bytes")

    def _too_large(self) -> Refusal:
        return Refusal(413, "too_large", f"The body is larger than {self.limits.body_bytes:,} bytes.")

    @property
    def unfinished(self) -> int:
        """Bytes that are kept of a body that is still arriving."""
        return self._bodies[-1] if self.pace is not None and self._bodies and not self.cycle.response_complete else 0

    def _make_room(self) -> None:
        """When all bodies together are too large, the largest that is still arriving goes: small requests get through
        beside many slow, large ones.
        """
        refusal = Refusal(503, "overloaded", "Too many large bodies are being received.", RETRY_AFTER_S)
        largest = max((one for one in self.connections if isinstance(one, _LimitedProtocol)), key=_unfinished)
        if largest is self and self.unfinished:
            raise refusal
        if largest.unfinished:
            largest._refuse(refusal)

    # Time

    def _watch(self) -> None:
        """Keep the one timer at the next moment that matters. Bodies move theirs on and on: it may ring early."""
        due = self._due()
        if self._timer is not None and (due is None or due < self._timer.when()):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and due is not None:
            self._timer = self.loop.call_at(due, self._time_is_up)

    def _due(self) -> float | None:
        if self.pace is not None:
            return self.pace.due
        return None if self._head_since is None else self._head_since + self.limits.head_s

    def _time_is_up(self) -> None:
        self._timer = None
        now, due = self.loop.time(), self._due()
        if due is None:
            return
        if self.flow.read_paused:  # by us: the client cannot do anything about it
            if self._head_since is not None:
                self._head_since = now
            self._timer = self.loop.call_later(self.limits.grace_s, self._time_is_up)
        elif now < due:
            self._watch()
        elif self.pace is not None:
            rate = f"{self.limits.body_rate / 1000:,.0f} kB/s"
            self._refuse(Refusal(408, "too_slow", f"The body arrives at less than {rate}."))
        elif self._begun == 0 and self._head_fed == 0:
            self.transport.close()  # browsers open connections in advance
        else:
            seconds = f"{self.limits.head_s:g} s"
            self._refuse(Refusal(408, "too_slow", f"The headers were not complete within {seconds}."))

    # Endings

    def _refuse(self, refusal: Refusal) -> None:
        """Answer, and close. What is being answered is answered first, if it came complete."""
        if self._deaf:
            return
        self._deaf = True
        self._stop_timers()
        self._unset_keepalive_if_required()
        if self.shared.on_refusal is not None:
            self.shared.on_refusal(refusal)
        active = self._active
        answered = self.pace is not None and self.cycle.response_complete  # early: of its body more came
        if active is not None and not active.response_complete:
            self.pipeline.clear()
            if active is not self.cycle or self.pace is None:
                self.cycle = active
                active.keep_alive = False
                return
            active.disconnected = True
            active.message_event.set()
            if active.response_started:
                self.transport.abort()
                return
        self._forget_bodies()
        self.pace = None
        if not self.transport.is_closing():
            if not answered:
                self.transport.write(self._written(refusal))
            self._linger()

    def _written(self, refusal: Refusal) -> bytes:
        body = json.dumps({"error": {"code": refusal.code, "message": refusal.message}}).encode() + b"\n"
        fields = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if refusal.retry_after_s is not None:
            fields.append((b"retry-after", str(max(1, round(refusal.retry_after_s))).encode()))
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
        return STATUS_LINE[refusal.status] + lines + b"\r\n" + body

    def _linger(self) -> None:
        """To close while the client is still sending would reset the connection, and the answer would be lost."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()
        self._timer = self.loop.call_later(self.limits.linger_s, self.transport.abort)

    def _must_drain_if_closing(self) -> None:
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._must_drain()

    def _must_drain(self) -> None:
        """A client that does not read its answer is not waited for: at the same rate as bodies have to come."""
        if self._drain_timer is None:
            seconds = self.limits.stall_s + self.transport.get_write_buffer_size() / self.limits.body_rate
            self._drain_timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._drain_timer = None

    def _forget_bodies(self) -> None:
        self.shared.bodies -= sum(self._bodies)
        self._bodies.clear()


def _unfinished(connection: _LimitedProtocol) -> int:
    return connection.unfinished


def _headers_too_large(most: str) -> Refusal:
    return Refusal(431, "headers_too_large", f"The headers are larger than {most}.")
