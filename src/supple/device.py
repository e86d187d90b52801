"""Where a model runs: the name of a device, whether it is here, going there and back, and waiting for it.

A device is one text (cpu, cuda:0, mps) that the verbs hand down to whatever computes. For the CPU nothing here loads
torch: exported folders answer without it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from supple.errors import RecipeError


def device_named(given: object) -> str:
    """The one spelling of a device; `auto`: the first that PyTorch finds of cuda, mps and cpu."""
    text = str(given).strip().lower()
    if text == "auto":
        return devices()[0]
    if re.fullmatch(r"cpu|mps(:0)?|cuda(:\d+)?", text) is None:
        raise RecipeError(f'"{given}" is not a valid device.', "Give cpu, cuda, cuda:1 (the second GPU), mps or auto.")
    kind, _, number = text.partition(":")
    return f"cuda:{int(number or 0)}" if kind == "cuda" else kind


def devices() -> list[str]:
    """Those that PyTorch finds here, the CPU last."""
    if not find_spec("torch"):
        return ["cpu"]
    import torch

    gpus = [f"cuda:{k}" for k in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*gpus, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def must_be_here(device: str) -> None:
    """Refuses a device that PyTorch cannot use."""
    if device != "cpu" and device not in (there := devices()):
        cause = f"the device {device} cannot be used: PyTorch finds only {', '.join(there)} here."
        raise RecipeError(
            cause, "Use one of these, or auto. A GPU needs its driver and a PyTorch that is built for it."
        )


def device_here(given: object, model: Any = None) -> str:
    """A device that PyTorch can use; None: that of the model."""
    if given is None:
        return "cpu" if model is None else str(next(model.parameters()).device).replace("mps:0", "mps")
    device = device_named(given)
    must_be_here(device)
    return device


@contextmanager
def placed(model: Any, device: str) -> Iterator[None]:
    """A model on a device, and afterwards where it was."""
    before = device_here(None, model)
    if device == before:
        yield
        return
    try:
        model.to(device)
        yield
    finally:
        model.to(before)


def synchronise(device: str) -> None:
    """Waits until a device has done what it was given: calls to a GPU return before that, calls to the CPU do not."""
    if device == "cpu":
        return
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    else:
        torch.accelerator.synchronize()
