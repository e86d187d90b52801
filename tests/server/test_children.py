"""Processes at the other end of a socket: whatever they do, the event loop goes on."""

import asyncio
import errno
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supple.errors import SuppleError
from supple.server.children import Child, ended
from supple.server.messages import LENGTH, Failed, Up, packed, unpacked

BEGIN = "import os, sys, time\nlink = int(sys.argv[1])\n"


class Listener(Child):
    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.said, self.hung_up = bytearray(), False

    def heard(self, data: bytes) -> None:
        self.said += data

    def gone(self) -> None:
        self.hung_up = True


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A module of these lines that a child can run."""

    def write(lines: str) -> str:
        (tmp_path / "a_child.py").write_text(BEGIN + lines)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "a_child"

    return write


def run(scene: Any) -> None:
    asyncio.run(asyncio.wait_for(scene, 60))


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.01)


def test_messages_are_complete_however_they_are_cut():
    messages = [Up(), Failed("m", "x" * 300, ""), Up()]
    heard, found = bytearray(), []
    for byte in b"".join(map(packed, messages)):
        heard.append(byte)
        found += unpacked(heard)
    assert found == messages
    assert heard == b""
    assert unpacked(bytearray(b"".join(map(packed, messages)))) == messages


def test_half_a_message_holds_nobody_up(program):
    name = program("os.write(link, (1000).to_bytes(8, 'big') + b'half')\ntime.sleep(600)\n")

    async def scene() -> None:
        child = Listener(name)
        await until(lambda: len(child.said) == LENGTH.size + 4)
        assert unpacked(child.said) == []
        await ended([child])

    run(scene())


def test_what_a_child_does_not_read_yet_is_kept(program, tmp_path):
    go = tmp_path / "go"
    name = program(
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n"
        "size = 0\nwhile size < 5_000_000:\n    size += len(os.read(link, 100_000))\nos.write(link, b'all')\n"
    )

    async def scene() -> None:
        child = Listener(name)
        for part in (4_000_000, 1_000_000):
            child.send(bytes(part))  # more than a socket takes: this would wait
        go.touch()
        await until(lambda: bytes(child.said) == b"all")
        await ended([child], 20)
        assert child.process.returncode == 0

    run(scene())


def test_the_event_loop_goes_on_while_a_child_does_not_end(program):
    name = program("os.write(link, b'up')\ntime.sleep(600)\n")

    async def scene() -> None:
        child = Listener(name)
        await until(lambda: bytes(child.said) == b"up")
        ending = asyncio.create_task(ended([child], 0.3))
        rounds = 0
        while not ending.done():
            await asyncio.sleep(0)
            rounds += 1
        assert rounds > 10
        assert child.process.returncode == -9

    run(scene())


def test_children_that_end_by_themselves_are_not_waited_for_any_longer(program):
    name = program("os.write(link, b'up')\nos.read(link, 1)\n")

    async def scene() -> None:
        children = [Listener(name) for _ in range(2)]
        await until(lambda: all(child.said for child in children))
        began = time.monotonic()
        await ended(children, 500)
        assert time.monotonic() - began < 400
        assert [child.process.returncode for child in children] == [0, 0]

    run(scene())


def test_a_child_that_dies_is_heard_of(program):
    name = program("sys.exit(3)\n")

    async def scene() -> None:
        child = Listener(name)
        await until(lambda: child.hung_up)
        await ended([child], 20)
        assert child.process.returncode == 3
        child.send(b"nobody reads this")

    run(scene())


def test_a_child_that_cannot_be_started_is_an_error_with_a_cause(monkeypatch):
    def popen(*words: object, **how: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async def scene() -> None:
        monkeypatch.setattr(subprocess, "Popen", popen)
        with pytest.raises(SuppleError, match="no process can be started: Cannot allocate memory"):
            Listener("a_child")

    run(scene())
