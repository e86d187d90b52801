"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8, built in, no download."""

import torch

from supple.data.parts import Collection, labelled
from supple.data.split import set_aside

TEST_SHARE = 0.2
SPLIT_SEED = 1797  # fixed: the test images are the same in every run, whatever its seed


def digits() -> Collection:
    """Values 0..16 scaled to 0..255; about 80 % to train on and 20 % to test, stratified, always the same."""
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
