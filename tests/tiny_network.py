"""A tiny network in the place of the one that comes with supple, made by the same program."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

from supple import checkpoint, files

NAME = "cifar10_small"
BUDGET = "0.7x"  # of its policy: the first exit of a tiny network takes more than half
CLASSES = ("airplane", "cat", "ship", "truck")  # what the drawings that come with supple show


def program() -> ModuleType:
    """benchmarks/ship.py"""
    path = Path(__file__).parents[1] / "benchmarks" / "ship.py"
    spec = importlib.util.spec_from_file_location("ship", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ship"] = module
    spec.loader.exec_module(module)
    return module


def ship_tiny(run: Path, folder: Path, classes: tuple[str, ...] = ()) -> Path:
    """The folder of a run that ships below `folder`; with other names for its first classes."""
    out = folder / NAME
    program().ship(run, out, BUDGET)
    manifest = checkpoint.read_manifest(out)
    manifest["classes"] = [*classes, *manifest["classes"][len(classes) :]]
    files.write(out / checkpoint.MANIFEST, json.dumps(manifest))
    return out
