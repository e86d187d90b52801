"""What an analysis is about, and what it found."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from supple.data.samples import Dataset
from supple.errors import CheckpointError
from supple.model import FlexibleModel

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
