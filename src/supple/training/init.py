"""Where a training starts: from random weights, from another run, from a file, or from published weights."""

from pathlib import Path

from torch import Tensor, nn

from supple.backbones.networks import pretrained
from supple.checkpoint import MANIFEST, WEIGHTS, load, read_manifest, read_tensors
from supple.errors import CheckpointError
from supple.files import sha256
from supple.model import FlexibleModel
from supple.recipe import Recipe
from supple.text import say

BACKBONE = "backbone."
SCORES = "scores."  # of a search for dimensions; for another method they go into the weights that they scale


def initialise(model: FlexibleModel, recipe: Recipe, quiet: bool = False) -> None:
    """Fills a fresh model as `train.init` says."""
    init = recipe.train.init
    if init is None:
        return
    if init == "pretrained":
        network = model.get_submodule(BACKBONE[:-1])
        assert model.input_shape is not None
        pretrained(recipe.backbone["name"], network, recipe.backbone, model.input_shape)
        return
    weights = weights_of(Path(init))
    if any(name.startswith(SCORES) for name in weights) and not any(n.startswith(SCORES) for n in model.state_dict()):
        weights = {BACKBONE + name: value for name, value in load(init).extract().state_dict().items()}
    fresh = start_from(model, weights, init)
    if not quiet:
        say(f"starting from {init}" + (f"; newly initialised: {', '.join(fresh)}" if fresh else ""))


def weights_of(path: Path) -> dict[str, Tensor]:
    """The weights of a run, or those of a network in a safetensors file, under the names that a model has."""
    if path.is_dir():
        vouched = read_manifest(path)["files"].get(WEIGHTS)
        if not (path / WEIGHTS).is_file() or sha256(path / WEIGHTS) != vouched:
            raise CheckpointError(
                f"{path / WEIGHTS} is not the file that {MANIFEST} vouches for.", "Restore it, or train that run again."
            )
        return read_tensors(path / WEIGHTS)
    if not path.exists():
        raise CheckpointError(
            f"train.init is {path}, which does not exist.",
            "Give a run folder, a .safetensors file, or pretrained. A recipe's comments say which run it starts from.",
        )
    return {BACKBONE + name: value for name, value in read_tensors(path).items()}


def start_from(model: nn.Module, weights: dict[str, Tensor], source: str) -> list[str]:
    """Copies weights by name. The backbone must fit wholly; of the rest, whatever fits; gives the parts left fresh."""
    own = model.state_dict()
    for name, value in own.items():
        there = weights.get(name)
        if name.startswith(BACKBONE) and (there is None or there.shape != value.shape):
            seen = "nothing" if there is None else f"shape {tuple(there.shape)}"
            raise CheckpointError(
                f"{source}: {name} has {seen}, the backbone expects shape {tuple(value.shape)}.",
                "Start from a run with the same backbone section and number of classes.",
            )
    fits = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    model.load_state_dict({**own, **fits})
    return sorted({".".join(name.split(".")[:2]) for name in own if name not in fits})
