"""Learning rates and early stopping as pure functions of progress and history: nothing to save, nothing to restore.

A schedule gives the factor of the base rate after `progress` of `epochs` epochs (a fraction inside an epoch), given the
validation losses so far. Its keyword-only arguments are what a recipe may set.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch.optim import lr_scheduler

from supple.errors import RecipeError
from supple.text import did_you_mean
from supple.training.optim import checked_arguments, name_and_rest, refusal, settable

if TYPE_CHECKING:
    from supple.recipe import Train

KEY = "train.schedule"
Share = Annotated[float, Field(gt=0, le=1)]
Factor = Callable[[float, Sequence[float]], float]


def constant(progress: float, epochs: int, history: Sequence[float]) -> float:
    return 1.0


def cosine(progress: float, epochs: int, history: Sequence[float]) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress / epochs)))


def step(
    progress: float,
    epochs: int,
    history: Sequence[float],
    *,
    milestones: tuple[int, ...] = (),  # epochs after which the rate falls
    gamma: Share = 0.1,  # what it is multiplied by
) -> float:
    return gamma ** sum(int(progress) >= milestone for milestone in milestones)


def exponential(progress: float, epochs: int, history: Sequence[float], *, gamma: Share = 0.1) -> float:
    """`gamma` times the rate of the epoch before."""
    return gamma ** int(progress)


def plateau(
    progress: float,
    epochs: int,
    history: Sequence[float],
    *,
    gamma: Share = 0.1,
    patience: Annotated[int, Field(ge=1)] = 2,  # epochs without a better validation loss before the rate falls
) -> float:
    return gamma ** plateaus(history, patience)


# Looked at first; a module given by --import may add its own.
SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "cosine": cosine,
    "step": step,
    "exponential": exponential,
    "plateau": plateau,
}


def checked_schedule(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """A name, or a mapping with a name and arguments, as a mapping with every argument that counts."""
    name, arguments = name_and_rest(given, "cosine")
    if name in SCHEDULES:
        parameters = settable(SCHEDULES[name], ("progress", "epochs", "history"))
        return {"name": name, **checked_arguments(KEY, name, arguments, parameters)}
    target, remark = find_scheduler(name), " Counts are of steps; rates are shares of train.lr."
    return {"name": name, **checked_arguments(KEY, name, arguments, _scheduler_parameters(target), remark)}


def make_schedule(settings: "Train", steps: int) -> Factor:
    """The factor of every group's base rate as a function of progress and history, for epochs of so many steps."""
    name, arguments = name_and_rest(settings.schedule, "cosine")
    epochs, warmup = settings.epochs, settings.warmup
    factors: Sequence[float] = () if name in SCHEDULES else tabulate(name, arguments, epochs * steps)

    def factor(progress: float, history: Sequence[float]) -> float:
        if name in SCHEDULES:
            found = SCHEDULES[name](progress, epochs, history, **arguments)
        else:
            found = factors[round(progress * steps)]
        return found * (progress / warmup) if progress < warmup else found

    return factor


# --- schedulers of torch and timm -------------------------------------------------------------------------------------

# Those that are made of functions or of other schedulers, or that wait for a metric.
UNSUITED = ("", "lambda", "multiplicative", "sequential", "chained", "reduce_lron_plateau", "plateau")
LENGTHS = ("total_steps", "T_max", "total_iters", "t_initial")  # left out: the whole training
# Warm-up is a setting of `train`; momentum stays as it is; the rest follows from how they are used here.
HIDDEN = (
    *("optimizer", "last_epoch", "cycle_momentum", "base_momentum", "max_momentum", "epochs", "steps_per_epoch"),
    *("scale_fn", "t_in_epochs", "initialize", "warmup_t", "warmup_lr_init", "warmup_prefix"),
)


def find_scheduler(name: str) -> Callable[..., Any]:
    """A class of torch.optim.lr_scheduler or timm.scheduler: `one_cycle` is OneCycleLR, `tanh` TanhLRScheduler."""
    import timm.scheduler

    found = {_snake(each): getattr(timm.scheduler, each) for each in dir(timm.scheduler) if each.endswith("Scheduler")}
    found |= {_snake(each): getattr(lr_scheduler, each) for each in lr_scheduler.__all__}
    found = {each: target for each, target in found.items() if each not in UNSUITED}
    if name in found:
        target: Callable[..., Any] = found[name]
        return target
    if "plateau" in name:
        cause = f'{KEY} "{name}" would have to be told a metric.'
        raise RecipeError(
            cause, "Use plateau, which follows the validation loss: {name: plateau, gamma: 0.1, patience: 2}."
        )
    cure = f"{did_you_mean(name, {*SCHEDULES, *found})} One of your own: supple VERB ... --import MODULE."
    raise RecipeError(f'{KEY} "{name}" is unknown.', cure)


def tabulate(name: str, arguments: Mapping[str, Any], total: int) -> Sequence[float]:
    """The factors of all steps of a training: the scheduler is run once on a rate of 1, and never saved."""
    target = find_scheduler(name)
    takes = settable(target, ())
    timms = "t_in_epochs" in takes
    usual = {**dict.fromkeys(LENGTHS, total), "max_lr": 1.0, "cycle_momentum": False, "t_in_epochs": False}
    filled = {key: value for key, value in usual.items() if key in takes and key not in arguments}
    optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=1.0)
    (group,) = optimizer.param_groups
    factors = []
    try:
        scheduler = target(optimizer, **filled, **arguments)
        optimizer.step()  # torch warns where the scheduler is the first to step
        for number in range(total):
            if timms:
                scheduler.step_update(number)
            elif number:
                scheduler.step()
            factors.append(float(group["lr"]))
    except (TypeError, ValueError, ArithmeticError, AssertionError) as error:
        cure = f"Correct it. This training has {total} steps."
        raise refusal(KEY, dict(name=name, **arguments), error, cure) from None
    if not all(math.isfinite(factor) and factor >= 0 for factor in factors):
        raise RecipeError(f"{KEY} {name} gives rates that are negative or not finite.", "Correct its arguments.")
    return factors


def _scheduler_parameters(target: Callable[..., Any]) -> dict[str, Parameter]:
    """What a recipe may set; what can be filled in may be left out."""
    found = settable(target, HIDDEN)
    return {key: one.replace(default=None) if key in (*LENGTHS, "max_lr") else one for key, one in found.items()}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Scheduler").removesuffix("LR")).lower()


# --- the validation losses so far -------------------------------------------------------------------------------------


def plateaus(history: Sequence[float], patience: int) -> int:
    """How often the loss went `patience` epochs without a new best; the count starts anew after each time."""
    best, waited, found = math.inf, 0, 0
    for loss in history:
        if loss < best:
            best, waited = loss, 0
        else:
            waited += 1
            if waited >= patience:
                found, waited = found + 1, 0
    return found


def should_stop(history: Sequence[float], patience: int) -> bool:
    """Whether the last `patience` epochs brought no new best (patience 0: never)."""
    if not patience or not history:
        return False
    return len(history) - 1 - min(range(len(history)), key=history.__getitem__) >= patience
