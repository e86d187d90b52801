"""Ctrl-C once: complete the step, save, leave. Twice: stop."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from supple.errors import SuppleError
from supple.text import say


class Interrupted(SuppleError):
    status = 130

    def __init__(self, how: str, saved: bool = True) -> None:
        cause = "stopped, and saved." if saved else "stopped; saved up to the last whole epoch."
        super().__init__(cause, f"Resume it: {how}.")


class GracefulInterrupt:
    """While entered, the first Ctrl-C only sets `ended`; the second acts as always."""

    ended = False

    def __enter__(self) -> Self:
        self.main = threading.current_thread() is threading.main_thread()
        if self.main:
            self.before = signal.signal(signal.SIGINT, self._first)
        return self

    def _first(self, number: int, frame: FrameType | None) -> None:
        self.ended = True
        say("completing this step and saving; Ctrl-C again stops at once")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.main:
            signal.signal(signal.SIGINT, self.before)
