"""Servers started for a measurement, each as processes of their own on a core of their own; Linux only.

What they use is read from /proc: memory, processor time, descriptors of the whole tree of processes.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from serve_client import Pool, Request, until

TICKS = os.sysconf("SC_CLK_TCK")
ENGINES = ("onnxruntime", "libopenvino", "libtorch")  # what a process that computes has mapped
READY_S = 300.0


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    return list(command) if core is None else ["taskset", "-c", str(core), *command]


def pin_self(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Started:
    """A command in a session of its own, on one core, with one thread for each pool of threads."""

    def __init__(
        self, command: Sequence[str], port: int, core: int | None, extra: Mapping[str, str] | None = None
    ) -> None:
        if core is not None and shutil.which("taskset") is None:
            raise SystemExit("There is no taskset here to pin a server with: apt-get install util-linux.")
        self.port = port
        folder = Path(tempfile.mkdtemp(prefix="serve-"))
        self.log = folder / "log"
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                pinned(command, core),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **alone, **(extra or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    async def ready(self, path: str = "/ready", seconds: float = READY_S) -> "Started":
        """Waits until it answers 200 there."""
        pool = Pool(self.port)
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n".encode()

        async def answers() -> bool:
            if self.process.poll() is not None:
                raise SystemExit(f"The server ended with {self.process.returncode}:\n{self.tail()}")
            return (await pool.ask(Request(head), patience_s=10)).status == 200

        await until(answers, seconds, f"{' '.join(map(str, self.process.args))} is ready")  # type: ignore[arg-type]
        await pool.close()
        return self

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def tree(self) -> list[int]:
        return [self.pid, *below(self.pid)]

    def workers(self) -> list[int]:
        """Processes of it that have an engine in memory."""
        return [pid for pid in below(self.pid) if computes(pid)]

    def rss(self) -> int:
        """Bytes of all its processes; what they share counts once for each."""
        return sum(status(pid, "VmRSS") for pid in self.tree())

    def private(self) -> int:
        """Bytes that belong to one of its processes alone, and to no file."""
        return sum(status(pid, "RssAnon") for pid in self.tree())

    def descriptors(self) -> int:
        return sum(map(open_files, self.tree()))

    def cpu_s(self, pids: Sequence[int] | None = None) -> float:
        return sum(map(cpu_s, self.tree() if pids is None else pids))

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM; its exit status. What does not go is killed, and so are children that it left."""
        pids = self.tree()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        for pid in left(pids):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.log.parent, ignore_errors=True)
        return code


def supple_serve(
    export: Path, core: int | None, *words: str, extra: Mapping[str, str] | None = None, engine: str = "onnxruntime"
) -> Started:
    """The server itself, with the model named `model`, engine and precision pinned."""
    port = free_port()
    command = [sys.executable, "-m", "supple", "serve", f"model={export}", "--port", str(port)]
    command += ["--engine", engine, "--precision", "fp32", *words]
    return Started(command, port, core, extra)


def busy(core: int | None) -> Started:
    """A process that does nothing, all the time."""
    return Started([sys.executable, "-c", "while True: pass"], 0, core)


# --- /proc ------------------------------------------------------------------------------------------------------------


def below(pid: int) -> list[int]:
    """All descendants that run; a process that ends meanwhile has none."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *below(child)]
    return found


def children(pid: int) -> list[int]:
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    except OSError:
        pass
    return found


def status(pid: int, name: str) -> int:
    """A number of bytes in /proc/PID/status; 0 of a process that is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def cpu_s(pid: int) -> float:
    """Seconds of a processor that all threads of a process have used."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / TICKS


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def computes(pid: int) -> bool:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
    return any(name in maps for name in ENGINES)


def alive(pid: int) -> bool:
    """Zombies have ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left(pids: Sequence[int], seconds: float = 2.0) -> list[int]:
    """Which of them still run after a moment."""
    end = time.monotonic() + seconds
    while (found := [pid for pid in pids if alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return found
