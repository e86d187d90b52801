"""Pictures of what layers do in different positions (LayerShuffle paper, figure 4)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from supple.analysis.canvas import heading, nothing_more, position_colours, position_key
from supple.report.labels import FONT
from supple.report.plots import PAPER, Panel, dress, render

OVERLAP = 1.7  # height of a row's highest density, in rows


def draw_spots(names: Sequence[str], spots: Sequence[np.ndarray], positions: Sequence[np.ndarray], title: str) -> bytes:
    """One panel for each run: every image a spot, coloured by the position that the layer held."""

    def panel(name: str, at: np.ndarray, held: np.ndarray, count: int, last: bool) -> Panel:
        def fill(axes: Axes) -> Callable[[], None]:
            dress(axes, "")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            colours = position_colours(count)
            axes.scatter(at[:, 0], at[:, 1], s=9, c=[colours[p - 1] for p in held], linewidths=0, alpha=0.85)
            heading(axes, name)
            if last:
                position_key(axes, count)
            return nothing_more

        return fill

    count = max(int(held.max()) for held in positions)
    parts = list(zip(names, spots, positions))
    panels = [panel(*part, count, part is parts[-1]) for part in parts]
    return render(panels, "png", title, size=(4.8, 4.2))


def draw_ridges(names: Sequence[str], rows: Sequence[np.ndarray], at: np.ndarray, title: str) -> bytes:
    """One panel for each run: a row of densities for each layer, the first on top, coloured by position.

    `rows` are (layers, positions, places) each; the highest density of a row gives its scale.
    """

    def panel(name: str, found: np.ndarray, last: bool) -> Panel:
        count = len(found)

        def fill(axes: Axes) -> Callable[[], None]:
            dress(axes, "contribution of a layer (% of the sum over layers)")
            axes.grid(axis="y", visible=False)
            axes.spines["left"].set_visible(False)
            axes.tick_params(axis="y", length=0)
            for layer, densities in enumerate(found):
                scale = OVERLAP / max(float(densities.max()), 1e-12)
                for position, colour in enumerate(position_colours(count)):
                    curve = count - layer + scale * densities[position]
                    style: dict[str, Any] = {"facecolor": (*colour[:3], 0.55), "edgecolor": PAPER, "linewidth": 0.5}
                    if densities[position].any():
                        axes.fill_between(100 * at, count - layer, curve, zorder=2 + layer, **style)
            axes.set_yticks(range(count, 0, -1), [f"layer {n}" for n in range(1, count + 1)], fontsize=FONT - 1)
            axes.set_xlim(100 * at[0], 100 * at[-1])
            axes.set_ylim(0.8, count + OVERLAP + 0.1)
            heading(axes, name)
            if last:
                position_key(axes, count)
            return nothing_more

        return fill

    panels = [panel(name, found, i == len(rows) - 1) for i, (name, found) in enumerate(zip(names, rows))]
    tallest = max(len(found) for found in rows)
    return render(panels, "png", title, size=(4.8, 1.6 + 0.5 * tallest))
