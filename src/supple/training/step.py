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
from supple.text import one_line
from supple.training.groups import parameter_groups
from supple.training.optim import build_optimizer
from supple.training.processes import over_all

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
        cause = f"train.accelerator={settings.accelerator} cannot be used here: {one_line(error)}"
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
    groups = parameter_groups(model, settings)
    wrapped, optimizer = fabric.setup(model, build_optimizer(groups, settings))
    if settings.compile == "on":
        compile_modules(model)
    return wrapped, optimizer


def training_step(
    fabric: Fabric,
    settings: Train,
    wrapped: Any,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    batch: tuple[Any, Any],
    points: Sequence[Point],
    step: int = 0,
) -> tuple[Sequence[Output], float]:
    """One step of what `set_up` gave, in Fabric's precision: the points' outputs, and the loss.

    The forward pass runs in the mixed precision, if there is one; loss and penalty are computed in fp32. A loss that is
    not a finite number, in any of several processes, changes no weights; where the batch goes in parts, the outputs are
    then those of the bad part.
    """
    found, value = [], 0.0
    optimizer.zero_grad()
    parts = split(batch, settings.accumulate)
    for place, (x, y, share) in enumerate(parts, 1):
        with fabric.no_backward_sync(wrapped, enabled=place < len(parts)):
            outputs = wrapped(x, points)
            loss = share * (objective(outputs, y) + wrapped.module.penalty(outputs))
            value += over_all(fabric, loss).item()
            found.append(outputs)
            if not math.isfinite(value):
                return outputs, value
            fabric.backward(loss)
    for parameter in wrapped.module.resting(step):
        parameter.grad = None  # no optimizer touches one without
    if settings.clip:
        fabric.clip_gradients(wrapped, optimizer, max_norm=settings.clip)
    optimizer.step()
    return joined(found), value


def split(batch: tuple[Any, Any], parts: int) -> list[tuple[Any, Any, float]]:
    """A batch in parts, each with its share of the samples; of few samples there are fewer parts."""
    x, y = batch
    if parts == 1:
        return [(x, y, 1.0)]
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise RecipeError("train.accumulate splits batches of tensors; these data are others.", "Leave it out.")
    pairs = zip(x.chunk(parts), y.chunk(parts))
    return [(some, labels, len(some) / len(x)) for some, labels in pairs]


def joined(parts: Sequence[Sequence[Output]]) -> Sequence[Output]:
    """The outputs of the parts of a batch as those of the whole."""
    if len(parts) == 1:
        return parts[0]
    return [Output(same[0].point, torch.cat([one.logits for one in same])) for same in zip(*parts)]


def to_step(fabric: Fabric, settings: Train, batch: tuple[Any, Any]) -> tuple[Any, Any]:
    """A batch in the memory format and on the device that a step wants."""
    x, y = batch
    if settings.memory_format == "channels_last" and isinstance(x, Tensor):
        x = x.contiguous(memory_format=torch.channels_last)
    moved: tuple[Any, Any] = fabric.to_device((x, y))
    return moved


def compile_modules(model: FlexibleModel) -> None:
    """torch.compile on each region; their number must not hit the limit meant for endless recompilation."""
    regions = model.compilable_modules()
    torch._dynamo.config.recompile_limit = max(64, 2 * len(regions))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    for region in regions:
        region.compile()
