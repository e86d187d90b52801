"""Making a plain module fast for inference: norms folded into convolutions, memory format by a short probe."""

import copy
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from supple.backbones.dims import pad_block, prunable
from supple.cost import on_meta
from supple.device import synchronise
from supple.model import Shape, example

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


def prepare(module: nn.Module, input_shape: Shape | None) -> nn.Module:
    """The module for inference: folded, frozen, odd dimensions of a pruned transformer padded where that is faster, in
    the faster memory format (channels first if no shape is known).
    """
    module = fold_norms(copy.deepcopy(module).eval(), input_shape).requires_grad_(False)
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


def fold_norms(module: nn.Module, input_shape: Shape | None = None) -> nn.Module:
    """Folds batch norms into the convolutions before them, in place: neighbours in an nn.Sequential and, where the
    shape of an input is known, wherever a run shows that a norm alone reads what a convolution gives.
    """
    pairs = [
        (a, b) for part in module.modules() if isinstance(part, nn.Sequential) for a, b in itertools.pairwise(part)
    ]
    pairs += [] if input_shape is None else _joined(module, input_shape)
    paths = {id(part): path for path, part in module.named_modules()}
    for conv, norm in pairs:
        rest = _behind(norm)
        if isinstance(conv, nn.Conv2d) and rest is not None and id(norm) in paths:
            module.set_submodule(paths.pop(id(conv)), fuse_conv_bn_eval(conv, cast(nn.BatchNorm2d, norm)))
            module.set_submodule(paths.pop(id(norm)), rest)
    return module


def _behind(norm: nn.Module) -> nn.Module | None:
    """What a norm does to its outputs: nothing or, timm's, an activation. None: it cannot be folded."""
    if not isinstance(norm, nn.BatchNorm2d) or not norm.track_running_stats:
        return None
    if type(norm).forward is nn.BatchNorm2d.forward:
        return nn.Identity()
    from timm.layers.norm_act import BatchNormAct2d

    return nn.Sequential(norm.drop, norm.act) if type(norm) is BatchNormAct2d else None


class _Reads(TorchFunctionMode):
    """Counts the operations that read each of some tensors; asking for a shape is none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, tuple[Tensor, int]] = {}  # (the tensor is kept, so that no other has its id)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in _pytree.tree_leaves(result)):
            for leaf in _pytree.tree_leaves((args, kwargs)):
                if id(leaf) in self.found:
                    self.found[id(leaf)] = leaf, self.found[id(leaf)][1] + 1
        return result


def _joined(module: nn.Module, input_shape: Shape) -> list[tuple[nn.Module, nn.Module]]:
    """Convolutions and the norms that read them, each called once, where nothing else reads what lies between."""
    bare, calls, gave, took = on_meta(module), Counter[str](), dict[int, str](), dict[str, Tensor]()
    with _Reads() as reads, torch.no_grad():

        def called(path: str, part: nn.Module, given: Any, result: Any) -> None:
            calls[path] += 1
            if isinstance(part, nn.Conv2d):
                reads.found[id(result)], gave[id(result)] = (result, 0), path
            else:
                took[path] = given[0]

        for path, part in bare.named_modules():
            if isinstance(part, (nn.Conv2d, nn.BatchNorm2d)):
                part.register_forward_hook(lambda part, given, result, path=path: called(path, part, given, result))
        bare(example(input_shape, 1, torch.empty, device="meta"))
    pairs = [(gave[id(x)], path) for path, x in took.items() if id(x) in gave and reads.found[id(x)][1] == 1]
    alone = [pair for pair in pairs if calls[pair[0]] == calls[pair[1]] == 1]
    return [(module.get_submodule(conv), module.get_submodule(norm)) for conv, norm in alone]


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
