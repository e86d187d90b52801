"""Which dimensions stay: scores ranked by their absolute value (SiDT, section 3). Pure functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from supple.backbones.dims import Block, Shape, first, rows_in
from supple.errors import RecipeError

Ranking = Literal["global", "per_type", "per_layer"]
Scores = list[tuple[Tensor, Tensor]]  # of each block: of the dimensions of its heads, and of its MLP


@dataclass(frozen=True)
class Kept:
    """The dimensions that stay in each block, best first, and how many groups would have lost all of theirs."""

    dims: list[tuple[Tensor, Tensor]]
    clamped: int = 0

    @property
    def shape(self) -> Shape:
        return tuple((len(heads), len(hidden)) for heads, hidden in self.dims)


def keep(scores: Scores, ratio: float, ranking: Ranking = "global", multiple: int = 1) -> Kept:
    """What is left when the share `ratio` of all dimensions is pruned: those with the largest scores.

    `global`: one ranking for all; `per_type`: one for the heads, one for the MLPs; `per_layer`: one for each group.
    Every group keeps at least one dimension. Of equal scores the earlier ones in their group stay, so that without any
    training all rankings prune evenly. `multiple` rounds the kept number of every group to a multiple, where it has as
    many.
    """
    if not 0 <= ratio < 1:
        raise RecipeError(f"the ratio to prune is {ratio:g}.", "Give a share from 0 to below 1: 0.4 prunes 40 %.")
    if multiple < 1:
        raise RecipeError(f"the multiple to round to is {multiple}.", "Give 1 or more.")
    flat = [score.detach().abs().double().cpu() for pair in scores for score in pair]
    groups: dict[int, list[int]] = {}
    for place in range(len(flat)):
        groups.setdefault({"global": 0, "per_type": place % 2, "per_layer": place}[ranking], []).append(place)
    counts = [0] * len(flat)
    for places in groups.values():
        total = sum(len(flat[place]) for place in places)
        wanted = int((1 - ratio) * total + 1e-9)
        if ranking != "per_layer" and wanted < len(places):
            raise RecipeError(
                f"pruning {ratio:g} of {total} dimensions leaves {wanted} for {len(places)} groups.",
                "Every group needs one: prune less.",
            )
        for place, count in zip(places, _largest([flat[place] for place in places], wanted)):
            counts[place] = count
    rounded = [_rounded(max(1, count), len(score), multiple) for count, score in zip(counts, flat)]
    best = [best_first(score)[:count] for score, count in zip(flat, rounded)]
    return Kept(list(zip(best[::2], best[1::2])), counts.count(0))


def _largest(scores: Sequence[Tensor], wanted: int) -> list[int]:
    """How many of each of these are among the `wanted` largest of all."""
    value = torch.cat(list(scores))
    owner = torch.repeat_interleave(first(len(scores)), torch.tensor([len(score) for score in scores], device="cpu"))
    # Of equals, those first that stand high in their own group.
    standing = torch.cat([_standing(score) for score in scores])
    order = torch.argsort(standing, stable=True)
    order = order[torch.argsort(value[order], descending=True, stable=True)]
    return torch.bincount(owner[order[:wanted]], minlength=len(scores)).tolist()


def _standing(score: Tensor) -> Tensor:
    """Where each dimension comes in its own group, from 0 (best) to 1."""
    places = torch.empty_like(score)
    places[best_first(score)] = (first(len(score)).double() + 0.5) / len(score)
    return places


def best_first(score: Tensor) -> Tensor:
    """The dimensions of a group, those with the largest absolute score first."""
    return torch.argsort(score.abs(), descending=True, stable=True)


def _rounded(count: int, size: int, multiple: int) -> int:
    nearest = max(multiple, multiple * round(count / multiple))
    return min(nearest, size)


# --- scores that need no search ---------------------------------------------------------------------------------------


def equal_scores(blocks: Sequence[Block]) -> Scores:
    ones: Callable[[int], Tensor] = lambda size: torch.ones(size, device="cpu")
    return [(ones(block.head_dims), ones(block.hidden)) for block in blocks]


def magnitudes(blocks: Sequence[Block]) -> Scores:
    """Root mean square over all weights that belong to a dimension: rows of q, k, v in every head; a row of the MLP."""
    found = []
    for block in blocks:
        qkv = block.attention.qkv.weight.detach().float()
        assert len(qkv) == 3 * rows_in(block)
        heads = qkv.view(3, block.heads, block.head_dims, -1).square().mean((0, 1, 3)).sqrt()
        found.append((heads.cpu(), block.mlp.fc1.weight.detach().float().square().mean(1).sqrt().cpu()))
    return found


def random_scores(blocks: Sequence[Block], seed: int = 0) -> Scores:
    rng = torch.Generator().manual_seed(seed)
    draw: Callable[[int], Tensor] = lambda size: torch.rand(size, generator=rng)
    return [(draw(block.head_dims), draw(block.hidden)) for block in blocks]


# Other scores by name: blocks of a network as it computes, and a seed.
BASELINE_CRITERIA: dict[str, Callable[[Sequence[Block], int], Scores]] = {
    "magnitude": lambda blocks, seed: magnitudes(blocks),
    "random": random_scores,
}
