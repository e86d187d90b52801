"""supple: one vision or audio model for every budget. One checkpoint, many measured operating points."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supple.api import (
        analyse,
        bench,
        calibrate,
        evaluate,
        export,
        extract,
        fit,
        merge,
        predict,
        profile,
        prune,
        report,
        search,
        serve,
        train,
    )
    from supple.backbones._cut.cut_points import cuts
    from supple.checkpoint import Run, load
    from supple.errors import LateError, PointError, SuppleError
    from supple.experiments.reproduction import reproduce
    from supple.inference.result import Prediction
    from supple.inference.select import predictor
    from supple.ladder import Ladder, Row
    from supple.methods.builders import (
        dense,
        elastic,
        exits,
        merge_tokens,
        nested,
        prunable,
        shuffle,
        skip,
        slim,
        static,
    )
    from supple.model import FlexibleModel, Output, Stage
    from supple.point import FULL, Field, Group, Point, add_field
    from supple.policy.policy import Policy

__version__ = "0.11.0"
__all__ = [
    "FULL",
    "Field",
    "FlexibleModel",
    "Group",
    "Ladder",
    "LateError",
    "Output",
    "Point",
    "PointError",
    "Policy",
    "Prediction",
    "Row",
    "Run",
    "Stage",
    "SuppleError",
    "add_field",
    "analyse",
    "bench",
    "calibrate",
    "cuts",
    "dense",
    "elastic",
    "evaluate",
    "exits",
    "export",
    "extract",
    "fit",
    "load",
    "merge",
    "merge_tokens",
    "nested",
    "predict",
    "predictor",
    "profile",
    "prunable",
    "prune",
    "report",
    "reproduce",
    "search",
    "serve",
    "shuffle",
    "skip",
    "slim",
    "static",
    "train",
]

_HOME = {
    "supple.api": "analyse bench calibrate evaluate export extract fit merge predict profile prune report search train",
    "supple.backbones._cut.cut_points": "cuts",
    "supple.methods.builders": "dense elastic exits merge_tokens nested prunable shuffle skip slim static",
    "supple.checkpoint": "Run load",
    "supple.experiments.reproduction": "reproduce",
    "supple.server.running": "serve",
    "supple.errors": "LateError PointError SuppleError",
    "supple.ladder": "Ladder Row",
    "supple.model": "FlexibleModel Output Stage",
    "supple.point": "FULL Field Group Point add_field",
    "supple.inference.result": "Prediction",
    "supple.inference.select": "predictor",
    "supple.policy.policy": "Policy",
}


def __getattr__(name: str) -> Any:
    """Finds a public name when it is first used, so that `supple --help` does not wait for torch."""
    for module, names in _HOME.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'supple' has no attribute {name!r}")
