"""Answers that are sent as they come: one line of JSON for every input and exit. Without torch."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from supple.server.answering import LINES, as_json, line_json
from supple.server.front import Front
from supple.server.leaving import unless_gone
from supple.server.record import Record
from supple.server.requests import Answer, Refusal

Item = Answer | tuple[int, Refusal]


class Stream(Response):
    """Its head is sent with the first line: what is refused before that has a status of its own, like any answer."""

    media_type = LINES

    def __init__(self, items: AsyncIterator[Item], front: Front, record: Record) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._items, self._front, self._record = items, front, record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        begun = False
        items = cast("AsyncGenerator[Item, None]", self._items)
        async with aclosing(items):
            while True:
                try:
                    item = await anext(items)
                    line = as_json(self._noted(item, begun))
                except StopAsyncIteration:
                    break
                except Refusal as refusal:
                    if not begun:
                        raise
                    self._record.code = refusal.code  # of all that has no answer yet
                    line = as_json({**line_json((0, refusal)), "index": None})
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    begun = True
                await send({"type": "http.response.body", "body": line + b"\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _noted(self, item: Item, begun: bool) -> dict[str, object]:
        if isinstance(item, Answer):
            self._front.answered(self._record, item)
        else:
            if self._record.inputs == 1 and not begun:
                raise item[1]
            self._record.code = item[1].code
        return line_json(item)
