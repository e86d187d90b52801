"""What layers give and add when they stand in different positions (LayerShuffle paper, section 4.3).

Layers and positions count from 1, as everywhere outside the methods.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from supple.analysis.canvas import heading, nothing_more, position_colours, position_key
from supple.analysis.finding import OnProgress, answering, batch
from supple.data.parts import Dataset
from supple.methods._trunk import read_token
from supple.methods.shuffle import Shuffle
from supple.point import Point
from supple.reporting.labels import FONT
from supple.reporting.plots import PAPER, Panel, dress, render
from supple.scoring import draw

SMOOTHEST, NARROWEST = 1.06, 0.01  # Silverman's factor; the least bandwidth, as a share of the range


@dataclass(frozen=True)
class Walks:
    """How images went through the layers, in many orders."""

    positions: Tensor  # where each layer stood (images, layers)
    norms: Tensor  # of what each layer added to the class token (images, layers)
    outputs: Tensor  # all that the recorded layer gave (images, tokens * width)
    right: Tensor | None  # variant predict: whether the position of each layer was said rightly (images, layers)

    @property
    def shares(self) -> Tensor:
        """The norms of an image, divided by their sum over the layers.

        Departure: the paper says "normalized" and no more.
        """
        return self.norms / self.norms.sum(1, keepdim=True).clamp_min(torch.finfo(self.norms.dtype).tiny)

    def shares_at(self, layer: int, position: int) -> Tensor:
        """Of the images for which the layer stood in this position."""
        return self.shares[self.positions[:, layer - 1] == position, layer - 1]

    def mean_shares(self) -> Tensor:
        """(layers, positions); not a number where a layer never stood."""
        places = range(1, self.positions.shape[1] + 1)
        return torch.tensor([[float(self.shares_at(n, p).mean()) for p in places] for n in places])


def walk(
    model: Shuffle,
    data: Dataset,
    indices: Tensor,
    layer: int,
    orders: int,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Walks:
    """Takes images through the layers in random orders, and keeps the whole output of one layer.

    Departure: in the paper every image has an order of its own. Here the images are dealt evenly to so many `orders`,
    and those that share one go through the layers together, which is quicker; as many orders as images is the paper.
    """
    parts = []
    with answering(model):
        drawn = draw(model, model.groups["arbitrary"], orders, seed)
        for point, some in zip(drawn, torch.tensor_split(indices, orders)):
            x, _ = batch(model, data, some)
            parts.append(_walk_together(model, x, point, layer))
            if on_progress is not None:
                on_progress(len(some))
    right = [part.right for part in parts if part.right is not None]
    return Walks(
        torch.cat([part.positions for part in parts]),
        torch.cat([part.norms for part in parts]),
        torch.cat([part.outputs for part in parts]),
        torch.cat(right) if right else None,
    )


def _walk_together(model: Shuffle, x: Any, point: Point, recorded: int) -> Walks:
    how = "class" if model.trunk.class_token else "mean"
    positions = torch.zeros(len(x), model.count, dtype=torch.long)
    norms, outputs = torch.zeros(len(x), model.count), torch.empty(0)
    for layer, position, before, after in follow(model, x, point):
        positions[:, layer - 1] = position
        norms[:, layer - 1] = added(before, after, how).float().cpu()
        if layer == recorded:
            outputs = after.flatten(1).float().cpu()
    return Walks(positions, norms, outputs, _said_rightly(model, x, point, positions))


def follow(model: Shuffle, x: Any, point: Point) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Layer, position, and the state before and after it, in the order of the point."""
    state = model.trunk.stem(x)
    for position, layer in enumerate(model.sequence(point), 1):
        before, state = state, model.layer(state, layer - 1, position - 1)
        yield layer, position, before, state


def added(before: Tensor, after: Tensor, how: str = "class") -> Tensor:
    """L2 norm of what a layer added to the class token; to the mean token where there is no class token."""
    norms: Tensor = torch.linalg.vector_norm(read_token(after, how) - read_token(before, how), dim=1)
    return norms


def _said_rightly(model: Shuffle, x: Any, point: Point, positions: Tensor) -> Tensor | None:
    (output,) = model.run(x, (point,))
    if "position" not in output.aux:
        return None
    said = output.aux["position"].argmax(2).cpu()  # by position: (batch, positions)
    return (said == torch.arange(said.shape[1])).gather(1, positions - 1)


def densities(walks: Walks, at: np.ndarray) -> np.ndarray:
    """Estimated densities of the shares (layers, positions, places): Gaussian kernels, Silverman's bandwidth.

    All zero where a layer never stood in a position.
    """
    count = walks.positions.shape[1]
    found = np.zeros((count, count, len(at)))
    for layer in range(count):
        for position in range(count):
            values = walks.shares_at(layer + 1, position + 1).double().numpy()
            if len(values):
                width = max(SMOOTHEST * values.std() * len(values) ** -0.2, NARROWEST * float(at[-1] - at[0]))
                kernels = np.exp(-0.5 * ((at[:, None] - values) / width) ** 2)
                found[layer, position] = kernels.mean(1) / (width * np.sqrt(2 * np.pi))
    return found


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
