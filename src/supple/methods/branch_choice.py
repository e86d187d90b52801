"""Which branch: by name and settings, as a recipe asks for it, or by the paper's rule of parameters."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from supple.backbones.tap import Tap
from supple.cost import count_params
from supple.errors import RecipeError
from supple.methods.branches import Cnn, Linear, SlVit, automatic_patch, check_ranges
from supple.recipe import named_settings
from supple.text import quantity

BRANCHES: dict[str, type[nn.Module]] = {"cnn": Cnn, "sl_vit": SlVit, "linear": Linear}
MOST_PARAMS = 10**9  # of one branch: more is a slip, and would end in a full memory


def checked_branch(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's `method.branch` (a name, or a mapping with a name) with every setting written out."""
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        cure = f"Give a name ({', '.join(BRANCHES)}), or a mapping such as {{name: sl_vit, heads: 4}}."
        raise RecipeError(f"recipe: method.branch is {given!r}.", cure)
    settings = named_settings("method.branch", dict(given), BRANCHES, "recipe")
    check_ranges(**settings)
    return settings


def make_branch(given: str | Mapping[str, Any], tap: Tap, num_classes: int) -> nn.Module:
    """The untrained branch that a recipe asks for, to be put on a tap."""
    settings = checked_branch(given)
    kind = BRANCHES[settings.pop("name")]
    params = branch_params(kind, tap, num_classes, **settings)
    if params > MOST_PARAMS:
        cause = f"method.branch would have {quantity(params)} parameters on {tap}, more than {quantity(MOST_PARAMS)}."
        raise RecipeError(cause, "Use smaller settings, or linear.")
    return kind(tap, num_classes, **settings)


def affordable(
    tap: Tap,
    num_classes: int,
    limit: int | None = None,
    d: Iterable[int] = (16, 24, 32, 36, 48, 64),
    heads: Iterable[int] = (1, 2, 4, 8, 12, 16, 24),
) -> list[dict[str, Any]]:
    """SL-ViT settings (name, patch, d, heads) with their `params`, within a limit of parameters, most first.

    The default limit is what the default CNN branch has on the same tap: the rule of the paper's grid search.
    """
    if limit is None:
        limit = branch_params(Cnn, tap, num_classes)
    found: list[dict[str, Any]] = []
    for width, number in itertools.product(d, heads):
        settings = {"patch": automatic_patch(tap), "d": width, "heads": number}
        params = branch_params(SlVit, tap, num_classes, **settings)
        if params <= limit:
            found.append({"name": "sl_vit", **settings, "params": params})
    return sorted(found, key=lambda row: row["params"], reverse=True)


def branch_params(kind: type[nn.Module], tap: Tap, num_classes: int, **settings: Any) -> int:
    """Counted on a branch without weights."""
    with torch.device("meta"):
        return count_params(kind(tap, num_classes, **settings).parameters())
