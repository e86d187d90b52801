"""Where a time was measured."""

import os
import platform
from functools import cache


@cache
def machine() -> str:
    """The processor's name and its number of cores."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"


def cores() -> int:
    """How many threads a program may use here, as torch counts them: OMP_NUM_THREADS, or all cores."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(said)) if said.isdecimal() else os.cpu_count() or 1
