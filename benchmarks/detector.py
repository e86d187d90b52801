"""One training step of the detector of SiDT's table II at its full size, and the memory it takes: within 16 GiB.

    python benchmarks/detector.py [--images 2] [--size 512] [--steps 2]

Two pictures of noise with eight objects each; AdamW as in the recipe. Prints Markdown.
"""

import argparse
import resource
import time

import torch

from supple.cost import count_params, profile
from supple.data.detection.batch import GRID, DetectionBatch, Objects
from supple.losses import own_objective
from supple.machine import machine
from supple.methods import build
from supple.recipe import load_recipe
from supple.training.build import skeleton

GOAL_GIB = 16


def pictures(count: int, size: int, objects: int = 8) -> DetectionBatch:
    rng = torch.Generator().manual_seed(0)
    corners = torch.rand(count, objects, 2, generator=rng) * size / 2
    sides = size / 8 + torch.rand(count, objects, 2, generator=rng) * size / 3
    sizes = torch.tensor([[size, size]]).expand(count, 2)
    shapes = torch.full((count, objects, GRID, GRID), 255, dtype=torch.uint8)
    labels = torch.randint(80, (count, objects), generator=rng)
    crowd = torch.zeros(count, objects, dtype=torch.bool)
    known = Objects(torch.cat([corners, corners + sides], 2), labels, crowd, shapes)
    return DetectionBatch(torch.randn(count, 3, size, size, generator=rng), sizes, sizes, known)


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=2)
    asked = parser.parse_args()
    recipe = load_recipe("sidt/coco_swin_t_cascade.yaml")
    usual = skeleton(recipe)
    [row] = profile(usual)
    torch.manual_seed(0)
    model = build(recipe.backbone, recipe.method, 80, (3, asked.size, asked.size)).train()
    optimizer = torch.optim.AdamW(model.parameters(), recipe.train.lr, weight_decay=recipe.train.weight_decay)
    objective, x = own_objective(model.points), pictures(asked.images, asked.size)
    before, spent, losses = peak_gib(), [], []
    for _ in range(asked.steps):
        start = time.perf_counter()
        outputs = model(x, model.points)
        loss = objective(outputs, None) + model.penalty(outputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spent.append(time.perf_counter() - start)
        losses.append(loss.item())
    params = f"{count_params(model.parameters()) / 1e6:.2f} M parameters"
    answer = f"{(row.macs or 0) / 1e9:.0f} GMACs to answer a picture of {usual.input_shape}"
    print(f"{machine()}, {torch.get_num_threads()} threads; {params}, {answer}\n")
    print("| pictures | pixels | s per step | loss | peak GiB | before the first step | goal |")
    print("|---|---|---|---|---|---|---|")
    told = ", ".join(f"{loss:.2f}" for loss in losses)
    peak = peak_gib()
    goal = f"within {GOAL_GIB}: {'yes' if peak <= GOAL_GIB else 'NO'}"
    print(f"| {asked.images} | {asked.size} | {min(spent):.1f} | {told} | {peak:.1f} | {before:.1f} | {goal} |")


if __name__ == "__main__":
    main()
