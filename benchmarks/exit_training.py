"""What training branches on a frozen network costs: four against the deepest alone, from images and from features.

    python benchmarks/exit_training.py [--rounds 5] [--threads 2] [--at layer1 layer2]

Everything that is compared runs in turn inside this process; the figures are ratios of medians. Prints Markdown tables.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import supple
from supple.data.images import ImageSet
from supple.data.parts import Dataset, labelled
from supple.data.preprocess import Preprocess
from supple.inference.timing import interleave
from supple.losses import distill_objective
from supple.machine import machine
from supple.methods.exits import Exits
from supple.point import Point
from supple.text import size
from supple.training.feature_cache import compute, open_part

NETWORK, CUTS, CLASSES, BATCH, PIXELS = "resnet50", ("layer1", "layer2", "layer3.2", "layer3"), 100, 16, 224
IMAGES = 64  # their features, memory-mapped, stay in the page cache


def images(count: int) -> ImageSet:
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, PIXELS, PIXELS), dtype=torch.uint8, generator=rng)
    labels = torch.randint(0, CLASSES, (count,), generator=rng)
    names = tuple(f"class {c}" for c in range(CLASSES))
    return ImageSet(labelled(pixels, labels), names, Preprocess(PIXELS, 3, (0.5,) * 3, (0.25,) * 3))


def with_branches(branch: str, cuts: Sequence[str]) -> Exits:
    shape = (3, PIXELS, PIXELS)
    return supple.exits(NETWORK, at=cuts, branch=branch, num_classes=CLASSES, input_shape=shape).train()


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


def measure(branch: str, cuts: Sequence[str], rounds: int) -> dict[str, float]:
    """Milliseconds of one step: the deepest branch alone, all of them, all of them from features, and as the training
    loop asks for them; and the bytes that the features of one image take.
    """
    model, data = with_branches(branch, cuts), images(IMAGES)
    branches = model.points[:-1]
    with tempfile.TemporaryDirectory() as folder:
        compute(model.eval().features, {"train": data}, Path(folder), quiet=True)
        model.train()
        features = open_part(Path(folder), "train", data)
        calls = {
            "deepest": stepper(model, branches[-1:], data),
            "together": stepper(model, branches, data),
            "features": stepper(model, branches, features),
            "loop": stepper(model, model.begin_phase(0), data),
        }
        found = {call: times.p50_ms for call, times in interleave(calls, rounds, seconds=1e9).items()}
        return found | {"bytes": sum(file.stat().st_size for file in Path(folder).glob("*.npy")) / len(data)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--at", nargs="+", default=CUTS, metavar="LAYER", help="where the branches sit")
    arguments = parser.parse_args()
    cuts = arguments.at
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    def row(branch: str, what: str, value: float, goal: str, missed: bool = False) -> None:
        print(f"| {branch} | {what} | {value:,.2f} | {goal}{': **missed**' if missed else ''} |", flush=True)

    print(f"{machine()}, torch {torch.__version__}, {arguments.threads} threads")
    print(f"\n{NETWORK}, {PIXELS} px, batch {BATCH}, frozen, branches at {', '.join(cuts)}\n")
    print("| branches | what | measured | goal |\n|---|---|---|---|")
    for branch in ("linear", "cnn", "sl_vit"):
        found = measure(branch, cuts, arguments.rounds)
        together, loop = found["together"] / found["deepest"], found["loop"] / found["deepest"]
        faster = found["together"] / found["features"]
        row(branch, f"{cuts[-1]} alone, ms a step", found["deepest"], "")
        row(branch, f"all {len(cuts)} / {cuts[-1]} alone", together, "at most 1.30", together > 1.305)
        row(branch, f"all points of `begin_phase(0)` / {cuts[-1]} alone", loop, "at most 1.30", loop > 1.305)
        what = (
            f"all {len(cuts)}, images/s from features ({size(round(found['bytes']))} an image) over those from images"
        )
        row(branch, what, faster, "at least 5", faster < 5)


if __name__ == "__main__":
    main()
