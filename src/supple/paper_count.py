"""`--count paper`: operations as the papers count them, to compare with their tables. Budgets use plain MACs.

SiDT (pruned transformers): plain MACs and 1 per value that a layer norm gives, as the counter of Swin does.

SL-ViT (all others). Counted: 2 per multiply-add of convolutions and dense layers, 1 per output that a bias is added to,
as many per pooling output as its window has values, 1 per product of two tensors, 5 per softmax value. Not counted:
norms, activations, additions, and whatever multi-head attention does besides its softmax.

SL-ViT does not state this convention. It is the one that meets its figures, and is most likely what TensorFlow's
profiler saw: Keras builds attention from einsum, which that profiler does not know. The paper calls the unit FLOPS.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from supple.backbones.classifier import swap
from supple.backbones.protocols import classifier_of
from supple.cost import count_macs, meta_input, on_meta
from supple.errors import RecipeError
from supple.methods.branches import SelfAttention
from supple.model import FlexibleModel
from supple.point import Point
from supple.recipe import Recipe


@dataclass(frozen=True)
class PaperCost:
    """What the paper's tables print of one point, for one sample."""

    flops: int  # "total FLOPS": the backbone up to the cut and this branch
    acceleration: float | None = None  # SL-ViT: FLOPS of the backbone without its classifier, over these


def published_costs(model: FlexibleModel, points: Iterable[Point], recipe: Recipe) -> list[PaperCost]:
    """The costs of points as the paper of a recipe's method counts, in the order given."""
    pruned = recipe.method["name"] in ("prune", "nested") or recipe.backbone.get("kept")
    return [PaperCost(macs_and_norms(model, point)) for point in points] if pruned else paper_costs(model, points)


def macs_and_norms(model: FlexibleModel, point: Point) -> int:
    """Multiply-adds of one sample and the values that its layer norms give (SiDT, table I)."""
    bare, x = on_meta(model.extract(point)), meta_input(model)
    norms: list[int] = []
    for part in bare.modules():
        if isinstance(part, nn.LayerNorm):
            part.register_forward_hook(lambda norm, given, output: norms.append(output.numel()))
    return count_macs(lambda: bare(x)) + sum(norms)


def paper_costs(model: FlexibleModel, points: Iterable[Point]) -> list[PaperCost]:
    """The costs of points in SL-ViT's count, in the order given."""
    network = model.backbone
    classifier = None if network is None else classifier_of(network)
    if network is None or classifier is None:
        raise RecipeError(
            f"--count paper cannot tell which layer is the classifier of {type(network or model).__name__}.",
            "It is for those of SL-ViT (resnet_v1, densenet, inception_v3, audiocsrnet) and SiDT. Leave --count out.",
        )
    model, x = on_meta(model), meta_input(model)
    flops = [paper_flops(model, x, point) for point in points]
    bare = on_meta(network)
    swap(bare, classifier, nn.Identity())
    whole = paper_flops(bare, x)
    return [PaperCost(count, whole / count) for count in flops]


@torch.no_grad()
def paper_flops(module: nn.Module, *inputs: Any) -> int:
    """Operations of one call, in the paper's count."""
    counter = Counter()
    with ExitStack() as hooks:
        for part in module.modules():
            if isinstance(part, SelfAttention):
                hooks.enter_context(part.register_forward_pre_hook(counter.enter))
                hooks.enter_context(part.register_forward_hook(counter.leave, always_call=True))
        with counter:
            module(*inputs)
    return counter.total


class Counter(TorchFunctionMode):
    """Adds up what the torch functions called under it cost; inside attention, only the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.depth = 0  # of attention modules entered

    def enter(self, module: nn.Module, args: Any) -> None:
        self.depth += 1

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.depth -= 1

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        cost = SOFTMAX.get(name) or (LAYERS.get(name) if self.depth == 0 else None)
        if cost is not None:
            self.total += cost(output, *args, **(kwargs or {}))
        return output


# How each function is counted: its output, then its arguments.


def _dense(output: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any, **__: Any) -> int:
    """Convolutions and dense layers: an output takes as many multiply-adds as one filter has weights."""
    return output.numel() * (2 * weight[0].numel() + (bias is not None))


def _pool(output: Tensor, input: Tensor, kernel_size: int | tuple[int, ...], *_: Any, **__: Any) -> int:
    return output.numel() * (kernel_size**2 if isinstance(kernel_size, int) else math.prod(kernel_size))


def _adaptive_pool(output: Tensor, input: Tensor, *_: Any, **__: Any) -> int:
    seen = math.prod(output.shape[:-2])
    for before, after in zip(input.shape[-2:], output.shape[-2:]):  # the sizes of its windows, added up along a side
        seen *= sum(-(-(i + 1) * before // after) - i * before // after for i in range(after))
    return seen


def _mean(output: Tensor, input: Tensor, *_: Any, **__: Any) -> int:
    return input.numel()


def _multiply(output: Tensor, left: Any, right: Any, *_: Any, **__: Any) -> int:
    return output.numel() if isinstance(left, Tensor) and isinstance(right, Tensor) else 0


def _softmax(output: Tensor, *_: Any, **__: Any) -> int:
    return 5 * output.numel()


def _attention(output: Tensor, query: Tensor, key: Tensor, *_: Any, **__: Any) -> int:
    return 5 * math.prod(query.shape[:-1]) * key.shape[-2]  # batch x heads x queries x keys


SOFTMAX: dict[str, Callable[..., int]] = {"softmax": _softmax, "scaled_dot_product_attention": _attention}
LAYERS: dict[str, Callable[..., int]] = {
    "conv1d": _dense,
    "conv2d": _dense,
    "linear": _dense,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "adaptive_avg_pool2d": _adaptive_pool,
    "mean": _mean,
    "mul": _multiply,
}
