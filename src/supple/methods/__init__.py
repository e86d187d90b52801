"""The ways to flex a network, by name. A method holds a backbone; its settings are its keyword arguments."""

from collections.abc import Mapping
from typing import Any

from supple.backbones import BACKBONES
from supple.backbones.networks import fitting
from supple.backbones.protocols import takes_sound
from supple.errors import RecipeError
from supple.methods.dense import Dense
from supple.methods.elastic import Elastic
from supple.methods.exits import Exits
from supple.methods.merge_tokens import MergeTokens
from supple.methods.nested import Nested
from supple.methods.prune import Prune
from supple.methods.shuffle import Shuffle
from supple.methods.skip import Skip
from supple.methods.slim import Slim
from supple.methods.static import Static
from supple.model import FlexibleModel, Shape

METHODS: dict[str, type[FlexibleModel]] = {
    "exits": Exits,
    "slim": Slim,
    "shuffle": Shuffle,
    "dense": Dense,
    "skip": Skip,
    "prune": Prune,
    "nested": Nested,
    "merge_tokens": MergeTokens,
    "elastic": Elastic,
    "static": Static,
}


def build(
    backbone: Mapping[str, Any], method: Mapping[str, Any], num_classes: int, input_shape: Shape
) -> FlexibleModel:
    """The model of a recipe's `backbone` and `method` sections (already checked; each has a `name`)."""
    channels = input_shape[0] if isinstance(input_shape[0], int) else input_shape[0][0]
    facts = {"num_classes": num_classes, "in_channels": channels, "input_shape": input_shape}
    make = BACKBONES[backbone["name"]]
    if not isinstance(input_shape[0], int) and not takes_sound(make):
        cause = f"the backbone {backbone['name']} takes only pictures, but this data set has pictures and sounds."
        raise RecipeError(cause, "Use audiocsrnet, or remove the sounds.")
    network = make(**fitting(make, **facts), **_settings(backbone))
    flex = METHODS[method["name"]]
    model = flex(network, **fitting(flex, **facts), **_settings(method))  # type: ignore[call-arg]
    model.input_shape, model.backbone_spec, model.method_spec = input_shape, dict(backbone), dict(method)
    model.classes = tuple(map(str, range(num_classes)))
    return model


def _settings(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "name"}
