"""Processes of the server's own, each at the other end of a socket. The event loop never waits for one: not for what it
says, not until it has read what it is told, not for its end. Without torch.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from supple.errors import SuppleError

READ = 262_144  # bytes
LOOK_S = 0.02  # between looks whether one has ended
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Child:
    """Runs `python -m MODULE DESCRIPTOR WORDS...`, where the descriptor is its end of the socket. Raises SuppleError
    where that cannot be started."""

    def __init__(self, module: str, *words: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._unsent = memoryview(b"")
        try:
            self._socket, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-m", module, str(theirs.fileno()), *words]
                how = {"pass_fds": (theirs.fileno(),), "env": {**os.environ, **ONE_THREAD}}
                try:
                    self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **how)  # type: ignore[call-overload]
                except OSError:
                    self._socket.close()
                    raise
        except OSError as error:
            cause = f"no process can be started: {error.strerror}."
            raise SuppleError(cause, "Give the server more processes, files or memory.") from None
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._readable)

    def heard(self, data: bytes) -> None:
        """It has said something."""
        raise NotImplementedError

    def gone(self) -> None:
        """It has hung up."""
        raise NotImplementedError

    def send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it is gone: its end of the socket says so
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.heard(data)
        else:
            self.leave()
            self.gone()

    def kill(self) -> None:
        """It hangs up then, as it does when it ends by itself."""
        self.process.kill()

    @property
    def left(self) -> bool:
        return self._socket.fileno() < 0

    def leave(self) -> None:
        """Hangs up, by which it ends."""
        if not self.left:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()


async def ended(children: Sequence[Child], within_s: float = 0.0) -> None:
    """Returns when they have ended; those that have not by themselves in this time are killed."""
    for child in children:
        child.leave()
    until = time.monotonic() + within_s
    try:
        while _alive(children) and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
    finally:
        for child in _alive(children):
            child.kill()
    while _alive(children):
        await asyncio.sleep(LOOK_S)


def _alive(children: Sequence[Child]) -> list[Child]:
    return [child for child in children if child.process.poll() is None]
