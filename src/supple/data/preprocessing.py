"""Saved preprocessing, made usable again. Importing this does not import torch; only what needs it does."""

from importlib import import_module
from typing import Any

USUAL = "supple.data.prepare.Preprocess"  # images, and sounds as images
PREPARE = {  # by task, where inputs are others
    "count": "supple.data.crowd_prepare.CrowdPrepare",
    "boxes": "supple.data.scene_prepare.DetectionPrepare",
}


def saved_preprocess(task: str, saved: dict[str, Any]) -> Any:
    """What turns a file into an input (a `Prepare`), from what its `to_json` gave."""
    module, _, name = PREPARE.get(task, USUAL).rpartition(".")
    return getattr(import_module(module), name).from_json(saved)
