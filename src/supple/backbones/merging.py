"""Token merging inside the blocks of a vision transformer (Bolya et al. 2023, "Token Merging: Your ViT But Faster").

Between attention and MLP, tokens whose keys are alike become one: their mean, weighted by how many patches each stands
for. Pure functions, but for the block that they belong to.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.errors import RecipeError

State = tuple[Tensor, Tensor]  # tokens (batch, tokens, dim), and the patches each stands for (batch, tokens, 1)


class Match(NamedTuple):
    """Which tokens are merged. They are dealt in turn to two sides; some of the first side join one of the second."""

    staying: Tensor  # (batch, tokens of the first side that stay, 1)
    leaving: Tensor  # (batch, merged, 1)
    joined: Tensor  # (batch, merged, 1): whom these join on the second side
    margin: Tensor  # (batch,): how far the nearest of these decisions is from flipping


def match(keys: Tensor, count: int, prefix: int) -> Match:
    """Bipartite soft matching: of all tokens of the first side, the `count` whose best partner is most similar join it.

    keys: (batch, tokens, dim). The first `prefix` tokens (class, distillation) neither join others nor are joined.
    """
    keys = F.normalize(keys.detach().float(), dim=-1)
    first, second = keys[:, ::2], keys[:, 1::2]
    similar = first @ second.transpose(1, 2)
    if prefix:
        similar[:, : (prefix + 1) // 2] = -2.0  # below any cosine
        similar[:, :, : prefix // 2] = -2.0
    two, partners = similar.topk(min(2, similar.shape[2]), dim=2)
    order = two[:, :, 0].topk(two.shape[1], dim=1).indices  # (topk, not sort: exporters know it)
    ranked = two.gather(1, order[:, :, None].expand_as(two))
    clear = (ranked[:, :, 0] - ranked[:, :, -1])[:, :count].amin(1) if two.shape[2] > 1 else ranked[:, 0, 0] + 2
    apart = ranked[:, count - 1, 0] - ranked[:, count, 0] if count < ranked.shape[1] else clear
    leaving = order[:, :count]
    left = two.shape[1] - count
    staying = order[:, count:].topk(left, dim=1, largest=False).values[:, :, None]  # in order: the class token first
    joined = partners[:, :, 0].gather(1, leaving)
    return Match(staying, leaving[:, :, None], joined[:, :, None], torch.minimum(clear, apart))


def merged(state: State, found: Match, prefix: int) -> State:
    """The tokens after merging: the first `prefix` where they were, then those of the first side that stay, then the
    second side."""
    tokens, sizes = state
    both = torch.cat([tokens * sizes, sizes], 2)  # sums, so that one pass merges both
    first, second = both[:, ::2], both[:, 1::2]
    wide = (-1, -1, both.shape[2])
    second = second.scatter_add(1, found.joined.expand(wide), first.gather(1, found.leaving.expand(wide)))
    sides = first.gather(1, found.staying.expand(wide)), second
    front = [sides[place % 2][:, place // 2 : place // 2 + 1] for place in range(prefix)]
    both = torch.cat([*front, sides[0][:, (prefix + 1) // 2 :], sides[1][:, prefix // 2 :]], 1)
    sizes = both[:, :, -1:]
    return both[:, :, :-1] / sizes, sizes


def mergeable(tokens: int, count: int, prefix: int) -> int:
    """How many of so many tokens can be merged at once: half of those that may be."""
    return max(0, min(count, (tokens - prefix) // 2))


def run_block(block: Any, state: State, count: int, prefix: int) -> tuple[State, Tensor | None]:
    """A block of timm with merging inside; also how clear its decisions were, None where it merged nothing.

    Attention is proportional: a token counts as often as the patches that it stands for.
    """
    tokens, sizes = state
    mixed, keys = _attend(block.attn, block.norm1(tokens), sizes)
    tokens = tokens + block.drop_path1(block.ls1(mixed))
    count, margin = mergeable(tokens.shape[1], count, prefix), None
    if count:
        found = match(keys, count, prefix)
        (tokens, sizes), margin = merged((tokens, sizes), found, prefix), found.margin
    tokens = tokens + block.drop_path2(block.ls2(block.mlp(block.norm2(tokens))))
    return (tokens, sizes), margin


def _attend(attention: Any, x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """What timm's attention computes, with sizes; and the keys, in the mean over the heads."""
    parts = attention.qkv(x).unflatten(2, (3, attention.num_heads, attention.head_dim)).permute(2, 0, 3, 1, 4)
    query, key, value = parts.unbind(0)
    often = sizes.log().transpose(1, 2)[:, None].to(query.dtype)  # (batch, 1, 1, tokens)
    drop = attention.attn_drop.p if attention.training else 0.0
    mixed = F.scaled_dot_product_attention(query, key, value, often, drop, scale=attention.scale)
    # Joined head by head: a view of them, as timm takes, would rest on a memory layout that exporters do not keep.
    return attention.proj_drop(attention.proj(torch.cat(mixed.unbind(1), 2))), key.mean(1)


def must_merge(network: nn.Module) -> None:
    """Refuses a trunk whose blocks are not timm's plain ones."""
    from supple.backbones.dims import blocks_of

    for block in blocks_of(network):
        if not all(hasattr(block.module, part) for part in ("norm1", "norm2", "ls1", "ls2", "drop_path1")):
            cause = f"tokens cannot be merged in {block.path}, a {type(block.module).__name__}."
            raise RecipeError(cause, "Use a plain ViT or DeiT of timm.")
