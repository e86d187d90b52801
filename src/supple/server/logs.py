"""One line of JSON for every request, written by a thread of its own: a pipe that nobody reads must not stop the
server. Lines that cannot be written in time are dropped and counted. Without torch.
"""

import json
import logging
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any, TextIO

MOST_WAITING = 10_000  # lines
EVERY_S = 0.1  # lines are written together: that is cheaper than one by one


class Log:
    """Takes lines from any thread, and never waits for whoever reads them."""

    def __init__(self, out: TextIO | None = None, most_waiting: int = MOST_WAITING, every_s: float = EVERY_S) -> None:
        self._out = sys.stdout if out is None else out
        self._lines: deque[str] = deque()
        self._most, self._every_s = most_waiting, every_s
        self.dropped = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def line(self, event: str, **facts: Any) -> None:
        if len(self._lines) >= self._most:
            self.dropped += 1
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._lines.append(json.dumps({"time": now, "event": event, **facts}, default=str))

    def close(self, within_s: float = 2.0) -> None:
        """Writes what is left, unless nobody takes it."""
        self._ending.set()
        self._thread.join(within_s)

    def _write_all(self) -> None:
        told = 0
        while True:
            ending = self._ending.wait(self._every_s)
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if (dropped := self.dropped) > told:
                lines.append(json.dumps({"event": "log", "dropped": dropped - told}))
                told = dropped
            if lines and not self._written("\n".join(lines) + "\n"):
                return
            if ending and not self._lines:
                return

    def _written(self, text: str) -> bool:
        """False: whoever read it is gone, for good."""
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):
            self._most = 0
            return False
        return True


class IntoLog(logging.Handler):
    """What libraries have to say (uvicorn of a broken request, asyncio of a slow step), as lines of the same log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"level": record.levelname.lower(), "from": record.name, "text": record.getMessage()}
        if record.exc_info:
            facts["trace"] = logging.Formatter().formatException(record.exc_info)
        self._log.line("library", **facts)
