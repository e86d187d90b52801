"""Networks of timm and torchvision by name, as backbones of a recipe."""

import inspect
import warnings
from typing import Any

import torch
from torch import nn

from supple.backbones._cut.trace import weightless
from supple.backbones.classifier import replace_classifier
from supple.backbones.dims import Shape, resize
from supple.backbones.protocols import own_outputs
from supple.errors import RecipeError
from supple.model import Shape as ModelShape
from supple.model import example
from supple.text import did_you_mean, one_line

Scalar = bool | int | float | str | None
Arguments = dict[str, Scalar | tuple[Scalar, ...]]


def timm_network(
    *,
    num_classes: int,  # classes to tell apart
    in_channels: int = 3,  # channels of the images
    input_shape: tuple[int, ...] = (),  # of one image; transformers are built for one size
    model: str,  # timm's name: resnet50, deit_tiny_patch16_224, ...
    classifier: int = 0,  # hidden units of a new classifier of two dense layers; 0: one linear layer
    dropout: float = 0.5,  # between these two layers
    drop_path: float = 0.0,  # stochastic depth while training
    args: Arguments = {},  # noqa: B006  # further arguments of the network, such as {depth: 6}
    kept: Shape = (),  # of a pruned transformer: for each block its kept dimensions of a head, and of the MLP
) -> nn.Module:
    """Any network of timm. Its weights are random: `train.init: pretrained` fetches timm's own."""
    import timm

    name = model.partition(".")[0]
    if not timm.is_model(name):
        raise RecipeError(f'timm has no network "{model}".', did_you_mean(name, timm.list_models()))
    settings = for_size(model, input_shape) | {"num_classes": num_classes, "in_chans": in_channels, **args}
    if drop_path:
        settings["drop_path_rate"] = drop_path
    network = made(lambda: timm.create_model(model, pretrained=False, **settings), f"timm's {model}", settings)
    if classifier:
        names = getattr(timm_facts(model), "classifier", None)
        first = names[0] if isinstance(names, (tuple, list)) else names  # a distilled network has two
        replace_classifier(network, str(first), num_classes, classifier, dropout)
    if kept:
        resize(network, kept)
    return network


def for_size(model: str, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """Networks that are built for one image size are told which."""
    fixed = getattr(timm_facts(model), "fixed_input_size", False)
    return {"img_size": input_shape[-1]} if fixed and len(input_shape) > 1 else {}


def torchvision_network(
    *,
    num_classes: int,  # classes to tell apart
    in_channels: int = 3,  # channels of the images; only 3
    model: str,  # torchvision's name: resnet50, mobilenet_v3_small, ...
    classifier: int = 0,  # hidden units of a new classifier of two dense layers; 0: one linear layer
    dropout: float = 0.5,  # between these two layers
    args: Arguments = {},  # noqa: B006  # further arguments of the network
) -> nn.Module:
    """Any classification network of torchvision. Its weights are random: see `train.init`."""
    from torchvision import models

    known = models.list_models(module=models)
    if model not in known:
        raise RecipeError(f'torchvision has no classifier "{model}".', did_you_mean(model, known))
    if in_channels != 3:
        raise RecipeError(f"torchvision's {model} takes 3 channels, not {in_channels}.", "Set data.channels=3.")
    settings: dict[str, Any] = {"num_classes": num_classes, **args}
    if model in ("inception_v3", "googlenet"):
        settings |= {"aux_logits": False, "transform_input": False, "init_weights": True}
    network = made(lambda: models.get_model(model, weights=None, **settings), f"torchvision's {model}", settings)
    if classifier:
        linear = [name for name, part in network.named_modules() if isinstance(part, nn.Linear)]
        replace_classifier(network, linear[-1] if linear else "", num_classes, classifier, dropout)
    return network


def made(make: Any, what: str, settings: dict[str, Any]) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = make()
    except (TypeError, ValueError, AssertionError, RuntimeError, KeyError) as error:
        cause = f"{what} cannot be built with {settings}: {one_line(error)}."
        raise RecipeError(cause, "Change backbone.args, or data.size.") from None
    assert isinstance(network, nn.Module)
    return network


def fitting(target: Any, **facts: Any) -> dict[str, Any]:
    """Those of the facts (num_classes, in_channels, input_shape) that a class or function asks for."""
    wanted = inspect.signature(target).parameters
    return {name: value for name, value in facts.items() if name in wanted}


def _output_size(network: nn.Module, input_shape: ModelShape) -> int:
    try:
        with torch.no_grad():
            given = weightless(network).eval()(example(input_shape, 2, torch.empty, device="meta"))
    except Exception as error:
        cause = f"{type(network).__name__} does not run on inputs of shape {input_shape}: {one_line(error)}"
        raise RecipeError(cause, "Give the shape of one sample that it takes.") from None
    if not isinstance(given, torch.Tensor) or given.dim() != 2:
        what = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__
        cause = f"{type(network).__name__} gives {what} for a batch, not one row of logits for each sample."
        raise RecipeError(cause, "Wrap it in a module that returns the logits alone.")
    return int(given.shape[-1])


def runs_at(network: nn.Module, side: int) -> bool:
    """Whether a network takes pictures of so many pixels a side."""
    try:
        _output_size(network, (3, side, side))
    except RecipeError:
        return False
    return True


def check_outputs(network: nn.Module, input_shape: ModelShape, num_classes: int) -> int:
    """How many numbers a network gives for one sample, which must be `num_classes`; 0: whatever it is.

    One whose answer is not a row of logits says so itself (`outputs`).
    """
    own = own_outputs(network)
    found = _output_size(network, input_shape) if own is None else own
    if num_classes not in (0, found):
        cause = f"the network gives {found} numbers for an image, but num_classes is {num_classes}."
        raise RecipeError(cause, f"Leave num_classes out, or build the network for {num_classes} classes.")
    return found


def timm_facts(name: str) -> Any:
    """What timm publishes with a network of its own (input_size, num_classes, ...), and with the weights that a tag
    names, or the usual ones; None: it has no such network.
    """
    import timm

    if not timm.is_model(name.partition(".")[0]):
        return None
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError:  # it has other tags
        plain, _, tag = name.partition(".")
        known = [one.partition(".")[2] for one in timm.list_pretrained(f"{plain}.*")]
        raise RecipeError(f"timm has no weights of {plain} with the tag {tag}.", did_you_mean(tag, known)) from None


def is_plain_vit(name: str) -> bool:
    """Whether a name is that of a ViT or DeiT of timm, which can be taken as stem, blocks and head."""
    import timm

    name = name.partition(".")[0]
    home: str = timm.model_entrypoint(name).__module__ if timm.is_model(name) else ""
    return home.rpartition(".")[2] in ("vision_transformer", "deit")
