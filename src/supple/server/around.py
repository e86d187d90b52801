"""What every request passes through: its id, the token, refusals as answers, one line in the log, the metrics. Without
torch.
"""

import hmac
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supple.server.answering import refused
from supple.server.front import Front
from supple.server.record import MOST_PATH, Record, request_id
from supple.server.requests import Refusal

CLIENT_GONE = 499  # in log and metrics only, as nginx calls it: nobody is there to read it
# On everything; the page and the documentation have a policy for their contents besides.
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}


class Around:
    """A plain ASGI middleware: no task of its own, no copy of a body."""

    def __init__(self, app: ASGIApp, front: Front, is_open: Callable[[str], bool]) -> None:
        """is_open: whether a path is answered without the token."""
        self._app, self._front, self._is_open = app, front, is_open
        self._token = None if front.settings.token is None else front.settings.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        id = request_id(headers.get("x-request-id"))
        front, doors = self._front, self._front.doors
        path = scope["path"][:MOST_PATH]
        record = Record(id, scope["method"], path, front.clock(), came_late=doors.closed)
        scope.setdefault("state", {})["record"] = record

        async def counted() -> Message:
            message = await receive()
            record.bytes_in += len(message.get("body", b""))
            return message

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                found = MutableHeaders(scope=message)
                found["x-request-id"] = id
                for name, value in HEADERS.items():
                    found.setdefault(name, value)
            elif message["type"] == "http.response.body":
                record.bytes_out += len(message.get("body", b""))
            await send(message)

        doors.inside += 1
        try:
            if not self._may(scope["path"], headers):
                raise Refusal(401, "unauthorized", "Send the token of this server: Authorization: Bearer TOKEN.")
            await self._app(scope, counted, noted)
        except Refusal as refusal:
            await self._refuse(refusal, record, scope, noted)
        except ClientDisconnect:
            record.gone, record.status = True, record.status or CLIENT_GONE
        except Exception:
            front.log.line("bug", request_id=id, trace=_trace())
            await self._refuse(Refusal(500, "internal", "This is a fault of the server."), record, scope, noted)
        finally:
            record.route = getattr(scope.get("route"), "path", "")
            now = front.clock()
            front.metrics.count(record, now)
            front.log.line("request", **record.line(now))
            doors.inside -= 1

    def _may(self, path: str, headers: Headers) -> bool:
        if self._token is None or self._is_open(path):
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        return same and kind.lower() == "bearer"

    async def _refuse(self, refusal: Refusal, record: Record, scope: Scope, send: Send) -> None:
        record.code = refusal.code
        if record.status == 0:  # else the answer has begun, and ends without its last part
            await refused(refusal, record)(scope, _nothing, send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _trace() -> str:
    import traceback

    return traceback.format_exc()
