"""Choices that only a clock can make, taken once before the first step and written into the recipe.

Threads, precision, memory format, torch.compile: `auto` becomes what this machine does best for this model.
"""

import copy
import math
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from supple.errors import RecipeError
from supple.losses import Objective
from supple.machine import has_bf16
from supple.model import FlexibleModel
from supple.point import Point
from supple.recipe import Train
from supple.text import duration, say
from supple.training.step import make_fabric, set_up, to_step, training_step

WORTH_PROBING_S = 30  # a training shorter than this is not probed
WORTH_COMPILING_S = 600  # compiling takes a minute or two of its own
GAIN = 0.95  # a choice must save at least 5 % of the step
ROUNDS = 3  # timed steps
COMPILED = 0.87  # of the time of a step that is not compiled, at most
BF16_SPEED = 1.15  # bf16 must be so many times as fast as fp32, which is the more exact
Clock = Callable[[], float]  # seconds


def choose(
    settings: Train,
    model: FlexibleModel,
    points: Sequence[Point],
    batch: tuple[Any, Any],
    steps: int,
    objective: Objective,
    device: torch.device,
    quiet: bool = False,
    clock: Clock = time.perf_counter,
) -> Train:
    """The settings with every `auto` replaced, for a training of so many steps on batches like this one.

    One after the other, each measured in the form chosen so far and none measured again: the memory format in fp32 (or
    in the precision that is already settled), then the precision in that memory format, then compilation in both.
    """
    timing = Timing(model, points, objective, batch, clock)
    chosen = {
        "threads": settings.threads or torch.get_num_threads(),
        "precision": "fp32" if settings.precision == "auto" else settings.precision,
        "memory_format": "channels_first" if settings.memory_format == "auto" else settings.memory_format,
        "compile": "off",
    }

    seconds = 0.0  # of all steps, in the form chosen so far

    def consider(most: float, **change: str) -> None:
        """Makes a change with which a step takes at most this share of the time of one without."""
        nonlocal seconds
        ratio = timing.ratio(_changed(settings, chosen | change), _changed(settings, chosen))
        if ratio <= most:
            chosen.update(change)
            seconds *= ratio

    try:
        seconds = timing.step_s(_changed(settings, chosen)) * steps
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        cause = "batch norm cannot learn from one value: a batch has one sample."
        raise RecipeError(cause, "Raise data.batch_size, or add samples to train on.") from None
    long_enough = seconds > WORTH_PROBING_S and device.type == "cpu"
    able = isinstance(batch[0], Tensor) and batch[0].dim() == 4
    if settings.memory_format == "auto" and long_enough and able:
        consider(GAIN, memory_format="channels_last")
    if settings.precision == "auto" and long_enough and has_bf16():
        consider(1 / BF16_SPEED, precision="bf16")
    able = bool(model.compilable_modules()) and settings.sample != "one" and shutil.which("g++") is not None
    worth = able and (seconds > WORTH_COMPILING_S or device.type == "cuda")
    if settings.compile == "on":
        chosen["compile"] = "on"
    elif settings.compile == "auto" and worth:
        consider(COMPILED, compile="on")
    if not quiet:
        words = ", ".join(f"{key}={value}" for key, value in chosen.items())
        say(f"chosen: {words} (about {duration(seconds)} of steps)")
    return _changed(settings, chosen)


@dataclass(frozen=True)
class Timing:
    """Times training steps of copies of a model on one batch, by the settings of a training."""

    model: FlexibleModel
    points: Sequence[Point]
    objective: Objective
    batch: tuple[Any, Any]
    clock: Clock

    def stepper(self, settings: Train) -> Callable[[], tuple[float, float]]:
        """A step on one device, at a rate that leaves the weights about where they are: its seconds, and the loss."""
        settings = _changed(settings, {"lr": 1e-6, "devices": 1, "nodes": 1})
        fabric = make_fabric(settings)
        wrapped, optimizer = set_up(fabric, settings, copy.deepcopy(self.model).train())
        batch = to_step(fabric, settings, self.batch)

        def step() -> tuple[float, float]:
            start = self.clock()
            _, loss = training_step(fabric, settings, wrapped, optimizer, self.objective, batch, self.points)
            return self.clock() - start, loss

        step()  # warm-up, and compilation
        return step

    def step_s(self, settings: Train) -> float:
        step = self.stepper(settings)
        return statistics.median(step()[0] for _ in range(ROUNDS))

    def ratio(self, one: Train, other: Train) -> float:
        """The time of a step by some settings over one by others, in interleaved rounds.

        Infinite where the first make the loss something other than a finite number.
        """
        with_it, without = self.stepper(one), self.stepper(other)
        pairs = [(with_it(), without()[0]) for _ in range(ROUNDS)]
        if not all(math.isfinite(loss) for (_, loss), _ in pairs):
            return math.inf
        return statistics.median(took for (took, _), _ in pairs) / statistics.median(took for _, took in pairs)


def settle_precision(settings: Train, quiet: bool = False) -> Train:
    """The settings with a precision that this machine has; still `auto` where `choose` is to measure.

    Says so where a training cannot be resumed in the precision that `auto` chose on another machine.
    """
    found = pick_precision(settings)
    if found == "fp32" != settings.precision != "auto" and not quiet:
        say(f"{settings.precision}, chosen by auto on another machine, is missing here: resuming in fp32.")
    chosen = settings.precision_chosen or settings.precision == "auto"
    return _changed(settings, {"precision": found, "precision_chosen": chosen})


def pick_precision(settings: Train) -> str:
    """Mixed precision only where the hardware has it: without bf16 instructions a CPU is many times slower.

    For `auto`: bf16 on a GPU that has it; `auto` still on a CPU that has it, where only a measurement can tell (see
    `choose`); else fp32. Several processes are not measured: all must have set up the same precision before they meet.
    """
    asked, alone = settings.precision, settings.devices * settings.nodes == 1
    on_gpu = torch.cuda.is_available() and settings.accelerator in ("auto", "cuda", "gpu")
    able = {"bf16": torch.cuda.is_bf16_supported() if on_gpu else has_bf16(), "fp16": on_gpu}
    if asked == "auto":
        return "fp32" if not able["bf16"] else "bf16" if on_gpu else "auto" if alone else "fp32"
    if able.get(asked, True):
        return asked
    if settings.precision_chosen:
        return "fp32"
    cure = "Use train.precision=fp32, or auto to take what the machine has."
    device = "cuda" if on_gpu else "cpu"
    raise RecipeError(f"train.precision is {asked}, but this {device} has no {asked} arithmetic.", cure)


def _changed(settings: Train, changes: dict[str, Any]) -> Train:
    return settings.model_copy(update=changes)
