"""The ways to flex a network, by name. A method holds a backbone; its settings are its keyword arguments."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from supple.backbones import BACKBONES
from supple.backbones.networks import fitting, is_plain_vit
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
TRUNKS = (Shuffle, Skip, Dense, MergeTokens)  # methods that take a transformer as stem, blocks and head


def build(
    backbone: Mapping[str, Any], method: Mapping[str, Any], num_classes: int, input_shape: Shape
) -> FlexibleModel:
    """The model of a recipe's `backbone` and `method` sections (already checked; each has a `name`)."""
    network = network_of(backbone, num_classes, input_shape)
    flex, facts = METHODS[method["name"]], _facts(num_classes, input_shape)
    model = flex(network, **fitting(flex, **facts), **_settings(method))  # type: ignore[call-arg]
    model.input_shape, model.backbone_spec, model.method_spec = input_shape, dict(backbone), dict(method)
    model.classes = tuple(map(str, range(num_classes)))
    return model


def network_of(backbone: Mapping[str, Any], num_classes: int, input_shape: Shape) -> nn.Module:
    """The network of a recipe's `backbone` section."""
    make = BACKBONES[backbone["name"]]
    if not isinstance(input_shape[0], int) and not takes_sound(make):
        cause = f"the backbone {backbone['name']} takes only pictures, but this data set has pictures and sounds."
        raise RecipeError(cause, "Use audiocsrnet, or remove the sounds.")
    return make(**fitting(make, **_facts(num_classes, input_shape)), **_settings(backbone))


def section_of_timm(network: str, method: type[FlexibleModel]) -> dict[str, Any]:
    """The `backbone` section of a network of timm that a method holds: whole, or as stem, blocks and head."""
    trunk = method in TRUNKS or (method is Elastic and is_plain_vit(network))
    return {"name": "vit" if trunk else "timm", "model": network}


def _facts(num_classes: int, input_shape: Shape) -> dict[str, Any]:
    channels = input_shape[0] if isinstance(input_shape[0], int) else input_shape[0][0]
    return {"num_classes": num_classes, "in_channels": channels, "input_shape": input_shape}


def _settings(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "name"}
