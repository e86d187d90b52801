"""What is noted of one request while it is answered: for its log line and for the metrics. Without torch."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from supple.server.requests import Answer, Options

MOST_PATH = 200  # characters of a path in the log
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass
class Record:
    id: str
    method: str
    path: str
    began: float  # by the server's clock
    came_late: bool = False  # after the server began to stop
    route: str = ""  # as it is declared; empty: there is none
    status: int = 0  # 0: nothing was answered
    code: str = ""  # why it was refused
    model: str = ""  # only if there is one of this name
    inputs: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    deadline_ms: float | None = None
    gone: bool = False  # the client left before its answer
    answers: list[Answer] = field(default_factory=list, repr=False)

    def asks(self, model: str, inputs: int, options: Options) -> None:
        self.model, self.inputs, self.deadline_ms = model, inputs, options.deadline_ms

    def line(self, now: float) -> dict[str, Any]:
        """What of it belongs into the log."""
        found: dict[str, Any] = {
            "request_id": self.id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "ms": round(1e3 * (now - self.began), 3),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }
        if self.code:
            found["code"] = self.code
        if self.gone:
            found["client_gone"] = True
        if self.model:
            found |= {"model": self.model, "inputs": self.inputs}
        if self.deadline_ms is not None:
            found["deadline_ms"] = self.deadline_ms
        if final := [answer for answer in self.answers if answer.final]:
            found["points"] = counted([answer.prediction.point for answer in final])
            found["reasons"] = counted([answer.prediction.reason for answer in final])
            found["queue_ms"] = round(max(answer.queue_ms for answer in final), 3)
            found["compute_ms"] = round(max(answer.compute_ms for answer in final), 3)
        return found


def counted(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}


def request_id(given: str | None) -> str:
    """The client's, if it is a plain word; else a new one."""
    return given if given is not None and _ID.fullmatch(given) else secrets.token_hex(8)
