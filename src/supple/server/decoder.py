"""A process that turns files into inputs: `python -m supple.server.decoder`, started by decoding.py and nobody else.

What it is given was made by strangers: it may be killed at any moment, and what it says is read as JSON only. Torch is
imported where the model's preparation needs it (sounds do, pictures of classifiers do not).
"""

import contextlib
import json
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from supple.data.preprocess import saved_preprocess
from supple.errors import DataError, NotFiniteError, SuppleError, TooLargeError
from supple.server.slots import Slots
from supple.text import say

Said = dict[str, Any]  # empty: done


def main(words: list[str]) -> None:
    """words: the number of an open socket, and the settings of `serve`."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and systemd mean the front: it ends when it has answered
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(words[0])) as link, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(link.makefile("rb"), link.makefile("wb"), **json.loads(words[1]))


def serve(orders: BinaryIO, answers: BinaryIO, slots: list[Any], megabytes: int, seconds: float) -> None:
    """One line of JSON at a time, some with a file behind it, until the front hangs up."""
    memory = Slots.attach(*slots)
    preparations: dict[str, Any] = {}
    for line in orders:
        order = json.loads(line)
        if "file" in order:
            file = orders.read(order["file"])
            if len(file) < order["file"]:
                return
            signal.setitimer(signal.ITIMER_REAL, 2 * seconds)  # should the front be gone: this ends the process
            said = decoded(preparations[order["key"]], file, memory, order["slot"])
            signal.setitimer(signal.ITIMER_REAL, 0)
            del file
        elif "saved" in order:
            limit_memory(None)
            said = learnt(preparations, **order)
            limit_memory(megabytes)
        else:
            preparations.pop(order["key"], None)
            said = {}
        answers.write(json.dumps(said).encode() + b"\n")
        answers.flush()


def learnt(preparations: dict[str, Any], key: str, task: str, saved: dict[str, Any]) -> Said:
    """Makes a model's preparation, and uses it once: what it needs is then imported, and has its memory."""
    try:
        made = saved_preprocess(task, saved)
        if not all(part is None or isinstance(part, np.ndarray) for part in made.arrays(made.blank_file())):
            raise DataError("this model takes inputs of many sizes.", "Only inputs of one size are served.")
    except SuppleError as problem:
        return {"cause": problem.cause, "cure": problem.cure}
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    preparations[key] = made
    return {"kind": made.kind}


def decoded(preparation: Any, file: bytes, memory: Slots, slot: int) -> Said:
    """Writes the input that a file gives into a slot."""
    try:
        parts = [None if part is None else part[0] for part in preparation.arrays(file)]
    except TooLargeError as problem:
        return _refused(413, "too_large", problem.cause)
    except NotFiniteError as problem:
        return _refused(422, "not_finite", problem.cause)
    except DataError as problem:
        if isinstance(problem.__context__, MemoryError):
            return _refused(422, "unusable_input", f"The {preparation.kind} takes too much memory to decode.")
        return _refused(422, "unusable_input", problem.cause)
    except Exception as problem:  # what strangers send makes libraries raise nearly anything
        say(f"decoder: {type(problem).__name__}: {problem}")
        return _refused(422, "unusable_input", f"The {preparation.kind} cannot be decoded.")
    if not all(part is None or np.isfinite(part).all() for part in parts):
        return _refused(422, "not_finite", f"The {preparation.kind} gives values that are not finite.")
    memory.write(slot, parts)
    return {}


def _refused(status: int, code: str, message: str) -> Said:
    return {"status": status, "code": code, "message": " ".join(message.split())[:300]}


def limit_memory(megabytes: int | None) -> None:
    """So much more than now; None: without limit. Of memory of its own: libraries and the slots are shared.

    Only Linux tells what there is now, and holds to such a limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status")
    limit = most
    if megabytes is not None and status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        limit = int(line.split()[1]) * 1024 + megabytes * 2**20
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


if __name__ == "__main__":
    main(sys.argv[1:])
