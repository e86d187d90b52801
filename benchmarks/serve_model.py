"""The network that the server is measured with, and labelled pictures to send: minutes on one core.

    python benchmarks/serve_model.py --weights deit_tiny_patch16_224.safetensors [--out runs/serve]

DeiT-Tiny at 224 px with exits after blocks 3, 6 and 9. The backbone stays as it is: a classifier for CIFAR-100
($SUPPLE_DATA; enlarged) is learnt on it, then linear branches from its cached features. Exported to ONNX in fp32. The
pictures are test images as PNG files of 32 px, in a folder for each class: no network has learnt from them. Where the
full point takes less than 20 ms on one thread, give a larger --size.
"""

import argparse
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import supple
from supple.data.registry import load
from supple.machine import machine
from supple.recipe import Recipe, make_recipe

LIMIT, TEST = 2000, 1000
HELD = 8  # one picture for validation for so many to train on
EPOCHS = (4, 30)  # of the classifier, for which the whole network runs each time, and of the branches
BRANCH = {"name": "linear", "norm": True, "read": "mean"}
AT = ["blocks.2", "blocks.5", "blocks.8"]


def recipe(given: argparse.Namespace, method: dict[str, Any], **train: Any) -> Recipe:
    data = {"name": given.data, "size": given.size, **numbers(given)}
    usual = {"optimizer": "adam", "weight_decay": 0.0, "schedule": "cosine", "threads": 1, "precision": "fp32"}
    document = {
        "data": {**data, "batch_size": 50},
        "backbone": {"name": "timm", "model": "deit_tiny_patch16_224"},
        "method": method,
        "loss": {"name": "distill", "teachers": "none"},
        "train": {**usual, "compile": "off", **train},
    }
    return make_recipe(document)


def numbers(given: argparse.Namespace) -> dict[str, int]:
    """Of pictures; the same ones are drawn each time."""
    return {"limit": given.images, "holdout": given.images // HELD, "test_limit": given.test}


def trained(given: argparse.Namespace) -> supple.Run:
    """A classifier for the new classes, then branches: as the SL-ViT paper does it, the backbone frozen throughout."""
    whole, features = (given.out.parent / f"{given.out.name}-{part}" for part in ("backbone", "features"))
    first, second = (max(1, round(given.epochs * count)) for count in EPOCHS)
    classifier = {"name": "static", "learn": "classifier"}
    wanted = recipe(given, classifier, init=str(given.weights.resolve()), epochs=first, lr=5e-3)
    supple.train(wanted, whole, progress=True)
    branches = {"name": "exits", "at": AT, "way": "classifier_wise", "branch": BRANCH}
    wanted = recipe(given, branches, init=str(whole), cache_features=str(features), epochs=second, lr=2e-3)
    run = supple.train(wanted, given.out, progress=True)
    shutil.rmtree(features)
    shutil.rmtree(whole)
    return run


def write_pictures(given: argparse.Namespace, out: Path) -> int:
    """The test images that the run is scored on, as files; how many. Nothing is taken out of their pixels."""
    as_they_are = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    test = load(given.data, **numbers(given), **as_they_are).test
    pixels, labels = test.batch(torch.arange(len(test)))
    for number, (picture, label) in enumerate(zip(pixels.mul(255).round().byte(), labels)):
        file = out / test.classes[int(label)] / f"{number:05d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file)
    return len(test)


def times(export: Path, pictures: Path, calls: int = 30) -> dict[str, float]:
    """ms of each point on one thread, from the bytes of a file to its answer, in turn."""
    files = [path.read_bytes() for path in sorted(pictures.rglob("*.png"))[:calls]]
    with supple.predictor(export, "onnxruntime", threads=1, precision="fp32") as one:
        spent: dict[str, list[float]] = {str(point): [] for point in one.points}
        for file in files:
            for point, found in spent.items():
                start = time.perf_counter()
                one.predict(file, point=point)
                found.append(1000 * (time.perf_counter() - start))
    return {point: statistics.median(found) for point, found in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="of DeiT-Tiny, as timm names them")
    parser.add_argument("--out", type=Path, default=Path("runs/serve"))
    parser.add_argument("--data", default="cifar100", choices=("cifar10", "cifar100"))
    parser.add_argument("--size", type=int, default=224, help="pixels: a multiple of 16")
    parser.add_argument("--images", type=int, default=LIMIT, help="to train on")
    parser.add_argument("--test", type=int, default=TEST, help="to test with, and to send")
    parser.add_argument("--epochs", type=float, default=1.0, help="times the usual number")
    given = parser.parse_args()
    began = time.monotonic()
    run = trained(given)
    export = supple.export(given.out, to="onnx", progress=True).folder
    count = write_pictures(given, given.out / "pictures")
    print(f"{machine()}, {time.monotonic() - began:.0f} s, {count} pictures in {given.out / 'pictures'}\n")
    print("| point | accuracy, test images | ms, one thread, from a file |")
    print("|---|---|---|")
    scores = {row.point: row.score for row in run.model.ladder if row.score is not None}
    for point, ms in times(export, given.out / "pictures").items():
        print(f"| {point} | {100 * scores[point]:.1f} % | {ms:.1f} |")


if __name__ == "__main__":
    main()
