"""The grid search of SL-ViT, section 3.1: d and heads with the best accuracy within a limit of parameters.

The limit is the paper's: no more than the default CNN branch has at the same cut.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from supple import checkpoint, files
from supple.errors import RecipeError
from supple.methods.branches import affordable
from supple.model import example
from supple.recipe import Recipe, make_recipe
from supple.text import say
from supple.training.build import skeleton
from supple.training.loop import train

FOUND = "search.json"


@dataclass(frozen=True)
class Try:
    """One branch at one exit, with its score on the validation images."""

    point: str
    d: int
    heads: int
    params: int
    score: float
    loss: float


def search(
    recipe: Recipe, folder: Path, d: tuple[int, ...], heads: tuple[int, ...], quiet: bool = False
) -> list[list[Try]]:
    """Trains every affordable (d, heads) once, all exits together; gives the tries of each exit, best first.

    Interrupted, it goes on where it stopped. `search.json` in the folder keeps what was found.
    """
    model = skeleton(recipe)
    if not model.taps:
        raise RecipeError(
            "a search needs a network cut with method.at.", "Give a recipe of method exits with at: [...]."
        )
    assert model.input_shape is not None
    classes = int(model(example(model.input_shape, 2, torch.empty, device="meta")).shape[-1])
    within = [
        {(row["d"], row["heads"]): row for row in affordable(tap, classes, d=d, heads=heads)} for tap in model.taps
    ]
    wanted = sorted(set().union(*within))
    if not wanted:
        raise RecipeError(
            f"none of d={list(d)} with heads={list(heads)} stays within the parameters of the CNN branch.",
            "Try smaller ones.",
        )
    tries: list[list[Try]] = [[] for _ in model.taps]
    for place, (width, number) in enumerate(wanted, 1):
        if not quiet:
            say(f"{place} of {len(wanted)}: d={width} heads={number}")
        run = train(with_branch(recipe, width, number), folder / f"d{width}-heads{number}", resume=True, quiet=quiet)
        validation = selected(run)
        for exit_, allowed in enumerate(within):
            if (width, number) in allowed:
                point = str(model.stages()[exit_].point)
                params, seen = allowed[width, number]["params"], validation[point]
                tries[exit_].append(Try(point, width, number, params, seen["score"], seen["loss"]))
    ranked = [sorted(one, key=lambda t: (-t.score, t.loss)) for one in tries]
    files.write(folder / FOUND, json.dumps([[vars(one) for one in exit_] for exit_ in ranked], indent=1))
    return ranked


def with_branch(recipe: Recipe, d: int, heads: int) -> Recipe:
    """The recipe with SL-ViT branches of this size; what the recipe says of them besides stays."""
    document = recipe.resolved()
    given: Any = document["method"]["branch"]
    given = given[0] if isinstance(given, list) else given
    base = {k: v for k, v in given.items() if k != "patch"} if given["name"] == "sl_vit" else {"name": "sl_vit"}
    document["method"]["branch"] = {**base, "d": d, "heads": heads}
    return make_recipe(document)


def selected(run: Path) -> dict[str, dict[str, float]]:
    """The validation figures of the epoch that a run kept."""
    lines = [json.loads(line) for line in (run / checkpoint.METRICS).read_text().splitlines()]
    kept: dict[str, dict[str, float]] = [line for line in lines if line["selected"]][-1]["val"]
    return kept
