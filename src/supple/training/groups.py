"""Parameter groups: which parameters learn at which rate, and which of them decay."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from supple.errors import RecipeError
from supple.model import FlexibleModel
from supple.recipe import Train


def parameter_groups(model: FlexibleModel, settings: Train) -> list[dict[str, Any]]:
    """Torch's groups of all parameters that may learn: one for each rate, with and without weight decay."""
    learning = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if not learning:
        raise RecipeError("nothing in this model may learn.", "Set method.way or method.learn so that something does.")
    factors = rate_factors(model, settings.layer_decay, settings.branch_rate)
    free = {id(parameter) for parameter in model.no_weight_decay()}
    if not settings.decay_all:
        free |= {id(parameter) for parameter in _spared(model)}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in learning.items():
        decays = id(parameter) not in free and (settings.decay_all or parameter.dim() > 1)
        groups.setdefault((factors.get(name, 1.0), decays), []).append(parameter)
    found = []
    for (factor, decays), parameters in groups.items():
        group: dict[str, Any] = {"params": parameters}
        if factor != 1:
            group["lr"] = settings.lr * factor
        if not decays:
            group["weight_decay"] = 0.0
        found.append(group)
    return found


def _spared(model: FlexibleModel) -> Iterator[nn.Parameter]:
    """What networks of timm ask to be spared of weight decay: class tokens, position embeddings."""
    for part in model.modules():
        if part is not model and callable(names := getattr(part, "no_weight_decay", None)):
            own = dict(part.named_parameters())
            yield from (own[name] for name in names() if name in own)


def rate_factors(model: FlexibleModel, layer_decay: float, branch_rate: float = 1.0) -> Mapping[str, float]:
    """Of the parameters whose rate is not that of the recipe: the network's own wishes, layer-wise decay, and branches.

    The layers of a network of timm are those that timm counts; what stands beside it learns at the rate of branches.
    """
    factors = dict(model.rates())
    if branch_rate != 1:
        beside = [name for name, _ in model.named_parameters() if not name.startswith("backbone.")]
        if model.backbone is None or not beside:
            cause = "train.branch_rate is set, but this method puts no branches on its network."
            raise RecipeError(cause, "Leave it out.")
        factors |= {name: factors.get(name, 1.0) * branch_rate for name in beside}
    if model.backbone is None:
        if layer_decay != 1:
            cause = "train.layer_decay is set, but this method took the network apart."
            raise RecipeError(cause, "Leave it out.")
        return factors
    if layer_decay == 1:
        return factors
    prefix, network = next(
        (
            (path, part)
            for path, part in model.backbone.named_modules(prefix="backbone")
            if hasattr(part, "group_matcher")
        ),
        ("backbone", None),
    )
    if network is None:
        cause = f"train.layer_decay is set, but {type(model.backbone).__name__} does not say what its layers are."
        raise RecipeError(cause, "Use a network of timm, or leave it out.")
    from timm.models import group_parameters

    layers: dict[str, int] = group_parameters(network, network.group_matcher(coarse=False), reverse=True)
    last = max(layers.values())
    for name, layer in layers.items():
        path = f"{prefix}.{name}"
        factors[path] = factors.get(path, 1.0) * layer_decay ** (last - layer)
    return factors
