"""Reading pictures for training: random resized crops at 224 px, against torchvision and a DataLoader.

    python benchmarks/reading.py FOLDER      # class folders of photographs, or a zip of some; $SUPPLE_DATA is searched

Both read the same files with as many processes as there are cores, crop, flip and normalise, in batches of 64. They
take turns; the figure is the median of images per second over the rounds, without the start of the processes.
"""

import argparse
import statistics
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from supple.data._io.decode import SUFFIXES
from supple.data._io.paths import find
from supple.data.loaders import as_batches
from supple.data.registry import load
from supple.machine import cores, machine

SIZE, BATCH, SCALE = 224, 64, (0.35, 1.0)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def rate(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Images per second, from the first batch on."""
    seen, began = 0, None
    for x, _ in batches:
        if began is None:
            began = time.perf_counter()
        else:
            seen += len(x)
    assert began is not None
    return seen / (time.perf_counter() - began)


def photographs(given: str, folder: Path, copies: int) -> Path:
    """Two class folders with the photographs below a folder or in a zip, each as often as `copies` says."""
    source = find(given)
    if source.is_file():
        with zipfile.ZipFile(source) as archive:
            archive.extractall(folder / "zip")
        source = folder / "zip"
    found = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
    for number, path in enumerate(found * copies):
        kind = folder / "photographs" / ("even", "odd")[number % 2]
        kind.mkdir(parents=True, exist_ok=True)
        (kind / f"{number}{path.suffix.lower()}").symlink_to(path.resolve())
    return folder / "photographs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", nargs="?", default="detection-mini.zip")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        root = photographs(given.photographs, Path(made), given.copies)
        files = sorted(root.rglob("*.*"))
        sides = [min(Image.open(file).size) for file in files[:100]]
        splits = load(
            "folder", root=str(root), size=SIZE, crop_scale=SCALE, flip=True, mean=MEAN, std=STD, test_share=0.01
        )
        ours = as_batches(splits.train)
        change = [v2.RandomResizedCrop(SIZE, SCALE), v2.RandomHorizontalFlip(), v2.ToImage()]
        change += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        theirs = DataLoader(
            ImageFolder(str(root), v2.Compose(change)), BATCH, shuffle=True, num_workers=cores(), drop_last=True
        )
        found: dict[str, list[float]] = {"supple": [], "torchvision": []}
        for epoch in range(given.rounds):
            found["supple"].append(rate(ours.training(0, epoch, 0, BATCH)))
            found["torchvision"].append(rate(theirs))
    print(f"{len(files)} photographs, {statistics.median(sides):.0f} pixels a side; {machine()}")
    for name, rates in found.items():
        print(
            f"{name:12} {statistics.median(rates):7.0f} images/s   (rounds: {', '.join(f'{one:.0f}' for one in rates)})"
        )
    print(f"ratio {statistics.median(a / b for a, b in zip(*found.values())):.2f} (goal: at least 1)")


if __name__ == "__main__":
    main()
