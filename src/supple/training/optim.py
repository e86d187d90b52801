"""Optimizers by name: torch's, timm's, or those of an imported module, each with its own arguments."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from supple.errors import RecipeError
from supple.text import did_you_mean
from supple.training.arguments import checked_arguments, name_and_rest, settable

if TYPE_CHECKING:
    from supple.recipe import Train

KEY = "train.optimizer"
OptimizerClass = Callable[..., Optimizer]
# Looked at first; a module given by --import may add its own: (params, lr, weight_decay, and whatever a recipe sets).
OPTIMIZERS: dict[str, OptimizerClass] = {"sgd": partial(torch.optim.SGD, momentum=0.9)}
# lbfgs needs the loss again inside a step, sparseadam sparse gradients; torch's muon takes only matrices (not timm's).
UNSUITED = ("optimizer", "lbfgs", "sparseadam", "muon")


def find_optimizer(name: str) -> OptimizerClass:
    """By lower-case name; where torch and timm both have it, torch's meaning counts."""
    ours = {**torch_optimizers(), **OPTIMIZERS}
    if name in ours:
        return ours[name]
    timm: Any = importlib.import_module("timm.optim")
    known = [other for other in timm.list_optimizers() if not timm.get_optimizer_info(other).second_order]
    if name not in known:
        cure = f"{did_you_mean(name, {*ours, *known})} One of your own: supple VERB ... --import MODULE."
        raise RecipeError(f'{KEY} "{name}" is unknown.', cure)
    try:
        found: OptimizerClass = timm.get_optimizer_class(name)
    except (AssertionError, ImportError) as error:
        raise RecipeError(f"{KEY} {name} cannot be used here: {error}.", "Choose another optimizer.") from None
    # As timm itself makes them: its `nesterov` would refuse to be without.
    return partial(found, momentum=0.9) if timm.get_optimizer_info(name).has_momentum else found


def torch_optimizers() -> dict[str, OptimizerClass]:
    classes = {name.lower(): found for name, found in vars(torch.optim).items() if isinstance(found, type)}
    return {name: found for name, found in classes.items() if issubclass(found, Optimizer) and name not in UNSUITED}


def checked_optimizer(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """A name, or a mapping with a name and arguments, as a mapping with every argument that counts."""
    name, arguments = name_and_rest(given, "sgd")
    target = find_optimizer(name)
    hidden = {next(iter(inspect.signature(target).parameters)), "lr", "weight_decay"}
    remark = " The rate is train.lr, the weight decay train.weight_decay."
    return {"name": name, **checked_arguments(KEY, name, arguments, settable(target, hidden), remark)}


def build_optimizer(groups: list[dict[str, Any]], settings: "Train") -> Optimizer:
    """The optimizer of a recipe. Each group remembers its own base rate, which the schedule's factor multiplies."""
    name, arguments = name_and_rest(settings.optimizer, "sgd")
    target = find_optimizer(name)
    if "weight_decay" in inspect.signature(target).parameters:
        arguments["weight_decay"] = settings.weight_decay
    elif settings.weight_decay:
        raise RecipeError(f"{name} has no weight decay.", "Set train.weight_decay=0, or choose another optimizer.")
    try:
        optimizer = target(groups, lr=settings.lr, **arguments)
    except (TypeError, ValueError, RuntimeError, ImportError, AssertionError) as error:
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise RecipeError(
            f"{KEY} {settings.optimizer} is refused: {said}.", f"Correct it. See {name}'s own documentation."
        ) from None
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Each group's own base rate times the schedule's factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
