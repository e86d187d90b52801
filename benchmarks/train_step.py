"""What a training step costs: the loop against bare torch, the loader, joint steps against their parts, torch.compile.

    python benchmarks/train_step.py [--rounds 7]

Everything that is compared runs in turn inside this process; the figures are ratios of medians. Prints Markdown.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from supple.cost import profile
from supple.data.augment import Augmentation
from supple.data.images import ImageSet
from supple.data.loaders import as_batches
from supple.data.parts import labelled
from supple.data.preprocess import Preprocess
from supple.data.splits import Splits
from supple.inference.timing import interleave
from supple.losses import distill_objective
from supple.machine import machine
from supple.methods import build
from supple.point import FULL
from supple.recipe import load_recipe
from supple.training.build import fresh_model, skeleton
from supple.training.loop import Training, fit
from supple.training.step import compile_modules, make_fabric

BATCH = 64


def images(n: int) -> ImageSet:
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=rng)
    labels = torch.randint(0, 10, (n,), generator=rng)
    names = tuple("abcdefghij")
    return ImageSet(
        labelled(pixels, labels),
        names,
        Preprocess(32, 3, (0.5,) * 3, (0.25,) * 3),
        augmentation=Augmentation(crop=4, flip=True),
    )


def stepper(model, points, x, y, teachers="all"):
    """One bare step: forward, loss, backward, update."""
    objective = distill_objective(model.points, teachers=teachers)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6, momentum=0.9)

    def step() -> None:
        loss = objective(model(x, points), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def ratio(one, other, rounds: int) -> float:
    times = interleave({"one": one, "other": other}, rounds, seconds=1e9)
    return times["one"].p50_ms / times["other"].p50_ms


def loader(rounds: int) -> float:
    """Images per second with crop and flip, 50,000 images in memory."""
    data, rng = images(50_000), torch.Generator().manual_seed(0)
    order = torch.randperm(50_000)
    rates = []
    for _ in range(rounds):
        start = time.perf_counter()
        for indices in torch.split(order[:12_800], BATCH):
            data.batch(indices, rng)
        rates.append(12_800 / (time.perf_counter() - start))
    return statistics.median(rates)


def loop_overhead(rounds: int) -> float:
    """Time of the real loop (data, metrics, progress) over the same number of bare steps on one ready batch."""
    settings = {"epochs": 1, "memory_format": "channels_first", "precision": "fp32", "threads": torch.get_num_threads()}
    changes = [f"train.{name}={value}" for name, value in settings.items()]
    recipe = load_recipe("pocket/msdnet_cifar10_tam.yaml", changes)
    steps = 60  # an epoch: the first steps of a new optimizer allocate its state
    splits = Splits(images(BATCH * steps), images(BATCH), images(BATCH))
    model = fresh_model(recipe, splits).train()
    objective = distill_objective(model.points, teachers="all", tau=5)
    x, y = splits.train.batch(torch.arange(BATCH))
    bare = stepper(copy.deepcopy(model), model.points, x, y)
    bare()
    ratios = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            fabric, data = make_fabric(recipe.train), as_batches(splits.train)
            fresh = copy.deepcopy(model)
            fit(Training(fabric, recipe.train, Path(folder), fresh, data, splits.val, objective, BATCH, True, True, ""))
            looped = json.loads((Path(folder) / "metrics.jsonl").read_text())["seconds"]
        start = time.perf_counter()
        for _ in range(steps):
            bare()
        ratios.append(looped / (time.perf_counter() - start))
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    rows = []

    def row(what: str, value: float, goal: str, digits: int = 2) -> None:
        rows.append(f"| {what} | {value:,.{digits}f} | {goal} |")
        print(rows[-1], flush=True)

    print(f"{machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads, batch {BATCH}, 32 px\n")
    print("| what | measured | goal |\n|---|---|---|")
    row("loader with crop and flip, images/s", loader(rounds), "at least 10,000", 0)
    row("training loop / bare step (pocket MSDNet)", loop_overhead(rounds), "at most 1.05", 3)

    msdnet = build({"name": "msdnet"}, {"name": "exits"}, 10, (3, 32, 32)).train()
    full = profile(skeleton(load_recipe("ipkd_ta/msdnet_cifar10_tam.yaml")))[-1]
    every = stepper(copy.deepcopy(msdnet), msdnet.points, x, y)
    last = stepper(copy.deepcopy(msdnet), [FULL], x, y)
    share = full.macs_through / full.macs
    row(f"MSDNet, all 7 exits / last alone / MAC share {share:.3f}", ratio(every, last, rounds) / share, "at most 1.10")

    slim = build({"name": "mobilenet_v1"}, {"name": "slim"}, 10, (3, 32, 32)).train()
    joint = stepper(copy.deepcopy(slim), slim.points, x, y)
    parts = [stepper(copy.deepcopy(slim), [point], x, y) for point in slim.points]
    row(
        "slimmable MobileNet, 4 widths jointly / sum of 4 apart",
        ratio(joint, lambda: [p() for p in parts], rounds),
        "at most 1.10",
    )

    compiled = copy.deepcopy(msdnet)
    compile_modules(compiled)
    start = time.perf_counter()
    step = stepper(compiled, msdnet.points, x, y)
    step()
    seconds = time.perf_counter() - start
    row(
        f"MSDNet, compiled: images/s over eager (compile {seconds:.0f} s aside)",
        1 / ratio(step, every, rounds),
        "at least 1.40",
    )


if __name__ == "__main__":
    main()
