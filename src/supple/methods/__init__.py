"""The ways to flex a network, by name. A method holds a backbone; its settings are its keyword arguments."""

from collections.abc import Mapping
from typing import Any

from supple.backbones import BACKBONES
from supple.methods.exits import Exits
from supple.methods.slim import Slim
from supple.model import FlexibleModel

METHODS: dict[str, type[FlexibleModel]] = {
    "exits": Exits,
    "slim": Slim,
}


def build(
    backbone: Mapping[str, Any], method: Mapping[str, Any], num_classes: int, input_shape: tuple[int, ...]
) -> FlexibleModel:
    """The model of a recipe's `backbone` and `method` sections (already checked; each has a `name`)."""
    settings = {key: value for key, value in backbone.items() if key != "name"}
    network = BACKBONES[backbone["name"]](num_classes=num_classes, in_channels=input_shape[0], **settings)
    settings = {key: value for key, value in method.items() if key != "name"}
    model = METHODS[method["name"]](network, **settings)  # type: ignore[call-arg]
    model.input_shape = input_shape
    return model
