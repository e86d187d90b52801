"""`supple serve` as a process of its own, for tests."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Process:
    """`supple serve ...` on a port that was free."""

    def __init__(self, folder: Path, words: tuple[object, ...], environment: dict[str, str]) -> None:
        self.out, self.err = folder / "out", folder / "err"
        command = [sys.executable, "-m", "supple", "serve", *map(str, words)]
        with self.out.open("w") as out, self.err.open("w") as err:
            env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=env, start_new_session=True)

    def started(self, seconds: float = 120) -> str:
        """Its address, once it is ready."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for line in self.lines():
                if line["event"] == "ready":
                    return str(line["address"])
            assert self.process.poll() is None, self.err.read_text()
            time.sleep(0.05)
        raise AssertionError(self.err.read_text())

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def children(self) -> list[int]:
        found = subprocess.run(["pgrep", "-s", str(self.process.pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split() if int(pid) != self.process.pid]
