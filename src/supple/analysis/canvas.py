"""What the pictures of the analyses share: colours, tables of shaded cells, and a key to positions."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, Normalize
from matplotlib.ticker import FixedLocator
from torch import Tensor

from supple.reporting.labels import FONT, MUTED
from supple.reporting.plots import INK, PAPER, plain

NEIGHBOURS = 15  # UMAP's default
Spots = np.ndarray  # (vectors, 2)


def project(vectors: Tensor, seed: int = 0) -> tuple[Spots, str]:
    """The spots, and the name of the way they were found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of umap, numba and scikit-learn about one another
        try:
            from umap import UMAP
        except ImportError:
            return principal(vectors), "PCA"
        mapped = UMAP(n_neighbors=min(NEIGHBOURS, len(vectors) - 1), random_state=seed, n_jobs=1)
        return np.asarray(mapped.fit_transform(vectors.numpy()), dtype=float), "UMAP"


def principal(vectors: Tensor) -> Spots:
    """The two principal components, from the vectors' products with one another: they are fewer than dimensions.

    Each component's largest coordinate is positive, so that the same vectors always give the same picture.
    """
    centred = vectors.double() - vectors.double().mean(0)
    variances, directions = torch.linalg.eigh(centred @ centred.T)  # rising
    spots = (directions * variances.clamp_min(0).sqrt())[:, -2:].flip(1)
    largest = spots.gather(0, spots.abs().argmax(0, keepdim=True))
    return np.asarray(torch.where(largest < 0, -spots, spots).numpy())


DARK_TO_LIGHT = LinearSegmentedColormap.from_list("input to output", ["#20234d", "#3d62a8", "#43a39b", "#d9d36a"])
SHADES = LinearSegmentedColormap.from_list("none to all", ["#f4f7fa", "#9cc3de", "#2f6fb5", "#1c3566"])
NAMED = 40  # rows that can have a name each
NUMBERED = 24  # rows whose cells can hold a number


def nothing_more() -> None:
    """For panels that have no names to place when the layout is settled."""


def position_colours(count: int) -> list[tuple[float, float, float, float]]:
    """One colour per position, dark at the input."""
    return [DARK_TO_LIGHT(i / max(1, count - 1)) for i in range(count)]


def position_key(axes: Axes, count: int) -> None:
    """A bar that says which colour is which position."""
    norm = BoundaryNorm(np.arange(0.5, count + 1), DARK_TO_LIGHT.N)
    step = 1 + (count - 1) // 16
    _bar(axes, ScalarMappable(norm, DARK_TO_LIGHT), range(1, count + 1, step), "position (1: at the input)")


def _bar(axes: Axes, colours: ScalarMappable, ticks: Sequence[float], label: str) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(colours, ax=axes, fraction=0.05, pad=0.02, aspect=30)
    bar.set_ticks(ticks, labels=[str(tick) for tick in ticks])
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=MUTED, labelcolor=INK, labelsize=FONT - 1, length=0)
    bar.set_label(label, fontsize=FONT, color=INK)


def heading(axes: Axes, text: str) -> None:
    axes.set_title(plain(text), loc="left", fontsize=FONT, color=INK)


def cells(
    axes: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], labels: tuple[str, str]
) -> Callable[[], None]:
    """A table of shares, shaded and written in percent; cells that are not numbers stay empty.

    `labels` say what the columns and the rows are. Where there are many rows, a bar beside them replaces the numbers.
    """
    axes.set_facecolor("none")
    axes.imshow(np.ma.masked_invalid(values), cmap=SHADES, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK, labelsize=FONT - 1.5)
    axes.set_xticks(range(len(columns)), [plain(name) for name in columns])
    step = 1 + (len(rows) - 1) // NAMED
    axes.set_yticks(range(0, len(rows), step), [plain(_short(name)) for name in rows[::step]])
    axes.xaxis.set_minor_locator(FixedLocator([n + 0.5 for n in range(len(columns) - 1)]))
    axes.yaxis.set_minor_locator(FixedLocator([n + 0.5 for n in range(len(rows) - 1)]))
    axes.tick_params(which="minor", length=0)
    if len(rows) <= NAMED:
        axes.grid(which="minor", color=PAPER, linewidth=1)
    axes.set_xlabel(labels[0], fontsize=FONT, color=INK)
    axes.set_ylabel(labels[1], fontsize=FONT, color=INK)
    if len(rows) <= NUMBERED:
        for row, column in np.argwhere(np.isfinite(values)):
            share = values[row, column]
            style: dict[str, Any] = {"color": PAPER if share > 0.5 else INK, "fontsize": FONT - 2}
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center_baseline", **style)
    else:
        _bar(axes, ScalarMappable(Normalize(0, 100), SHADES), range(0, 101, 20), "%")
    return nothing_more


def tail(path: str, most: int = 32) -> str:
    """The end of a long path, which says more than its beginning."""
    return path if len(path) <= most else f"…{path[1 - most :]}"


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
