import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from supple.cli.common import Json, print_json
from supple.data._io.paths import search_paths
from supple.machine import cores, has_bf16, installed, instruction_set, machine, versions
from supple.text import size, some, table, wrapped

# What each extra of pyproject.toml is needed for, and the packages in it.
EXTRAS = {
    "export": (
        "supple export, ONNX Runtime, OpenVINO; nncf: int8 for OpenVINO",
        ("onnx", "onnxscript", "onnxruntime", "openvino", "nncf"),
    ),
    "serve": (
        "supple serve: answers over HTTP",
        ("fastapi", "uvicorn", "httptools", "python-multipart", "prometheus-client"),
    ),
    "ray": ("supple cluster: layers on several nodes", ("ray[serve,data]",)),
    "audio": ("data sets and predictions of sounds", ("soundfile", "soxr")),
    "detect": ("scores of object detection on COCO", ("torchmetrics", "faster-coco-eval")),
    "analysis": ("UMAP in supple analyse, instead of PCA", ("umap-learn",)),
    "table": ("ladder.to_pandas()", ("pandas",)),
}


class Check(NamedTuple):
    what: str
    ok: bool
    found: str
    cure: str = ""


def _check(what: str, ok: bool, found: str, otherwise: str, cure: str = "") -> Check:
    """What was found if all is well; else what there is instead, and how to get it."""
    return Check(what, True, found) if ok else Check(what, False, otherwise, cure)


def examine() -> Iterator[Check]:
    """The findings, in the order a person would ask. Nothing here may fail, whatever is missing."""
    yield Check("python", True, platform.python_version())
    torch, broken = _torch()
    for name, found in versions().items():
        if name == "torch" and torch is None and found != "not installed":
            cure = "pip install --force-reinstall torch"
            yield Check(name, False, f"{found}, but it cannot be imported: {broken}", cure)
        else:
            yield _check(name, found != "not installed", found, found, f"pip install {name}")
    threads = cores() if torch is None else torch.get_num_threads()
    yield Check("processor", True, f"{machine()}, {some(threads, 'thread')} used")
    uses = "" if torch is None else f"; torch uses {torch.backends.cpu.get_cpu_capability()}"
    yield Check("instruction set", True, f"{instruction_set() or 'not known'}{uses}")
    yield _check("bf16 arithmetic", has_bf16(), "yes", "no: fp32 is used")
    cuda = torch is not None and torch.cuda.is_available()
    yield Check("CUDA", cuda, torch.cuda.get_device_name() if cuda else "no")
    cure = "Install a C++ compiler (Debian: apt-get install g++)."
    yield _check("g++ (torch.compile)", shutil.which("g++") is not None, "found", "missing", cure)
    folders = [str(place) for place in search_paths() if place.is_dir()]
    yield _check("data folders", bool(folders), ", ".join(folders), "none", "Put data in ./data, or set SUPPLE_DATA.")
    free = shutil.disk_usage(Path.cwd()).free
    yield _check("disk here", free > 1e9, f"{size(free)} free", f"{size(free)} free", "Make room for runs.")
    yield _check("folder here", os.access(Path.cwd(), os.W_OK), "writable", "read-only", "Use --out.")


def _torch() -> tuple[Any, str]:
    """torch, or None and why not: a package may be there, and yet not work."""
    try:
        import torch
    except Exception as error:  # a missing library is an OSError, a wrong numpy nearly anything
        return None, " ".join(str(error).split())[:200]
    return torch, ""


def extras() -> list[dict[str, Any]]:
    """The optional parts: what is installed of each, what it is needed for, how to get it."""
    found = []
    for name, (needed_for, packages) in EXTRAS.items():
        there = {package: installed(package.partition("[")[0]) for package in packages}
        ok = None not in there.values()
        cure = "" if ok else f"pip install 'supple[{name}]'"
        found.append({"extra": name, "ok": ok, "packages": there, "needed_for": needed_for, "cure": cure})
    return found


def doctor(json: Json = False) -> None:
    """Versions, cores, arithmetic, compilers, optional parts, and where data would be found."""
    checks, optional = [*examine()], extras()
    if json:
        print_json({"checks": [check._asdict() for check in checks], "extras": optional})
        return
    rows = [("ok" if check.ok else "-", check.what, check.found, check.cure) for check in checks]
    print(table(("", "what", "found", "to get it"), rows, left=(0, 1, 2, 3)))
    for extra in optional:
        there = [f"{package} {found or 'missing'}" for package, found in extra["packages"].items()]
        print(f"\n{'ok' if extra['ok'] else '-':<4}[{extra['extra']}]: {extra['needed_for']}")
        print(wrapped(", ".join(there), 4))
        if extra["cure"]:
            print(f"    {extra['cure']}")
