"""Choices that only a clock can make, taken once before the first step and written into the recipe.

Threads, precision, memory format, torch.compile: `auto` becomes what this machine does best for this model.
"""

import copy
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from supple.data.samples import Dataset
from supple.errors import RecipeError
from supple.evaluate import to_device
from supple.losses import Objective
from supple.machine import has_bf16
from supple.model import FlexibleModel
from supple.point import Point
from supple.recipe import Recipe
from supple.text import duration, say

WORTH_PROBING_S = 30  # a training shorter than this is not probed
WORTH_COMPILING_S = 600  # compiling takes a minute or two of its own
GAIN = 0.95  # a choice must save at least 5 % of the step


def choose(
    recipe: Recipe,
    model: FlexibleModel,
    points: Sequence[Point],
    data: Dataset,
    objective: Objective,
    device: torch.device,
    quiet: bool = False,
) -> Recipe:
    """The recipe with every `auto` replaced."""
    settings = recipe.train
    threads = settings.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    steps = settings.epochs * max(1, len(data) // recipe.data.batch_size)
    x, y = data.batch(torch.arange(min(recipe.data.batch_size, len(data))))
    timing = Timing(objective, to_device(x, device), to_device(y, device), points, device)

    try:
        plain = timing.step_s(model)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        cause = f"batch norm cannot learn from one value: data.batch_size is {recipe.data.batch_size}"
        raise RecipeError(
            f"{cause}, and {len(data)} images are trained on.", "Raise data.batch_size, or add images."
        ) from None
    long_enough = plain * steps > WORTH_PROBING_S and device.type == "cpu"
    memory_format = settings.memory_format
    if memory_format == "auto":
        wins = long_enough and isinstance(x, Tensor) and x.dim() == 4 and timing.ratio(model, channels_last=True) < GAIN
        memory_format = "channels_last" if wins else "channels_first"
    compiled = settings.compile
    if compiled == "auto":
        able = bool(model.regions()) and settings.sample != "one" and shutil.which("g++") is not None
        worth = able and (plain * steps > WORTH_COMPILING_S or device.type == "cuda")
        wins = worth and timing.ratio(model, channels_last=memory_format == "channels_last", compiled=True) < 0.87
        compiled = "on" if wins else "off"
    changes = {"threads": threads, "memory_format": memory_format, "compile": compiled}
    if not quiet:
        words = ", ".join(f"{key}={value}" for key, value in changes.items())
        say(f"chosen: precision={settings.precision}, {words} (about {duration(plain * steps)} of steps)")
    return recipe.model_copy(update={"train": settings.model_copy(update=changes)})


def pick_precision(asked: str, accelerator: str = "auto") -> str:
    """Mixed precision only where the hardware has it: without bf16 instructions a CPU is many times slower."""
    device = "cuda" if torch.cuda.is_available() and accelerator in ("auto", "cuda", "gpu") else "cpu"
    if device == "cuda":
        able = {"bf16": torch.cuda.is_bf16_supported(), "fp16": True}
    else:
        able = {"bf16": has_bf16(), "fp16": False}
    if asked in able and not able[asked]:
        cure = "Use train.precision=fp32, or auto to take what the machine has."
        raise RecipeError(f"train.precision is {asked}, but this {device} has no {asked} arithmetic.", cure)
    return ("bf16" if able["bf16"] and device == "cuda" else "fp32") if asked == "auto" else asked


class Timing:
    """Times training steps of copies of a model on one batch."""

    def __init__(self, objective: Objective, x: Any, y: Any, points: Sequence[Point], device: torch.device) -> None:
        self.objective, self.x, self.y, self.points, self.device = objective, x, y, points, device

    def stepper(self, model: FlexibleModel, channels_last: bool = False, compiled: bool = False) -> Callable[[], float]:
        model = copy.deepcopy(model).to(self.device).train()
        x = self.x
        if channels_last:
            model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
        if compiled:
            compile_regions(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-6)

        def step() -> float:
            start = time.perf_counter()
            loss = self.objective(model(x, self.points), self.y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return time.perf_counter() - start

        step()  # warm-up, and compilation
        return step

    def step_s(self, model: FlexibleModel, rounds: int = 3) -> float:
        step = self.stepper(model)
        return statistics.median(step() for _ in range(rounds))

    def ratio(self, model: FlexibleModel, rounds: int = 3, **choice: bool) -> float:
        """The time of a step with a choice over one without, in interleaved rounds."""
        base = {name: value for name, value in choice.items() if name == "channels_last" and "compiled" in choice}
        with_it, without = self.stepper(model, **choice), self.stepper(model, **base)
        pairs = [(with_it(), without()) for _ in range(rounds)]
        return statistics.median(pair[0] for pair in pairs) / statistics.median(pair[1] for pair in pairs)


def compile_regions(model: FlexibleModel) -> None:
    """torch.compile on each region; their number must not hit the limit meant for endless recompilation."""
    regions = model.regions()
    torch._dynamo.config.recompile_limit = max(64, 2 * len(regions))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    for region in regions:
        region.compile()
