"""Recipes small enough to train in a second: what the shared runs are made of, and what a test changes a little."""

from typing import Any

from supple.recipe import Recipe, make_recipe

EXITS: dict[str, dict[str, Any]] = {
    "backbone": {
        "name": "msdnet",
        "blocks": 3,
        "base": 1,
        "step": 1,
        "channels": 8,
        "growth_rate": 4,
        "growth_factors": [1, 2],
        "bottleneck_factors": [1, 2],
        "head_channels": 16,
    },
    "method": {"name": "exits"},
}
SLIM: dict[str, dict[str, Any]] = {
    "backbone": {"name": "mobilenet_v1", "channels": [16, 32, 32], "strides": [2, 2]},
    "method": {"name": "slim", "widths": [0.5, 1.0], "divisor": 8},
}


def tiny_document(method: str = "exits", **changes: dict[str, Any]) -> dict[str, Any]:
    """A recipe as plain data; `changes` are laid over its sections: `tiny_document("slim", train={"epochs": 3})`."""
    document: dict[str, dict[str, Any]] = {
        "data": {"name": "generated", "batch_size": 32},
        **{"exits": EXITS, "slim": SLIM}[method],
        "loss": {"name": "distill", "teachers": "all", "lam": 0.5, "tau": 2},
        "train": {"epochs": 2, "lr": 0.1, "warmup": 0.5, "threads": 1},
    }
    return {section: {**values, **changes.get(section, {})} for section, values in document.items()}


def tiny_recipe(method: str = "exits", **changes: dict[str, Any]) -> Recipe:
    """The same, checked."""
    return make_recipe(tiny_document(method, **changes))
