"""Untrained runs of a small ViT whose layers run in any order, with weights that make the order matter."""

from pathlib import Path
from typing import Any

import torch

from supple import checkpoint
from supple.recipe import make_recipe
from supple.training.build import fresh_model, load_data, pin

SMALL = {"name": "vit_cifar", "width": 24, "mlp": 16, "heads": 3, "layers": 4, "grid": 4, "init_std": 0.02}


def shuffled_run(folder: Path, seed: int = 0, sample: str = "arbitrary", **method: Any) -> Path:
    document = {"data": {"name": "generated"}, "backbone": SMALL, "method": {"name": "shuffle", **method}}
    recipe = make_recipe({**document, "train": {"sample": sample}})
    splits = load_data(recipe)
    model = fresh_model(pin(recipe, splits), splits)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.2 * torch.randn(part.shape, generator=rng))
    checkpoint.save(folder, model, pin(recipe, splits))
    return folder
