"""The one training step, and the model and optimizer it works on. The loop runs it; the probe times it."""

import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from supple.errors import RecipeError
from supple.losses import Objective
from supple.model import FlexibleModel, Output
from supple.point import Point
from supple.recipe import Train
from supple.training.optim import build_optimizer

# What Fabric calls each precision; one that a measurement is yet to choose is fp32 until then.
PRECISIONS: dict[str, Any] = {"auto": "32-true", "fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def make_fabric(settings: Train) -> Fabric:
    many = settings.devices * settings.nodes > 1
    # A step that leaves points out leaves parameters without a gradient.
    strategy = "ddp" if settings.sample == "every" else "ddp_find_unused_parameters_true"
    remarks = logging.getLogger("lightning_fabric.utilities.rank_zero")
    level = remarks.level
    remarks.setLevel(logging.WARNING)  # on the precision, which may be one that is only tried
    try:
        fabric = Fabric(
            accelerator=settings.accelerator,
            devices=settings.devices,
            num_nodes=settings.nodes,
            strategy=strategy if many else "auto",
            precision=PRECISIONS[settings.precision],
        )
    except (ValueError, RuntimeError) as error:
        cause = f"train.accelerator={settings.accelerator} cannot be used here: {' '.join(str(error).split())}"
        raise RecipeError(cause, "Use train.accelerator=auto, or cpu.") from None
    finally:
        remarks.setLevel(level)
    if many:
        fabric.launch()
    return fabric


def set_up(fabric: Fabric, settings: Train, model: FlexibleModel) -> tuple[Any, torch.optim.Optimizer]:
    """Threads, memory format, optimizer and compilation as the resolved recipe says."""
    torch.set_num_threads(settings.threads)
    if settings.memory_format == "channels_last":
        model.to(memory_format=torch.channels_last)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learning:
        raise RecipeError("nothing in this model may learn.", "Set method.way or method.learn so that something does.")
    free = {id(parameter) for parameter in model.no_weight_decay()}
    groups: list[dict[str, Any]] = [{"params": [parameter for parameter in learning if id(parameter) not in free]}]
    if free:
        groups.append({"params": [parameter for parameter in learning if id(parameter) in free], "weight_decay": 0.0})
    wrapped, optimizer = fabric.setup(model, build_optimizer(groups, settings))
    if settings.compile == "on":
        compile_regions(model)
    return wrapped, optimizer


def training_step(
    fabric: Fabric,
    settings: Train,
    wrapped: Any,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    batch: tuple[Any, Any],
    points: Sequence[Point],
) -> tuple[Sequence[Output], float]:
    """One step of what `set_up` gave, in Fabric's precision: the points' outputs, and the loss.

    The forward pass runs in the mixed precision, if there is one; loss and penalty are computed in fp32. A loss that is
    not a finite number changes no weights.
    """
    x, y = batch
    outputs = wrapped(x, points)
    loss = objective(outputs, y) + wrapped.module.penalty(outputs)
    value: float = loss.item()
    if math.isfinite(value):
        optimizer.zero_grad()
        fabric.backward(loss)
        if settings.clip:
            fabric.clip_gradients(wrapped, optimizer, max_norm=settings.clip)
        optimizer.step()
    return outputs, value


def to_step(fabric: Fabric, settings: Train, batch: tuple[Any, Any]) -> tuple[Any, Any]:
    """A batch in the memory format and on the device that a step wants."""
    x, y = batch
    if settings.memory_format == "channels_last" and isinstance(x, Tensor):
        x = x.contiguous(memory_format=torch.channels_last)
    moved: tuple[Any, Any] = fabric.to_device((x, y))
    return moved


def compile_regions(model: FlexibleModel) -> None:
    """torch.compile on each region; their number must not hit the limit meant for endless recompilation."""
    regions = model.compilable_modules()
    torch._dynamo.config.recompile_limit = max(64, 2 * len(regions))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    for region in regions:
        region.compile()
