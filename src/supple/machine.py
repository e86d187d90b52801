"""Where a time was measured: the processor, its instruction set, its number of cores; and what is installed here."""

import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path

from supple.device import devices

# What decides which arithmetic is fast, by the names that /proc/cpuinfo gives it (x86, then Arm).
_INSTRUCTIONS = {
    "avx2": ("avx2",),
    "avx512": ("avx512f",),
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "vnni": ("avx512_vnni", "avx_vnni", "asimddp"),
}

_INSTEAD = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino")}  # packages that bring the same module


def machine(device: str = "cpu") -> str:
    """The processor's name, its number of cores and its instruction set; of another device, its name behind them. Times
    measured on one count on that one."""
    return _machine() if device == "cpu" else f"{_machine()}, {_gpu(device)}"


@cache
def _machine() -> str:
    return ", ".join(filter(None, (_processor(), f"{os.cpu_count()} cores", instruction_set())))


@cache
def _gpu(device: str) -> str:
    """The name of a GPU, from PyTorch or, where that has no CUDA, from its driver."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return f"{kind} GPU"
    if device in devices():
        import torch

        return torch.cuda.get_device_name(device)
    asked = ["nvidia-smi", f"--id={number}", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"{device} of unknown name"


@cache
def instruction_set() -> str:
    """What decides how numbers are multiplied here, such as `avx2 avx512 bf16 vnni`; empty where it is not known."""
    return " ".join(instructions(_cpuinfo()))


def has_bf16(device: str = "cpu") -> bool:
    """Whether this processor multiplies bf16 (AVX-512 BF16, AMX or Arm's bf16; a GPU from CUDA's capability 8 on), not
    merely through an emulation."""
    if device == "cpu":
        return "bf16" in instruction_set().split()
    if not device.startswith("cuda") or device not in devices():
        return False
    import torch

    return torch.cuda.get_device_capability(device) >= (8, 0)


def instructions(cpuinfo: str) -> tuple[str, ...]:
    """The instruction sets named in the text of /proc/cpuinfo, of those that matter here."""
    lines = (line.split(":", 1)[1] for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")))
    flags = set(next(lines, "").split())
    return tuple(name for name, spelled in _INSTRUCTIONS.items() if flags.intersection(spelled))


def same_instructions(one: str, other: str) -> bool:
    """Whether two machines, by their names, multiply numbers alike: scores in int8 and bf16 then count on both.

    A name that ends with a GPU is like no other.
    """
    sets = [[word for word in name.rpartition(", ")[2].split() if word in _INSTRUCTIONS] for name in (one, other)]
    return one == other or (bool(sets[0]) and sets[0] == sets[1])


def short_names(names: Iterable[str]) -> dict[str, str]:
    """What tells machines apart: of each name the part behind what all begin with; CPU where nothing is left."""
    parts = {name: name.split(", ") for name in names}
    shared = sum(1 for _ in takewhile(lambda column: len({*column}) == 1, zip(*parts.values())))
    return {name: ", ".join(part[shared:]) or "CPU" for name, part in parts.items()}


def _processor() -> str:
    names = (line.split(":", 1)[1].strip() for line in _cpuinfo().splitlines() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.is_file() else ""


def cores() -> int:
    """How many threads a program may use here, as torch counts them: OMP_NUM_THREADS, or all cores it may run on."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(given)) if given.isdecimal() else allowed_cores()


def allowed_cores() -> int:
    """The cores that this process may run on: taskset and containers may leave it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Of the packages that decide what a training gives."""
    names = ("supple", "torch", "torchvision", "timm", "lightning-fabric", "safetensors")
    return {name: installed(name) or "not installed" for name in names}


def installed(package: str) -> str | None:
    """The version of a package; None: it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    for name in (package, *_INSTEAD.get(package, ())):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


_own: list[bool] = []


def own_process() -> None:
    """Says that this process runs nothing but supple: what only a process has (ONNX Runtime's pool of threads, beside
    which no session may have one of its own) may be used. The command line does; a library must not."""
    _own.append(True)


def owns_process() -> bool:
    return bool(_own)
