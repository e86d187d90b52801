"""Optimizers by name: torch's, timm's, or those of an imported module, each with its own arguments.

How arguments are read and checked serves schedules too.
"""

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import BeforeValidator, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from torch.optim import Optimizer

from supple.errors import RecipeError
from supple.recipe import STRICT
from supple.text import did_you_mean, one_line

if TYPE_CHECKING:
    from supple.model import FlexibleModel
    from supple.recipe import Train

KEY = "train.optimizer"
OptimizerClass = Callable[..., Optimizer]
# Looked at first; a module given by --import may add its own: (params, lr, weight_decay, and whatever a recipe sets).
OPTIMIZERS: dict[str, OptimizerClass] = {"sgd": partial(torch.optim.SGD, momentum=0.9)}
UNSUITED = ("optimizer", "lbfgs", "sparseadam", "muon")  # muon: timm's is taken, torch's takes only matrices
UNSUITED_BECAUSE = "lbfgs needs the loss again inside a step, sparseadam sparse gradients"
PLAIN: dict[Any, type] = {"int": int, "float": float, "bool": bool, "str": str}  # annotations that are text

# Settings of `train` that suit networks which start from trained weights.
FINE_TUNING = {
    "optimizer": {"name": "adamw"},
    "lr": 5e-4,
    "weight_decay": 0.05,
    "decay_all": False,
    "schedule": "cosine",
    "warmup": 0.5,
    "ema": 0.999,
    "select": "last",  # averaged weights need no choice among noisy scores
}
BRANCH_RATE = 10.0  # of new branches on such a network, over its own


def fine_tuning(model: "FlexibleModel") -> dict[str, Any]:
    """Settings of `train` for a model whose network starts from trained weights: branches on it are new, and learn
    faster."""
    branched = {name.startswith("backbone.") for name, one in model.named_parameters() if one.requires_grad}
    return FINE_TUNING | ({"branch_rate": BRANCH_RATE} if branched == {True, False} else {})


def find_optimizer(name: str) -> OptimizerClass:
    """By lower-case name; where torch and timm both have it, torch's meaning counts."""
    ours = {**torch_optimizers(), **OPTIMIZERS}
    if name in ours:
        return ours[name]
    timm: Any = importlib.import_module("timm.optim")
    known = [other for other in timm.list_optimizers() if not timm.get_optimizer_info(other).second_order]
    if name not in known:
        if name in UNSUITED:
            raise RecipeError(f"{KEY} {name} does not fit this loop: {UNSUITED_BECAUSE}.", "Choose another optimizer.")
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
        raise refusal(KEY, settings.optimizer, error, f"Correct it. See {name}'s own documentation.") from None
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Each group's own base rate times the schedule's factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


# --- keyword arguments of classes and functions that others wrote, by name and checked --------------------------------


def name_and_rest(given: str | Mapping[str, Any], default: str) -> tuple[str, dict[str, Any]]:
    """`adamw` or `{name: adamw, eps: 1e-6}` as a name and arguments; arguments alone are those of the default."""
    rest = {"name": given} if isinstance(given, str) else dict(given)
    return str(rest.pop("name", default)), rest


def settable(target: Callable[..., Any], hidden: Collection[str]) -> dict[str, inspect.Parameter]:
    """The arguments that a recipe may set."""
    parameters = inspect.signature(target).parameters
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: one for name, one in parameters.items() if one.kind in kinds and name not in hidden}


def checked_arguments(
    key: str, name: str, given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], remark: str = ""
) -> dict[str, Any]:
    """The arguments given, and the defaults of the others written out, save None and False, which switch nothing on.

    What is unknown, missing or of another type is refused; what the values may be is for the target to say.
    """
    takes = f"{name} takes {', '.join(parameters) or 'no arguments'}.{remark}"
    for one in given:
        if one not in parameters:
            guess = did_you_mean(str(one), parameters) if parameters else ""
            cure = f"{guess} {takes}" if guess.startswith("Did") else takes
            raise RecipeError(f'unknown key "{key}.{one}".', cure)
    for one, parameter in parameters.items():
        if parameter.default is parameter.empty and one not in given:
            raise RecipeError(f"{key}.{one} is missing: {name} needs it.", f"Add it. {takes}")
    fields: dict[str, Any] = {one: (_type(parameter), parameter.default) for one, parameter in parameters.items()}
    try:
        values = create_model("Arguments", __config__=STRICT, **fields).model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        one = str(first["loc"][0])
        default = parameters[one].default
        usual = f" The default is {default!r}." if _written(default) else ""
        raise RecipeError(f"{key}.{one} is {given[one]!r}.", f"{first['msg']}.{usual}") from None
    found = {one: getattr(values, one) for one in parameters}
    return {one: value for one, value in found.items() if _written(value) or value is not parameters[one].default}


def _type(parameter: inspect.Parameter) -> Any:
    """What is annotated, if it means something to pydantic; else what the default is."""
    annotation = PLAIN.get(parameter.annotation, parameter.annotation)
    if annotation is not parameter.empty and not isinstance(annotation, str):
        try:
            TypeAdapter(annotation)
        except PydanticSchemaGenerationError:
            pass
        else:
            return annotation
    default = parameter.default
    if isinstance(default, (bool, str)):
        return type(default)
    if isinstance(default, (int, float)):
        return int | float
    if isinstance(default, tuple) and default:
        return tuple[tuple(int | float for _ in default)]  # type: ignore[misc]
    return Annotated[Any, BeforeValidator(_number)]


def _number(value: Any) -> Any:
    """YAML takes 1e-6 for a word."""
    if isinstance(value, list):
        return [_number(part) for part in value]
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _written(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(isinstance(part, (int, float, str)) for part in value)
    return isinstance(value, (int, float, str)) and value is not False


def refusal(key: str, given: object, error: Exception, cure: str) -> RecipeError:
    """What a target says of arguments that it does not take."""
    return RecipeError(f"{key} {given} is refused: {one_line(error, 300)}.", cure)
