"""Where a training starts: from random weights, from another run, from a file, or from published weights."""

from pathlib import Path

from torch import Tensor

from supple.backbones.weights import start
from supple.checkpoint import MANIFEST, WEIGHTS, load, read_manifest, read_tensors
from supple.errors import CheckpointError
from supple.files import sha256
from supple.methods.freezing import BACKBONE, classifiers, unfreeze_new
from supple.model import FlexibleModel
from supple.networks import located
from supple.recipe import Recipe
from supple.text import say

SCORES = "scores."  # of a search for dimensions; for another method they go into the weights that they scale
PRETRAINED = "pretrained"


def begun(recipe: Recipe, model: FlexibleModel, quiet: bool) -> Recipe:
    """Gives a fresh model the values that it starts from; the recipe with what was found to be new and learns."""
    fresh = initialise(model, recipe, quiet)
    model.start(fresh)
    unfrozen = unfreeze_new(model, fresh, bool(recipe.method.get("freeze_random")))
    if not unfrozen:
        return recipe
    return recipe.model_copy(update={"method": recipe.method | {"unfrozen": tuple(unfrozen)}})


def initialise(model: FlexibleModel, recipe: Recipe, quiet: bool = False) -> list[str]:
    """Fills a fresh model as `train.init` says; gives the names of what still has random values."""
    init = recipe.train.init
    if init is None:
        return list(model.state_dict())
    if init == PRETRAINED or Path(init).is_file():
        fresh = _from_weights(model, recipe, None if init == PRETRAINED else Path(init))
    else:
        weights = weights_of(Path(located(init)))
        searched = any(name.startswith(SCORES) for name in weights)
        if searched and not any(name.startswith(SCORES) for name in model.state_dict()):
            weights = {BACKBONE + name: value for name, value in load(init).extract().state_dict().items()}
        fresh = start_from(model, weights, init)
    if not quiet:
        parts = sorted({".".join(name.split(".")[:2]) for name in fresh})
        say(f"starting from {init}" + (f"; newly initialised: {', '.join(parts)}" if parts else ""))
    return fresh


def _from_weights(model: FlexibleModel, recipe: Recipe, file: Path | None) -> list[str]:
    assert model.input_shape is not None
    network = model.get_submodule(BACKBONE[:-1])
    left = {BACKBONE + name for name in start(recipe.backbone, network, model.input_shape, file)}
    return [name for name in model.state_dict() if name in left or not name.startswith(BACKBONE)]


def weights_of(path: Path) -> dict[str, Tensor]:
    """The weights of a run."""
    if not path.exists():
        raise CheckpointError(
            f"train.init is {path}, which does not exist.",
            "Give a run folder, a file of weights, or pretrained. A recipe's comments say which run it starts from.",
        )
    digest = read_manifest(path)["files"].get(WEIGHTS)
    if not (path / WEIGHTS).is_file() or sha256(path / WEIGHTS) != digest:
        cause = f"{path / WEIGHTS} does not match its digest in {MANIFEST}."
        raise CheckpointError(cause, "Restore it, or train that run again.")
    return read_tensors(path / WEIGHTS)


def start_from(model: FlexibleModel, weights: dict[str, Tensor], source: str) -> list[str]:
    """Copies weights by name. The backbone must fit wholly, a classifier for other classes aside; of the rest, whatever
    fits. Gives the names of what is left fresh.
    """
    own = model.state_dict()
    new = tuple(f"{path}." for path in classifiers(model))
    for name, value in own.items():
        there = weights.get(name)
        if name.startswith(BACKBONE) and (there is None or there.shape != value.shape) and not name.startswith(new):
            seen = "nothing" if there is None else f"shape {tuple(there.shape)}"
            raise CheckpointError(
                f"{source}: {name} has {seen}, the backbone expects shape {tuple(value.shape)}.",
                "Start from a run with the same backbone section.",
            )
    fits = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    model.load_state_dict({**own, **fits})
    return [name for name in own if name not in fits]
