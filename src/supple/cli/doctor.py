import os
import platform
import shutil
from pathlib import Path
from typing import NamedTuple

from supple.cli.common import Json, print_json
from supple.data._io.paths import search_paths
from supple.machine import has_bf16, instruction_set, machine
from supple.text import size, some, table


class Check(NamedTuple):
    what: str
    ok: bool
    found: str
    cure: str = ""


def _check(what: str, ok: bool, found: str, otherwise: str, cure: str = "") -> Check:
    """What was found if all is well; else what there is instead, and how to get it."""
    return Check(what, True, found) if ok else Check(what, False, otherwise, cure)


def examine() -> list[Check]:
    """The findings, in the order a person would ask."""
    import torch

    from supple.checkpoint import versions

    missing = "not installed"
    capability = torch.backends.cpu.get_cpu_capability()
    cuda = torch.cuda.is_available()
    compiler = shutil.which("g++") is not None
    folders = [str(place) for place in search_paths() if place.is_dir()]
    free = shutil.disk_usage(Path.cwd()).free
    return [
        Check("python", True, platform.python_version()),
        *(_check(name, said != missing, said, missing, f"pip install {name}") for name, said in versions().items()),
        Check("processor", True, f"{machine()}, {some(torch.get_num_threads(), 'thread')} used"),
        Check("instruction set", True, f"{instruction_set() or 'not known'}; torch uses {capability}"),
        _check("bf16 arithmetic", has_bf16(), "yes", "no: fp32 is used"),
        Check("CUDA", cuda, torch.cuda.get_device_name() if cuda else "no"),
        _check(
            "g++ (torch.compile)", compiler, "found", "missing", "Install a C++ compiler (Debian: apt-get install g++)."
        ),
        _check("data folders", bool(folders), ", ".join(folders), "none", "Put data in ./data, or set SUPPLE_DATA."),
        _check("disk here", free > 1e9, f"{size(free)} free", f"{size(free)} free", "Make room for runs."),
        _check("folder here", os.access(Path.cwd(), os.W_OK), "writable", "read-only", "Use --out."),
    ]


def doctor(json: Json = False) -> None:
    """Versions, cores, arithmetic, compilers, optional parts, and where data would be found."""
    checks = examine()
    if json:
        print_json({"checks": [check._asdict() for check in checks]})
        return
    rows = [("ok" if check.ok else "-", check.what, check.found, check.cure) for check in checks]
    print(table(("", "what", "found", "to get it"), rows, left=(0, 1, 2, 3)))
