"""From a recipe to data and model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from supple.backbones import BACKBONES
from supple.backbones.protocols import own_objective, own_task
from supple.backbones.weights import expected_input
from supple.checkpoint import load, read_manifest, read_recipe
from supple.data import copycat
from supple.data.images import ImageSet
from supple.data.registry import DATASETS
from supple.data.registry import load as load_set
from supple.data.splits import Splits
from supple.errors import DataError, RecipeError, SuppleError
from supple.methods import build
from supple.model import FlexibleModel, Shape
from supple.networks import located
from supple.progress import counting
from supple.recipe import Recipe
from supple.text import first, say


def load_data(recipe: Recipe) -> Splits:
    """The data of a recipe, split; what the recipe says of their classes must be true."""
    if not recipe.data.name:
        cause = "this run was trained on data given in Python, which it cannot find again."
        raise DataError(cause, "Give them in Python too; or name some: data.name=folder data.root=PICTURES.")
    settings = recipe.data.model_dump() | input_settings(recipe)
    own = {key: settings[key] for key in DATASETS[recipe.data.name].settings()}
    splits = load_set(recipe.data.name, fingerprint=recipe.data.fingerprint, **own)
    found, given = len(splits.train.classes), recipe.data.classes
    if given is not None and given != found:
        raise RecipeError(
            f"data.classes is {given}, but the data have {found} classes.", "Correct it, or set it to null."
        )
    return splits


def input_settings(recipe: Recipe) -> dict[str, Any]:
    """What the weights that a training starts from decide of its pictures, as far as the recipe is silent.

    With a size of its own, a recipe shows the whole shorter side of a picture.
    """
    given, init = recipe.data.model_dump(), recipe.train.init
    takes = DATASETS[recipe.data.name].settings()
    if init is None or "interpolation" not in takes:
        return {}
    if Path(located(init)).is_dir():
        expected = dict(read_manifest(Path(located(init))).get("preprocess") or {})
    else:
        expected = expected_input(recipe.backbone)
    if given["channels"] not in (None, len(expected.get("mean", ()))):
        return {}  # grey pictures for a network of colours
    if given["size"] not in (None, expected.get("size")):
        expected["crop_share"] = 1.0
    silent = [key for key in ("size", "mean", "std", "crop_share", "interpolation") if given[key] is None]
    return {key: expected[key] for key in silent if key in expected}


def with_copies(recipe: Recipe, splits: Splits, quiet: bool = False) -> Splits:
    """The data with copycat images among those trained on, where the recipe wants them."""
    wanted = recipe.copycat
    if wanted is None:
        return splits
    labeller = load(wanted.labeller)
    if labeller.classes != splits.train.classes:
        raise RecipeError(
            f"the run copycat.labeller={wanted.labeller} knows other classes than the data "
            f"({first(labeller.classes)}).",
            "Name a run that was trained on the same classes.",
        )
    if not isinstance(splits.train, ImageSet) or not splits.train.labelled:
        raise RecipeError(f"copycat is for images of classes, not for {recipe.data.name}.", "Remove the section.")
    sources = copycat.unlabelled(wanted.root, wanted.limit, wanted.seed)
    with counting(len(sources), "labelling", quiet=quiet) as on_progress:
        labels = copycat.label(sources, labeller, on_progress)
    if not quiet:
        say(copycat.describe(wanted.root, labels, labeller.classes))
    return replace(splits, train=copycat.mix(splits.train, sources, labels, wanted.ratio, wanted.seed))


def data_of(run: str | Path) -> Splits:
    """The data that a run was trained with."""
    return load_data(read_recipe(Path(run)))


def pin(recipe: Recipe, splits: Splits) -> Recipe:
    """The recipe with what was measured on the data written down: size, channels, mean, deviation, classes."""
    facts = {"classes": len(splits.train.classes), "fingerprint": splits.fingerprint}
    data = recipe.data.model_copy(update=splits.train.preprocess.facts() | facts)
    return recipe.model_copy(update={"data": data})


def fresh_model(recipe: Recipe, splits: Splits) -> FlexibleModel:
    """The untrained model, its weights a function of the recipe's seed."""
    _must_answer(recipe, splits.train.task)
    torch.manual_seed(recipe.train.seed)
    model = build(recipe.backbone, recipe.method, len(splits.train.classes), splits.train.shape)
    model.classes, model.preprocess, model.task = splits.train.classes, splits.train.preprocess, splits.train.task
    return model


def skeleton(recipe: Recipe, device: str = "meta") -> FlexibleModel:
    """The untrained model, by default without weights; looks at the data only where the recipe does not say enough."""
    entry = DATASETS[recipe.data.name]
    use_audio = bool(recipe.backbone.get("use_audio", False))
    classes = recipe.data.classes or entry.classes
    shape = entry.family.shape(recipe.data.model_dump() | input_settings(recipe), entry.shape, use_audio)
    if classes is None or shape is None:
        try:
            train = load_data(recipe).train
        except SuppleError as error:
            cure = "Set data.classes and data.size, or put the data where data.root says."
            raise RecipeError(
                f"the recipe does not say the number of classes and the image size, nor do the data: {error.cause}",
                cure,
            ) from None
        classes, shape = len(train.classes), train.shape
    _must_answer(recipe, entry.task)
    with torch.device(device):
        model = build(recipe.backbone, recipe.method, classes, shape)
    model.task = entry.task
    return model


def _must_answer(recipe: Recipe, task: str) -> None:
    """Refuses a backbone that answers another task, or that lacks what the task needs."""
    name = recipe.backbone["name"]
    answers = {other: own_task(make) for other, make in BACKBONES.items()}
    able = [other for other, answered in answers.items() if answered == task]
    if answers[name] not in (None, task):
        fitting = " or ".join(other for other, entry in DATASETS.items() if entry.task == answers[name])
        cause = f"the backbone {name} answers {answers[name]}, but the task of {recipe.data.name} is {task}."
        raise RecipeError(cause, f"Use data.name={fitting}.")
    if able and name not in able:
        cause = f"the backbone {name} does not answer {task}, the task of {recipe.data.name}."
        raise RecipeError(cause, f"Use backbone.name={' or '.join(able)}.")
    objective = own_objective(BACKBONES[name])
    if objective is not None and recipe.loss["name"] != objective:
        raise RecipeError(f"the backbone {name} has losses of its own.", f"Say loss: {{name: {objective}}}.")


def network_skeleton(recipe: Recipe) -> tuple[nn.Module, Shape]:
    """The backbone of a recipe without weights, as it is before anything is cut, and the shape of its input."""
    model = skeleton(recipe.model_copy(update={"method": {"name": "static", "learn": "all"}}))
    assert model.input_shape is not None
    return model.get_submodule("backbone"), model.input_shape
