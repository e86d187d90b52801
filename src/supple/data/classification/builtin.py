"""Sets without a download: scikit-learn's handwritten digits (1,797, grey, 8 x 8), and stripes drawn for tests."""

import math

import torch

from supple.data.parts import Collection, Part, labelled
from supple.data.settings import Seed, Side
from supple.data.splits import set_aside

DIRECTIONS = ("horizontal", "rising", "vertical", "falling")
SIZE = 16
COUNTS = {"train": 256, "val": 64, "test": 64}
PERIOD = 5.0  # pixels


def generated(
    *,
    size: Side | None = None,  # pixels of a side; None: 16
    seed: Seed = 0,  # of the images
) -> Collection:
    """Four classes of coloured stripes with noise, 256 / 64 / 64 images; the same images for the same seed and size."""
    rng = torch.Generator().manual_seed(seed)
    parts = {part: _stripes(count, size or SIZE, rng) for part, count in COUNTS.items()}
    return Collection(train=parts["train"], val=parts["val"], test=parts["test"], classes=DIRECTIONS)


def _stripes(count: int, size: int, rng: torch.Generator) -> Part:
    labels = torch.arange(count) % len(DIRECTIONS)
    # Direction in which the brightness changes, across the stripes.
    angle = (math.pi / 2 - labels * math.pi / len(DIRECTIONS)).view(-1, 1, 1)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    phase = 2 * math.pi * torch.rand(count, 1, 1, generator=rng)
    along = x * angle.cos() + y * angle.sin()
    wave = torch.sin(2 * math.pi * along / PERIOD + phase)[:, None]  # (count, 1, size, size)
    colour = 30 + 60 * torch.rand(count, 3, 1, 1, generator=rng)
    noise = 15 * torch.randn(count, 3, size, size, generator=rng)
    return labelled((128 + colour * wave + noise).round().clamp(0, 255).to(torch.uint8), labels)


TEST_SHARE = 0.2
SPLIT_SEED = 1797  # fixed: the test images are the same in every run, whatever its seed


def digits() -> Collection:
    """Scikit-learn's handwritten digits, 1,797 of 8 x 8 pixels, grey.

    Values 0..16 are scaled to 0..255; about 80 % to train on and 20 % to test, stratified, always the same.
    """
    from sklearn.datasets import load_digits

    stored = load_digits()
    images = torch.from_numpy(stored.images).mul(255 / 16).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(stored.target).to(torch.int64)
    test, train = set_aside(labels, round(TEST_SHARE * len(labels)), SPLIT_SEED)
    return Collection(
        train=labelled(images[train], labels[train]),
        test=labelled(images[test], labels[test]),
        classes=tuple(str(digit) for digit in range(10)),
        channels=1,
    )
