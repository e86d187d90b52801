"""Which images an analysis looks at, and how they come to the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from supple.data.samples import Dataset
from supple.errors import DataError
from supple.evaluate import to_device
from supple.model import FlexibleModel

BATCH = 128


def choose(data: Dataset, wanted: int | None, usual: int | None, least: int, seed: int = 0) -> Tensor:
    """Indices of images drawn at random: as many as wanted, or else as usual, or else all there are."""
    there = len(data)
    count = min(there, usual or there) if wanted is None else wanted
    if count > there:
        raise DataError(f"--images is {wanted}, but there are {there} test images.", f"Give at most {there}.")
    if count < least:
        cure = "Raise --images." if there >= least else "Give more test images: data.test_limit=null, or data.root=..."
        raise DataError(f"{count} test images are too few: this analysis needs {least}.", cure)
    return torch.randperm(there, generator=torch.Generator().manual_seed(seed))[:count]


def batch(model: FlexibleModel, data: Dataset, indices: Tensor) -> tuple[Any, Any]:
    """Images and labels where the model is."""
    x, y = to_device(data.batch(indices), next(model.parameters()).device)
    return x, y


@contextmanager
def answering(model: FlexibleModel) -> Iterator[None]:
    """Eval mode without gradients, and back."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)
