"""A ViT, a distilled DeiT and a Swin small enough for tests, with weights that make every part matter."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from supple import checkpoint
from supple.backbones.dims import blocks_of
from supple.backbones.networks import timm_network
from supple.methods.prune import Prune
from supple.recipe import Recipe, make_recipe
from supple.training.build import fresh_model, load_data, pin

PLAIN = {"patch_size": 4, "embed_dim": 24, "depth": 2}
NETWORKS: dict[str, dict[str, Any]] = {
    "vit": {"model": "vit_tiny_patch16_224", "args": PLAIN},
    "deit": {"model": "deit_tiny_distilled_patch16_224", "args": PLAIN},
    "swin": {  # 8 x 8 tokens, then 4 x 4; the second block has shifted windows
        "model": "swin_tiny_patch4_window7_224",
        "args": {"patch_size": 2, "window_size": 4, "embed_dim": 24, "depths": (2, 1), "num_heads": (2, 4)},
    },
}
SHAPES = {"vit": ((8, 96),) * 2, "deit": ((8, 96),) * 2, "swin": ((12, 96), (12, 96), (12, 192))}
INPUT = (3, 16, 16)
PATHS = pytest.mark.parametrize(("name", "fused"), list(itertools.product(NETWORKS, (True, False))))  # of attention


def network_of(name: str, fused: bool = True, seed: int = 0, **args: Any) -> nn.Module:
    """In double precision, so that equal means equal to 1e-10, and with one of the two paths of attention."""
    settings = {**NETWORKS[name], "args": {**NETWORKS[name]["args"], **args}}
    network = timm_network(num_classes=5, input_shape=INPUT, **settings)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in network.parameters():
            part.copy_(torch.rand(part.shape, generator=rng) - 0.5)
    for block in blocks_of(network):
        block.attention.fused_attn = fused
    return network.double().eval()


def images(count: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(count, *INPUT, generator=torch.Generator().manual_seed(seed)).double()


def searched(name: str, fused: bool = True, seed: int | None = 0) -> Prune:
    """A model with scores of both signs, as a search may leave them; or of ones."""
    model = Prune(network_of(name, fused)).double().eval()
    if seed is not None:
        rng = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for score in model.scores:
                score.copy_(2 * torch.rand(len(score), generator=rng) - 1)
    return model


@torch.no_grad()
def drop(model: Prune, kept) -> None:
    """Masks in place: scores of all other dimensions become zero."""
    for place, dims in enumerate(itertools.chain.from_iterable(kept.dims)):
        score = model.scores[place]
        score.mul_(torch.zeros_like(score).index_fill(0, dims, 1))


def recipe_of(name: str = "swin", **sections: dict) -> Recipe:
    document = {
        "data": {"name": "generated", "batch_size": 64},
        "backbone": {"name": "timm", **NETWORKS[name]},
        "method": {"name": "prune"},
        "train": {"epochs": 1, "optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.05, "threads": 1},
    }
    return make_recipe({**document, **{part: {**document[part], **more} for part, more in sections.items()}})


def save_run(folder: Path, recipe: Recipe, seed: int = 0) -> Path:
    """An untrained run with data, and scores of both signs if it has any."""
    splits = load_data(recipe)
    recipe = pin(recipe, splits)
    model = fresh_model(recipe, splits)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for score in getattr(model, "scores", ()):
            score.copy_(2 * torch.rand(len(score), generator=rng) - 1)
    checkpoint.save(folder, model, recipe)
    return folder
