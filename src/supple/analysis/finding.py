"""What analyses share: the images they show a model, what they found, and tables of shaded cells."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.ticker import FixedLocator
from torch import Tensor

from supple.data.parts import Dataset
from supple.errors import CheckpointError, DataError
from supple.model import FlexibleModel
from supple.reporting.labels import FONT, MUTED
from supple.reporting.plots import INK, PAPER, plain
from supple.scoring import OnProgress, to_device

BATCH = 128
SHADES = LinearSegmentedColormap.from_list("none to all", ["#f4f7fa", "#9cc3de", "#2f6fb5", "#1c3566"])
NAMED = 40  # rows that can have a name each
NUMBERED = 24  # rows whose cells can hold a number


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


def batches(
    model: FlexibleModel, data: Dataset, parts: Iterable[Tensor], on_progress: OnProgress | None
) -> Iterator[tuple[Any, Any]]:
    """Images and labels where the model is, a batch for each of the parts (indices)."""
    device = next(model.parameters()).device
    for indices in parts:
        yield to_device(data.batch(indices), device)
        if on_progress is not None:
            on_progress(len(indices))


def as_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def must_be_finite(values: Tensor, subject: Subject) -> None:
    if not values.isfinite().all():
        cause = f"the model of {subject.name} gives outputs that are not finite."
        raise CheckpointError(cause, "Its training went astray: train again, with a lower train.lr.")


# --- pictures ---


def heading(axes: Axes, text: str) -> None:
    axes.set_title(plain(text), loc="left", fontsize=FONT, color=INK)


def cells(axes: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], labels: tuple[str, str]) -> None:
    """A table of shares, shaded and written in percent; cells that are not numbers stay empty.

    `labels` say what the columns and the rows are. Where there are many rows, a bar beside them replaces the numbers.
    """
    axes.set_facecolor("none")
    axes.imshow(np.ma.masked_invalid(values), cmap=SHADES, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.tick_params(which="both", length=0)
    axes.tick_params(labelcolor=INK, labelsize=FONT - 1.5)
    axes.set_xticks(range(len(columns)), [plain(name) for name in columns])
    step = 1 + (len(rows) - 1) // NAMED
    axes.set_yticks(range(0, len(rows), step), [plain(_short(name)) for name in rows[::step]])
    if len(rows) <= NAMED:
        for axis, count in ((axes.xaxis, len(columns)), (axes.yaxis, len(rows))):
            axis.set_minor_locator(FixedLocator([n + 0.5 for n in range(count - 1)]))
        axes.grid(which="minor", color=PAPER, linewidth=1)
    axes.set_xlabel(labels[0], fontsize=FONT, color=INK)
    axes.set_ylabel(labels[1], fontsize=FONT, color=INK)
    if len(rows) > NUMBERED:
        colour_bar(axes, ScalarMappable(Normalize(0, 100), SHADES), range(0, 101, 20), "%")
        return
    for row, column in np.argwhere(np.isfinite(values)):
        share = values[row, column]
        style: dict[str, Any] = {"color": PAPER if share > 0.5 else INK, "fontsize": FONT - 2}
        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center_baseline", **style)


def colour_bar(axes: Axes, colours: ScalarMappable, ticks: Sequence[float], label: str) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(colours, ax=axes, fraction=0.05, pad=0.02, aspect=30)
    bar.set_ticks(ticks, labels=[str(tick) for tick in ticks])
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=MUTED, labelcolor=INK, labelsize=FONT - 1, length=0)
    bar.set_label(label, fontsize=FONT, color=INK)


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
