"""What of a network may stay frozen: only what has been trained."""

from collections.abc import Iterable, Sequence

from supple.backbones.weights import INSIDE, classifier_paths
from supple.errors import RecipeError
from supple.model import FlexibleModel
from supple.text import some

BACKBONE = "backbone."


def classifiers(model: FlexibleModel) -> list[str]:
    """Paths of what gives the logits in the network that a model holds."""
    if model.backbone is None:
        return []
    inside = INSIDE.get((model.backbone_spec or {}).get("name", ""), "")
    held = model.backbone.get_submodule(inside) if inside else model.backbone
    return [".".join(filter(None, (BACKBONE[:-1], inside, path))) for path in classifier_paths(held)]


def unfreeze_new(model: FlexibleModel, fresh: Iterable[str], allowed: bool) -> Sequence[str]:
    """Lets a new classifier of a frozen network learn, and gives its path in the network.

    Whatever else is frozen though its values are random is refused, unless that is allowed.
    """
    random = set(fresh)
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad and name in random]
    paths = [path for path in classifiers(model) if any(name.startswith(f"{path}.") for name in frozen)]
    rest = [name for name in frozen if not name.startswith(tuple(f"{path}." for path in paths))]
    if rest and not allowed:
        cause = f"{some(len(rest), 'tensor')} of the network would stay frozen at random values: {rest[0]}, ..."
        raise RecipeError(
            cause,
            "Start from trained weights (train.init), let all learn (method.way=end_to_end, method.learn=all), "
            "or allow it: method.freeze_random=true.",
        )
    if rest:  # all of it is random on purpose
        return ()
    unfrozen = [path.removeprefix(BACKBONE) for path in paths]
    model.unfreeze(unfrozen)
    return unfrozen
