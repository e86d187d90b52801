"""Making a plain module fast for inference: norms folded into convolutions, memory format by a short probe."""

import copy
import itertools
import time
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from supple.backbones.dims import pad_block, prunable
from supple.device import synchronise

LONG_ENOUGH_S = 20  # of one comparison
PADDED_FOR = 8  # images at once: with one, odd dimensions cost too little to be worth more MACs
PADDED_TO = ((2, 16), (8, 16))  # multiples for heads and MLPs that are tried: see docs/benchmarks.md

M = TypeVar("M", bound=nn.Module)


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
    """The module for inference: folded, frozen, odd dimensions of a pruned transformer padded where that is faster, in
    the faster memory format (channels first if no shape is known).
    """
    module = fold_norms(copy.deepcopy(module).eval()).requires_grad_(False)
    best = Deployed(module, torch.contiguous_format)
    if input_shape is None or len(input_shape) != 3 or next(module.parameters()).is_meta:
        return best
    x = torch.zeros(1, *input_shape, device=next(module.parameters()).device)
    padded = [pad_dims(copy.deepcopy(module), *multiples) for multiples in PADDED_TO]
    others = [Deployed(one, torch.contiguous_format) for one in padded if one is not None]
    best = fastest([best, *others], x.expand(PADDED_FOR, -1, -1, -1), gain=0.02) if others else best
    candidate = Deployed(copy.deepcopy(best.module), torch.channels_last)
    return fastest([best, candidate], x)


def pad_dims(module: nn.Module, of_heads: int, of_hidden: int) -> nn.Module | None:
    """Pads the heads and MLPs of a pruned transformer with zeros to multiples, in place; None if there is nothing to
    pad. Odd dimensions take up to a third longer than the next even ones. The answers stay the same.
    """
    odd = [block for block in prunable(module) if block.head_dims % of_heads or block.hidden % of_hidden]
    for block in odd:
        pad_block(block, of_heads, of_hidden)
    return module if odd else None


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
def fastest(modules: Sequence[M], x: Tensor, gain: float = 0.05, rounds: int = 7, calls: int = 3) -> M:
    """The module that takes least time in interleaved rounds, fewer if they are slow; the first, unless another takes
    so much less.
    """
    times: list[list[float]] = [[] for _ in modules]
    began = time.perf_counter()
    for done in range(rounds + 1):
        if done > 2 and time.perf_counter() - began > LONG_ENOUGH_S:
            break
        for module, spent in zip(modules, times):
            start = time.perf_counter()
            for _ in range(calls):
                module(x)
            synchronise(str(x.device))
            spent.append(time.perf_counter() - start)
    least = [min(spent[1:]) for spent in times]  # the first round warms up; whatever disturbs only adds
    best = min(least)
    return modules[least.index(best)] if best < (1 - gain) * least[0] else modules[0]
