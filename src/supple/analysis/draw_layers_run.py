"""Pictures of which layers samples run."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from supple.analysis.canvas import cells, heading, nothing_more
from supple.analysis.layers_run import LayersRun
from supple.report.plots import Panel, dress, point_colours, render

ACROSS = 3  # panels side by side


def draw_classes(found: Sequence[LayersRun], classes: Sequence[str], title: str) -> bytes:
    """A table for each point: what share (%) of a class's images ran a layer."""
    layers = found[0].ran.shape[1]
    columns = [str(n) for n in range(1, layers + 1)]

    def panel(each: LayersRun) -> Panel:
        def fill(axes: Axes) -> Callable[[], None]:
            heading(axes, str(each.point))
            return cells(axes, each.by_class(len(classes)).numpy(), classes, columns, ("layer", ""))

        return fill

    size = (1.6 + 0.34 * layers, min(1.1 + 0.24 * len(classes), 8.0))
    return render([panel(each) for each in found], "png", title, size=size, across=ACROSS)


def draw_histograms(found: Sequence[LayersRun], title: str) -> bytes:
    """Bars for each point: what share of the images ran so many layers."""

    def panel(each: LayersRun, colour: str) -> Panel:
        def fill(axes: Axes) -> Callable[[], None]:
            heading(axes, str(each.point))
            dress(axes, "layers run")
            axes.grid(axis="x", visible=False)
            axes.set_ylabel("images (%)")
            counts = each.histogram().numpy()
            axes.bar(np.arange(len(counts)), 100 * counts / counts.sum(), width=0.8, color=colour)
            axes.set_xlim(0.4, len(counts) - 0.4)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
            axes.set_ylim(0, 100)
            return nothing_more

        return fill

    panels = [panel(each, colour) for each, colour in zip(found, point_colours(len(found)))]
    return render(panels, "png", title, size=(3.2, 2.3), across=ACROSS)
