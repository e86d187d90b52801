"""What an analysis is about, and what it found."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from supple.data.parts import Dataset
from supple.errors import CheckpointError, DataError
from supple.model import FlexibleModel
from supple.scoring import to_device

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


OnProgress = Callable[[int], None]  # is told how many more images are done


@dataclass(frozen=True)
class Subject:
    """A run to look at, and the images it is shown."""

    name: str
    model: FlexibleModel
    data: Dataset
    indices: Tensor  # of the images


@dataclass(frozen=True)
class Finding:
    """Figures as plain data, the same for people, and the content of each file by its name."""

    facts: dict[str, Any]
    text: str
    files: dict[str, bytes | str]


def as_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def must_be_finite(values: Tensor, subject: Subject) -> None:
    if not values.isfinite().all():
        cause = f"the model of {subject.name} computes values that are no numbers."
        raise CheckpointError(cause, "Its training went astray: train again, with a lower train.lr.")
