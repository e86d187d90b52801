"""The dimensions of a transformer that can be cut: those of its heads, and the hidden ones of its MLPs (SiDT).

A kept dimension of a block's heads keeps its index in q, k, v and in every head. The width of the residual stream and
the tables of relative positions are never touched.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.errors import RecipeError

Shape = tuple[tuple[int, int], ...]  # of each block: dimensions of a head, hidden dimensions of the MLP


@dataclass(frozen=True)
class Block:
    """One block of a transformer: attention and MLP."""

    path: str
    module: nn.Module

    @property
    def attention(self) -> Any:
        return self.module.attn

    @property
    def mlp(self) -> Any:
        return self.module.mlp

    @property
    def heads(self) -> int:
        return int(self.attention.num_heads)

    @property
    def head_dims(self) -> int:
        return int(self.attention.qkv.out_features) // (3 * self.heads)

    @property
    def hidden(self) -> int:
        return int(self.mlp.fc1.out_features)


def blocks_of(network: nn.Module) -> list[Block]:
    """The blocks of a timm ViT, DeiT or Swin, in order; refuses what cannot be cut, with the reason."""
    found = [
        Block(path, part) for path, part in network.named_modules() if hasattr(part, "attn") and hasattr(part, "mlp")
    ]
    if not found:
        raise RecipeError(
            f"{type(network).__name__} has no dimensions to prune: no block with `attn` and `mlp` was found in it.",
            "Use a ViT, DeiT or Swin of timm.",
        )
    for block in found:
        reason = obstacle(block)
        if reason:
            raise RecipeError(
                f"{type(network).__name__} cannot be pruned: {block.path} {reason}.",
                "Use a ViT, DeiT or Swin of timm with plain attention and MLPs.",
            )
    return found


def prunable(network: nn.Module) -> list[Block]:
    """The blocks, or none where the network has none that could be pruned."""
    try:
        return blocks_of(network)
    except RecipeError:
        return []


def obstacle(block: Block) -> str | None:
    """Why the dimensions of a block cannot be cut, if they cannot."""
    from timm.layers.attention import Attention
    from timm.layers.mlp import Mlp
    from timm.models.swin_transformer import WindowAttention

    attention, mlp = block.attention, block.mlp
    if hasattr(attention, "logit_scale"):
        return "normalises its queries and keys, as Swin-V2 does"
    if type(attention) not in (Attention, WindowAttention):
        return f"has attention of the kind {type(attention).__name__}"
    if "GLU" in type(mlp).__name__.upper():
        return f"gates its MLP ({type(mlp).__name__})"
    if type(mlp) is not Mlp:
        return f"has an MLP of the kind {type(mlp).__name__}"
    if not isinstance(getattr(attention, "q_norm", nn.Identity()), nn.Identity):
        return "normalises its queries"
    if not isinstance(getattr(attention, "norm", nn.Identity()), nn.Identity):
        return "normalises what its heads give"
    if getattr(attention, "gate", None) is not None:
        return "gates what its heads give"
    if not isinstance(mlp.norm, nn.Identity):
        return "normalises inside its MLP"
    if not isinstance(mlp.fc1, nn.Linear) or not isinstance(mlp.fc2, nn.Linear):
        return "has convolutions in its MLP"
    return None


def shape_of(network: nn.Module) -> Shape:
    return tuple((block.head_dims, block.hidden) for block in blocks_of(network))


def check_shape(shape: Any, full: Shape) -> Shape:
    """A shape given by a user, which must fit the network."""
    cure = f"Give {len(full)} pairs: the kept dimensions of a head and the kept hidden ones of the MLP, for each block."
    try:
        pairs = tuple((int(dims), int(hidden)) for dims, hidden in shape)
    except (TypeError, ValueError):
        raise RecipeError("the kept dimensions are not a list of pairs.", cure) from None
    if len(pairs) != len(full):
        raise RecipeError(f"the network has {len(full)} blocks, kept dimensions are given for {len(pairs)}.", cure)
    for number, ((dims, hidden), (most_dims, most_hidden)) in enumerate(zip(pairs, full), 1):
        if not (1 <= dims <= most_dims and 1 <= hidden <= most_hidden):
            has = f"has {most_dims} and {most_hidden}"
            raise RecipeError(f"block {number} cannot keep {dims} and {hidden} dimensions: it {has}.", cure)
    return pairs


def resize(network: nn.Module, shape: Shape) -> None:
    """Cuts every block down to its first dimensions, in place: the shape of a pruned network, before its weights."""
    for block, (dims, hidden) in zip(blocks_of(network), check_shape(shape, shape_of(network))):
        cut_block(block, first(dims), first(hidden))


def first(count: int) -> Tensor:
    """Indices are always real, also those of networks without weights."""
    return torch.arange(count, device="cpu")


@torch.no_grad()
def filled(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer like another one, with other weights."""
    place = {"device": linear.weight.device, "dtype": linear.weight.dtype}
    new = nn.Linear(weight.shape[1], weight.shape[0], linear.bias is not None, **place)
    new.weight.copy_(weight)
    if bias is not None:
        new.bias.copy_(bias)
    return new.requires_grad_(linear.weight.requires_grad).train(linear.training)


def sliced(
    linear: nn.Linear, rows: Tensor | None = None, columns: Tensor | None = None, stretch: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of some outputs (rows) of a linear layer, each times a factor, or of some inputs (columns)."""
    weight: Tensor = linear.weight
    bias: Tensor | None = linear.bias
    if columns is not None:
        return weight.index_select(1, columns.to(weight.device)), bias
    assert rows is not None
    rows = rows.to(weight.device)
    weight, bias = weight.index_select(0, rows), None if bias is None else bias.index_select(0, rows)
    if stretch is None:
        return weight, bias
    stretch = stretch.to(weight)
    return weight * stretch[:, None], None if bias is None else bias * stretch


def part_of(linear: nn.Linear, **part: Tensor) -> nn.Linear:
    """A copy of the part of a linear layer that `sliced` describes."""
    return filled(linear, *sliced(linear, **part))


@torch.no_grad()
def cut_block(block: Block, dims: Tensor, hidden: Tensor, part: Callable[..., nn.Module] = part_of) -> None:
    """Keeps these dimensions of a block's heads and MLP, in place and in this order.

    `part` makes the smaller layers out of the old ones, with the arguments of `sliced`.

    Scores stay divided by the root of the *original* dimension, so that cutting a dimension is the same as masking it.
    Fused attention divides by the root of what it is given, the other path by `scale`: the difference goes into q.
    """
    attention, mlp = block.attention, block.mlp
    if len(dims) < block.head_dims or not torch.equal(dims, first(block.head_dims)):
        rows = per_head(block, dims)
        qkv = torch.cat([rows, rows + rows_in(block), rows + 2 * rows_in(block)])
        stretch = torch.ones(len(qkv), device="cpu", dtype=torch.double)
        stretch[: len(rows)] = attention.scale * math.sqrt(len(dims))
        attention.qkv, attention.proj = (
            part(attention.qkv, rows=qkv, stretch=stretch),
            part(attention.proj, columns=rows),
        )
        _set_head_dims(attention, len(dims))
    if len(hidden) < block.hidden or not torch.equal(hidden, first(block.hidden)):
        mlp.fc1, mlp.fc2 = part(mlp.fc1, rows=hidden), part(mlp.fc2, columns=hidden)


@torch.no_grad()
def pad_block(block: Block, of_heads: int, of_hidden: int) -> None:
    """Adds dimensions of zeros to a block's heads and MLP up to a multiple, in place: its outputs do not change."""
    attention, mlp, heads, dims = block.attention, block.mlp, block.heads, block.head_dims
    more = -dims % of_heads
    if more:
        qkv, proj, stretch = attention.qkv, attention.proj, attention.scale * math.sqrt(dims + more)
        weight, bias = F.pad(qkv.weight.view(3, heads, dims, -1), (0, 0, 0, more)), None
        weight[0] *= stretch
        if qkv.bias is not None:
            bias = F.pad(qkv.bias.view(3, heads, dims), (0, more))
            bias[0] *= stretch
        attention.qkv = filled(qkv, weight.flatten(0, 2), None if bias is None else bias.flatten())
        attention.proj = filled(proj, F.pad(proj.weight.view(-1, heads, dims), (0, more)).flatten(1), proj.bias)
        _set_head_dims(attention, dims + more)
    more = -block.hidden % of_hidden
    if more:
        fc1, fc2 = mlp.fc1, mlp.fc2
        bias = None if fc1.bias is None else F.pad(fc1.bias, (0, more))
        mlp.fc1 = filled(fc1, F.pad(fc1.weight, (0, 0, 0, more)), bias)
        mlp.fc2 = filled(fc2, F.pad(fc2.weight, (0, more)), fc2.bias)


def _set_head_dims(attention: Any, dims: int) -> None:
    attention.scale = dims**-0.5
    if hasattr(attention, "head_dim"):
        attention.head_dim, attention.attn_dim = dims, attention.num_heads * dims


def rows_in(block: Block) -> int:
    """Rows of q, and of k, and of v."""
    return block.heads * block.head_dims


def per_head(block: Block, dims: Tensor) -> Tensor:
    """The rows of q (and of k, and of v) that belong to these dimensions of the heads."""
    return (first(block.heads)[:, None] * block.head_dims + dims).flatten()


def kept_dims(shape: Sequence[tuple[int, int]]) -> int:
    """All dimensions that a shape keeps: what a pruning ratio counts."""
    return sum(dims + hidden for dims, hidden in shape)
