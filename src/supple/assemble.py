"""From a recipe to data and model."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from supple.backbones import BACKBONES
from supple.backbones.protocols import own_task
from supple.checkpoint import load, read_manifest
from supple.data import copycat
from supple.data.choice import Splits
from supple.data.coco_parts import prepared
from supple.data.crowd_prepare import HEARD
from supple.data.crowd_set import picture_size
from supple.data.images import ImageSet
from supple.data.pictures import heard
from supple.data.sets import load as load_set
from supple.data.sets import task_of
from supple.errors import RecipeError, SuppleError
from supple.methods import build
from supple.model import FlexibleModel, Shape
from supple.progress import counting
from supple.recipe import Recipe, make_recipe
from supple.text import first, say

# What is known of a data set without having it: classes and shape of a sample.
FACTS = {"cifar10": (10, (3, 32, 32)), "cifar100": (100, (3, 32, 32)), "digits": (10, (1, 8, 8))}
CLASSES = {"speech_commands": 12, "gtzan": 10}
COCO = 80  # classes of COCO itself; other sets of its kind say data.classes


def load_data(recipe: Recipe) -> Splits:
    """The data of a recipe, split; what the recipe says of their classes must be true."""
    splits = load_set(**recipe.data.model_dump(exclude={"batch_size", "classes"}))
    found, said = len(splits.train.classes), recipe.data.classes
    if said is not None and said != found:
        raise RecipeError(
            f"data.classes is {said}, but the data have {found} classes.", "Correct it, or set it to null."
        )
    return splits


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
    if not isinstance(splits.train, ImageSet):
        raise RecipeError(f"copycat is for images of classes, not for {recipe.data.name}.", "Remove the section.")
    sources = copycat.unlabelled(wanted.root, wanted.limit, wanted.seed)
    with counting(len(sources), "labelling", quiet=quiet) as watch:
        labels = copycat.label(sources, labeller, watch)
    if not quiet:
        say(copycat.describe(wanted.root, labels, labeller.classes))
    return replace(splits, train=copycat.mix(splits.train, sources, labels, wanted.ratio, wanted.seed))


def data_of(run: str | Path) -> Splits:
    """The data that a run was trained with."""
    return load_data(make_recipe(read_manifest(Path(run))["recipe"]))


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
    wanted = recipe.data
    if task_of(wanted.name) == "count":
        return _built(recipe, 1, crowd_shape(recipe), device)
    if task_of(wanted.name) == "boxes":
        return _built(recipe, wanted.classes or COCO, prepared(wanted.sizes, wanted.longest).shape, device)
    classes, shape = FACTS.get(wanted.name, (wanted.classes or CLASSES.get(wanted.name), None))
    hearing, usual_size = heard(wanted.name, **wanted.model_dump(include={"rate", "seconds", "features", "mels"}))
    size = wanted.size or usual_size
    if isinstance(size, tuple):
        raise RecipeError(f"data.size is {list(size)}, but pictures of {wanted.name} are square.", "Give one number.")
    if shape is None and size is not None:
        shape = (wanted.channels or (3 if hearing is None else hearing.channels), size, size)
    if classes is None or shape is None:
        try:
            train = load_data(recipe).train
        except SuppleError as error:
            cure = "Set data.classes and data.size, or put the data where data.root says."
            raise RecipeError(
                f"the recipe does not say how many classes and pixels there are, nor do the data: {error.cause}", cure
            ) from None
        classes, shape = len(train.classes), train.shape
    elif wanted.name in FACTS:
        channels, size = wanted.channels or shape[0], size or shape[1]
        shape = (channels, size, size)
    return _built(recipe, classes, shape, device)


def crowd_shape(recipe: Recipe) -> Shape:
    """Of a picture, and of the sound beside it where the backbone of the recipe listens."""
    picture = (3, *picture_size(recipe.data.name, recipe.data.size))
    return (picture, HEARD) if recipe.backbone.get("use_audio") else picture


def _must_answer(recipe: Recipe, task: str) -> None:
    """Refuses a classifier for boxes, and a detector for classes."""
    name = recipe.backbone["name"]
    finds = own_task(BACKBONES[name]) == "boxes"
    if finds and task != "boxes":
        raise RecipeError(f"the backbone {name} finds objects; {recipe.data.name} has none.", "Use data.name=coco.")
    if task == "boxes" and not finds:
        raise RecipeError(f"the backbone {name} does not find objects.", "Use backbone.name=cascade_rcnn.")
    if task == "boxes" and recipe.loss["name"] != "own":
        raise RecipeError("a detector has losses of its own.", "Say loss: {name: own}.")


def _built(recipe: Recipe, classes: int, shape: Shape, device: str) -> FlexibleModel:
    _must_answer(recipe, task_of(recipe.data.name))
    with torch.device(device):
        model = build(recipe.backbone, recipe.method, classes, shape)
    model.task = task_of(recipe.data.name)
    return model


def network_skeleton(recipe: Recipe) -> tuple[nn.Module, Shape]:
    """The backbone of a recipe without weights, as it is before anything is cut, and the shape of its input."""
    model = skeleton(recipe.model_copy(update={"method": {"name": "static", "learn": "all"}}))
    assert model.input_shape is not None
    return model.get_submodule("backbone"), model.input_shape
