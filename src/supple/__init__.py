"""supple: one vision or audio model for every budget. One checkpoint, many measured operating points."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supple.backbones.places import cuts
    from supple.checkpoint import load
    from supple.errors import LateError, PointError, SuppleError
    from supple.ladder import Ladder, Row
    from supple.methods.exits import exits
    from supple.model import FlexibleModel, Output, Stage
    from supple.point import FULL, Group, Point
    from supple.runtime.opening import predictor

__version__ = "0.6.0"
__all__ = [
    "FULL",
    "FlexibleModel",
    "Group",
    "Ladder",
    "LateError",
    "Output",
    "Point",
    "PointError",
    "Row",
    "Stage",
    "SuppleError",
    "cuts",
    "exits",
    "load",
    "predictor",
]

_HOME = {
    "supple.backbones.places": ("cuts",),
    "supple.checkpoint": ("load",),
    "supple.errors": ("LateError", "PointError", "SuppleError"),
    "supple.ladder": ("Ladder", "Row"),
    "supple.methods.exits": ("exits",),
    "supple.model": ("FlexibleModel", "Output", "Stage"),
    "supple.point": ("FULL", "Group", "Point"),
    "supple.runtime.opening": ("predictor",),
}


def __getattr__(name: str) -> Any:
    """Finds a public name when it is first used, so that `supple --help` does not wait for torch."""
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'supple' has no attribute {name!r}")
