"""A picture of what each layer reads (Dynamic Transformer paper, figures 1 to 4)."""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes

from supple.analysis.canvas import cells, heading, nothing_more
from supple.analysis.dependencies import Dependencies
from supple.report.labels import FONT, MUTED
from supple.report.plots import Panel, render

WORDS = {"all": "all {} images", "right": "classified rightly: {}", "wrong": "classified wrongly: {}"}


def draw_dependencies(found: Mapping[str, Dependencies | None], title: str) -> bytes:
    """A table for each kind of image; read down a column, it says what share a layer takes from each activation."""
    size = next(len(each.weights) for each in found.values() if each is not None)
    panels = [_panel(WORDS[kind].format(each.count if each else "none"), each) for kind, each in found.items()]
    return render(panels, "png", title, size=(1.3 + 0.36 * size, 1.5 + 0.32 * size))


def _panel(name: str, found: Dependencies | None) -> Panel:
    def fill(axes: Axes) -> Callable[[], None]:
        heading(axes, name)
        if found is None:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "no such image", ha="center", color=MUTED, fontsize=FONT, transform=axes.transAxes)
            return nothing_more
        weights = found.weights.T.numpy()  # (activations, layers)
        later = np.tril(np.ones(weights.shape, dtype=bool), -1)  # activations that a layer cannot read
        names = [str(n) for n in range(len(weights))]
        columns = [f"T{n}" for n in range(1, len(weights) + 1)]
        return cells(
            axes, np.where(later, np.nan, weights), names, columns, ("layer", "reads the output of (0: patch encoding)")
        )

    return fill
