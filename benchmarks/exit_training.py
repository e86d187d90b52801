"""What training branches on a frozen network costs: four against the deepest alone, from images and from features.

    python benchmarks/exit_training.py [--rounds 5] [--threads 2]

Everything that is compared runs in turn inside this process; the figures are ratios of medians. Prints Markdown tables.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import supple
from supple.data import ImageSet, Preprocess
from supple.evaluate import Dataset
from supple.features import compute, open_part
from supple.losses import distill_objective
from supple.machine import machine
from supple.methods.exits import Exits
from supple.point import Point
from supple.runtime.measure import interleave
from supple.text import size

NETWORK, CUTS, CLASSES, BATCH, PIXELS = "resnet50", ("layer1.1", "layer1", "layer2", "layer3"), 100, 16, 224
IMAGES = 64  # 4.4 MB of features each


def images(count: int) -> ImageSet:
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, PIXELS, PIXELS), dtype=torch.uint8, generator=rng)
    labels = torch.randint(0, CLASSES, (count,), generator=rng)
    names = tuple(f"class {c}" for c in range(CLASSES))
    return ImageSet(pixels, labels, names, Preprocess(PIXELS, 3, (0.5,) * 3, (0.25,) * 3))


def with_branches(branch: str) -> Exits:
    shape = (3, PIXELS, PIXELS)
    return supple.exits(NETWORK, at=CUTS, branch=branch, num_classes=CLASSES, input_shape=shape).train()


def stepper(model: Exits, points: Sequence[Point], data: Dataset) -> Callable[[], None]:
    """One step on a random batch: read it, forward, loss, backward, Adam step of the branches asked for."""
    objective = distill_objective(model.points)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-6)
    rng = torch.Generator().manual_seed(0)

    def step() -> None:
        x, y = data.batch(torch.randperm(len(data), generator=rng)[:BATCH])
        loss = objective(model(x, points), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{machine()}, torch {torch.__version__}, {arguments.threads} threads")
    print(f"\n{NETWORK}, {PIXELS} px, batch {BATCH}, frozen, branches at {', '.join(CUTS)}\n")
    print("| branches | step | ms | over the deepest branch alone | goal |\n|---|---|---|---|---|")
    cached = []
    for branch in ("linear", "cnn", "sl_vit"):
        model, data = with_branches(branch), images(IMAGES)
        branches, asked = model.points[:-1], model.enter(0)
        with tempfile.TemporaryDirectory() as folder:
            compute(model, {"train": data}, Path(folder), quiet=True)
            model.train()
            features = open_part(Path(folder), "train", data.labels)
            room = sum(file.stat().st_size for file in Path(folder).glob("*.npy")) / len(data)
            calls = {
                "deepest": stepper(model, branches[-1:], data),
                "branches": stepper(model, branches, data),
                "features": stepper(model, branches, features),
            }
            if tuple(asked) != tuple(branches):
                calls["asked"] = stepper(model, asked, data)
            ms = {call: times.p50_ms for call, times in interleave(calls, arguments.rounds, seconds=1e9).items()}
        names = {
            "deepest": f"{CUTS[-1]} alone",
            "branches": "all 4 together",
            "asked": f"as the loop asks: {', '.join(map(str, asked))}",
        }
        for call, name in names.items():
            if call in ms:
                over = ms[call] / ms["deepest"]
                goal = "" if call == "deepest" else "at most 1.30" + (": **missed**" if round(over, 2) > 1.3 else "")
                print(f"| {branch} | {name} | {ms[call]:.0f} | {over:.2f} | {goal} |", flush=True)
        cached.append((branch, BATCH * 1000 / ms["branches"], BATCH * 1000 / ms["features"], room))
    print(
        f"\nThe step of all 4 from features (fp16, memory-mapped, in the page cache, {size(round(cached[0][3]))} an image)\n"
    )
    print("| branches | images/s from images | images/s from features | ratio | goal |\n|---|---|---|---|---|")
    for branch, slow, fast, _ in cached:
        goal = "at least 5" + (": **missed**" if round(fast / slow, 1) < 5 else "")
        print(f"| {branch} | {slow:.1f} | {fast:.1f} | {fast / slow:.1f} | {goal} |")


if __name__ == "__main__":
    main()
