"""Making a plain module fast for inference: norms folded into convolutions, memory format by a short probe."""

import copy
import itertools
import time
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class Deployed(nn.Module):
    """A module in one memory format, whatever format its input comes in."""

    def __init__(self, module: nn.Module, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.module = module.to(memory_format=memory_format)
        self.memory_format = memory_format

    def forward(self, x: Any) -> Tensor:
        if isinstance(x, Tensor) and x.dim() == 4:
            x = x.contiguous(memory_format=self.memory_format)
        return cast(Tensor, self.module(x))


def prepare(module: nn.Module, input_shape: tuple[int, ...] | None) -> nn.Module:
    """The module for inference: folded, frozen, in the faster memory format (channels first if no shape is known)."""
    module = fold_norms(copy.deepcopy(module).eval()).requires_grad_(False)
    plain = Deployed(module, torch.contiguous_format)
    if input_shape is None or len(input_shape) != 3 or next(module.parameters()).is_meta:
        return plain
    channels_last = Deployed(copy.deepcopy(module), torch.channels_last)
    return channels_last if faster(channels_last, plain, torch.zeros(1, *input_shape)) else plain


def fold_norms(module: nn.Module) -> nn.Module:
    """Folds every batch norm that follows a convolution in an nn.Sequential into that convolution, in place."""
    for child in module.children():
        fold_norms(child)
    if isinstance(module, nn.Sequential):
        names = list(module._modules)
        for first, second in itertools.pairwise(names):
            conv, norm = module._modules[first], module._modules[second]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats:
                module._modules[first] = fuse_conv_bn_eval(conv, norm)
                module._modules[second] = nn.Identity()
    return module


@torch.inference_mode()
def faster(one: nn.Module, other: nn.Module, x: Tensor, rounds: int = 7, calls: int = 3) -> bool:
    """Whether `one` takes clearly less time than `other` (5 %), in interleaved rounds."""
    times: dict[nn.Module, list[float]] = {one: [], other: []}
    for _ in range(rounds + 1):
        for module, spent in times.items():
            start = time.perf_counter()
            for _ in range(calls):
                module(x)
            spent.append(time.perf_counter() - start)
    # The first round warms up.
    return sorted(times[one][1:])[rounds // 2] < 0.95 * sorted(times[other][1:])[rounds // 2]
