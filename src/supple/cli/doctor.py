import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from supple.cli.common import Json, print_json
from supple.data._io.paths import search_paths
from supple.machine import has_bf16, instruction_set, machine
from supple.text import size, some


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    found: str
    cure: str = ""


def examine() -> list[Finding]:
    """The findings, in the order a person would ask."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    findings = [
        Finding("python", True, platform.python_version()),
        *(_package(name) for name in ("supple", "torch", "torchvision", "timm", "lightning-fabric")),
        Finding("processor", True, f"{machine()}, {some(torch.get_num_threads(), 'thread')} used"),
        Finding("instruction set", True, f"{instruction_set() or 'not known'}; torch uses {capability}"),
        Finding("bf16 arithmetic", has_bf16(), "yes" if has_bf16() else "no: fp32 is used"),
        Finding("CUDA", torch.cuda.is_available(), torch.cuda.get_device_name() if torch.cuda.is_available() else "no"),
        _tool("g++", "torch.compile", "Install a C++ compiler (Debian: apt-get install g++)."),
    ]
    here = [str(place) for place in search_paths() if place.is_dir()]
    cure = "" if here else "Put data in ./data, or set SUPPLE_DATA."
    findings.append(Finding("data folders", bool(here), ", ".join(here) or "none", cure))
    free = shutil.disk_usage(Path.cwd()).free
    findings.append(Finding("disk here", free > 1e9, f"{size(free)} free", "" if free > 1e9 else "Make room for runs."))
    writable = os.access(Path.cwd(), os.W_OK)
    findings.append(
        Finding("folder here", writable, "writable" if writable else "read-only", "" if writable else "Use --out.")
    )
    return findings


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, "missing", f"pip install {name}")


def _tool(name: str, used_for: str, cure: str) -> Finding:
    path = shutil.which(name)
    return Finding(f"{name} ({used_for})", path is not None, "found" if path else "missing", "" if path else cure)


def doctor(json: Json = False) -> None:
    """Versions, cores, arithmetic, compilers, optional parts, and where data would be found."""
    from supple.cli.doctor import examine
    from supple.text import table

    findings = examine()
    if json:
        print_json({"checks": [vars(finding) for finding in findings]})
        return
    rows = [({True: "ok", False: "-"}[f.ok], f.what, f.found, f.cure) for f in findings]
    print(table(("", "what", "found", "to get it"), rows, left=(0, 1, 2, 3)))
