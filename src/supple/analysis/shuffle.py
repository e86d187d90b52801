"""The analysis of method shuffle: what layers give and add in different positions (LayerShuffle paper, section 4.3).

Layers and positions count from 1, as everywhere outside the methods.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap
from torch import Tensor

from supple.analysis.finding import (
    Finding,
    Subject,
    answering,
    as_csv,
    batches,
    colour_bar,
    heading,
    must_be_finite,
)
from supple.data.parts import Dataset
from supple.errors import RecipeError
from supple.methods._trunk import read_token
from supple.methods.shuffle import Shuffle
from supple.point import Point
from supple.reporting.labels import FONT
from supple.reporting.plots import PAPER, dress, render
from supple.scoring import OnProgress, draw
from supple.text import table

ORDERS = 50
PLACES = 200  # at which a density is drawn
SMOOTHEST, NARROWEST = 1.06, 0.01  # Silverman's factor; the least bandwidth, as a share of the range
NEIGHBOURS = 15  # UMAP's default
OVERLAP = 1.7  # height of a row's highest density, in rows
DARK_TO_LIGHT = LinearSegmentedColormap.from_list("input to output", ["#20234d", "#3d62a8", "#43a39b", "#d9d36a"])


def analyse_shuffle(
    subject: Subject,
    *,
    base: Subject | None = None,
    layer: int | None = None,  # whose outputs are projected; None: the middle one
    orders: int | None = None,  # how many random orders the images share
    on_progress: OnProgress | None = None,
) -> Finding:
    """Figure 4 of the LayerShuffle paper, for a run and for another one beside it."""
    subjects = [subject] if base is None else [subject, base]
    layer = (cast(Shuffle, subject.model).count + 1) // 2 if layer is None else layer
    counts = [_checked(each, layer, orders) for each in subjects]
    walks = [
        walk(cast(Shuffle, each.model), each.data, each.indices, layer, count, on_progress=on_progress)
        for each, count in zip(subjects, counts)
    ]
    for each, found in zip(subjects, walks):
        must_be_finite(found.norms, each)
    projected = [project(found.outputs) for found in walks]
    spots, way = [each for each, _ in projected], projected[0][1]
    names = [f"{_tail(each.name)}: {len(each.indices):,} images, {n} orders" for each, n in zip(subjects, counts)]
    held = [found.positions[:, layer - 1].numpy() for found in walks]
    at = _places(walks)
    missing = " (no umap-learn)" if way == "PCA" else ""
    facts = [_facts(each.name, found) for each, found in zip(subjects, walks)]
    return Finding(
        {"layer": layer, "images": len(subject.indices), "orders": counts[0], "projection": way, "runs": facts},
        "\n\n".join(_text(fact) for fact in facts),
        {
            f"layer-{layer}.png": draw_spots(names, spots, held, f"Output of layer {layer}: {way}{missing}"),
            f"layer-{layer}.csv": as_csv(("run", "image", "position", "x", "y"), _spot_rows(subjects, spots, held)),
            "contributions.png": draw_ridges(
                names, [densities(found, at) for found in walks], at, "What layers add to the class token"
            ),
            "contributions.csv": as_csv(
                ("run", "image", "layer", "position", "norm", "share"), _norm_rows(subjects, walks)
            ),
        },
    )


def _checked(subject: Subject, layer: int, orders: int | None) -> int:
    """The number of orders, after a look at what was asked for."""
    count, images = cast(Shuffle, subject.model).count, len(subject.indices)
    if not 1 <= layer <= count:
        raise RecipeError(f"--layer is {layer}, but {subject.name} has layers 1 to {count}.", "Give one of these.")
    if orders is not None and not 1 <= orders <= images:
        raise RecipeError(f"--orders is {orders} for {images} images.", f"Give a number from 1 to {images}.")
    return orders or min(ORDERS, images)


# --- walks through the layers ---


@dataclass(frozen=True)
class Walks:
    """How images went through the layers, in many orders."""

    positions: Tensor  # where each layer stood (images, layers)
    norms: Tensor  # of what each layer added to the class token (images, layers)
    outputs: Tensor  # all that the recorded layer gave (images, tokens * width)
    right: Tensor | None  # variant predict: whether the position of each layer was predicted rightly (images, layers)

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
        dealt = torch.tensor_split(indices, orders)
        for (x, _), point in zip(batches(model, data, dealt, on_progress), drawn):
            parts.append(_walk_together(model, x, point, layer))
    positions, norms, outputs, right = zip(*parts)
    rightly = None if right[0] is None else torch.cat(right)
    return Walks(torch.cat(positions), torch.cat(norms), torch.cat(outputs), rightly)


def _walk_together(model: Shuffle, x: Any, point: Point, recorded: int) -> tuple[Any, ...]:
    """The fields of `Walks`, of images that share an order."""
    how = "class" if model.trunk.class_token else "mean"
    positions = torch.zeros(len(x), model.count, dtype=torch.long)
    norms, outputs = torch.zeros(len(x), model.count), torch.empty(0)
    for layer, position, before, after in follow(model, x, point):
        positions[:, layer - 1] = position
        # What a layer added to the class token; to the mean token where there is no class token.
        added = read_token(after, how) - read_token(before, how)
        norms[:, layer - 1] = torch.linalg.vector_norm(added, dim=1).float().cpu()
        if layer == recorded:
            outputs = after.flatten(1).float().cpu()
    return positions, norms, outputs, _said_rightly(model, x, point, positions)


def follow(model: Shuffle, x: Any, point: Point) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Layer, position, and the state before and after it, in the order of the point."""
    state = model.trunk.stem(x)
    for position, layer in enumerate(model.sequence(point), 1):
        before, state = state, model.layer(state, layer - 1, position - 1)
        yield layer, position, before, state


def _said_rightly(model: Shuffle, x: Any, point: Point, positions: Tensor) -> Tensor | None:
    (output,) = model.run(x, (point,))
    if "position" not in output.aux:
        return None
    predicted = output.aux["position"].argmax(2).cpu()  # by position: (batch, positions)
    return (predicted == torch.arange(predicted.shape[1])).gather(1, positions - 1)


# --- projections and densities ---


def project(vectors: Tensor, seed: int = 0) -> tuple[np.ndarray, str]:
    """Spots (vectors, 2), and the name of the way they were found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of umap, numba and scikit-learn about one another
        try:
            from umap import UMAP
        except ImportError:
            return principal(vectors), "PCA"
        mapped = UMAP(n_neighbors=min(NEIGHBOURS, len(vectors) - 1), random_state=seed, n_jobs=1)
        return np.asarray(mapped.fit_transform(vectors.numpy()), dtype=float), "UMAP"


def principal(vectors: Tensor) -> np.ndarray:
    """The two principal components, from the vectors' products with one another: they are fewer than dimensions.

    Each component's largest coordinate is positive, so that the same vectors always give the same picture.
    """
    centred = vectors.double() - vectors.double().mean(0)
    variances, directions = torch.linalg.eigh(centred @ centred.T)  # rising
    spots = (directions * variances.clamp_min(0).sqrt())[:, -2:].flip(1)
    largest = spots.gather(0, spots.abs().argmax(0, keepdim=True))
    return np.asarray(torch.where(largest < 0, -spots, spots).numpy())


def densities(walks: Walks, at: np.ndarray) -> np.ndarray:
    """Estimated densities of the shares (layers, positions, places): Gaussian kernels, Silverman's bandwidth.

    All zero where a layer never stood in a position.
    """
    count = walks.positions.shape[1]
    found = np.zeros((count, count, len(at)))
    for layer, position in np.ndindex(count, count):
        values = walks.shares_at(layer + 1, position + 1).double().numpy()
        if len(values):
            width = max(SMOOTHEST * values.std() * len(values) ** -0.2, NARROWEST * float(at[-1] - at[0]))
            kernels = np.exp(-0.5 * ((at[:, None] - values) / width) ** 2)
            found[layer, position] = kernels.mean(1) / (width * np.sqrt(2 * np.pi))
    return found


def _places(walks: Sequence[Walks]) -> np.ndarray:
    """From a little below the smallest share to a little above the largest one."""
    low, high = min(float(each.shares.min()) for each in walks), max(float(each.shares.max()) for each in walks)
    margin = 0.08 * (high - low) or 0.01
    return np.linspace(max(0.0, low - margin), min(1.0, high + margin), PLACES)


# --- pictures ---


def draw_spots(names: Sequence[str], spots: Sequence[np.ndarray], positions: Sequence[np.ndarray], title: str) -> bytes:
    """One panel for each run: every image a spot, coloured by the position that the layer held."""
    count = max(int(held.max()) for held in positions)
    panels = [partial(_spots, *each, count) for each in zip(names, spots, positions)]
    return render([*panels[:-1], partial(panels[-1], key=True)], "png", title, size=(4.8, 4.2))


def _spots(name: str, at: np.ndarray, held: np.ndarray, count: int, axes: Axes, key: bool = False) -> None:
    dress(axes, "")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.scatter(at[:, 0], at[:, 1], s=9, c=_position_colours(count)[held - 1], linewidths=0, alpha=0.85)
    heading(axes, name)
    if key:
        _position_key(axes, count)


def draw_ridges(names: Sequence[str], rows: Sequence[np.ndarray], at: np.ndarray, title: str) -> bytes:
    """One panel for each run: a row of densities for each layer, the first on top, coloured by position.

    `rows` are (layers, positions, places) each; the highest density of a row gives its scale.
    """
    panels = [partial(_ridges, name, found, at) for name, found in zip(names, rows)]
    size = (4.8, 1.6 + 0.5 * max(len(found) for found in rows))
    return render([*panels[:-1], partial(panels[-1], key=True)], "png", title, size=size)


def _ridges(name: str, found: np.ndarray, at: np.ndarray, axes: Axes, key: bool = False) -> None:
    count = len(found)
    dress(axes, "contribution of a layer (% of the sum over layers)")
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    for layer, curves in enumerate(found):
        scale = OVERLAP / max(float(curves.max()), 1e-12)
        for curve, colour in zip(curves, _position_colours(count)):
            style: dict[str, Any] = {"facecolor": (*colour[:3], 0.55), "edgecolor": PAPER, "linewidth": 0.5}
            if curve.any():
                base = count - layer
                axes.fill_between(100 * at, base, base + scale * curve, zorder=2 + layer, **style)
    axes.set_yticks(range(count, 0, -1), [f"layer {n}" for n in range(1, count + 1)], fontsize=FONT - 1)
    axes.set_xlim(100 * at[0], 100 * at[-1])
    axes.set_ylim(0.8, count + OVERLAP + 0.1)
    heading(axes, name)
    if key:
        _position_key(axes, count)


def _position_colours(count: int) -> np.ndarray:
    """One colour per position (count, 4), dark at the input."""
    return np.asarray(DARK_TO_LIGHT(np.arange(count) / max(1, count - 1)))


def _position_key(axes: Axes, count: int) -> None:
    """A bar that says which colour is which position."""
    norm = BoundaryNorm(np.arange(0.5, count + 1), DARK_TO_LIGHT.N)
    step = 1 + (count - 1) // 16
    colour_bar(axes, ScalarMappable(norm, DARK_TO_LIGHT), range(1, count + 1, step), "position (1: at the input)")


def _tail(path: str, most: int = 32) -> str:
    """The end of a long path, which says more than its beginning."""
    return path if len(path) <= most else f"…{path[1 - most :]}"


# --- figures ---


def _facts(name: str, walks: Walks) -> dict[str, Any]:
    mean, overall = walks.mean_shares().tolist(), walks.shares.mean(0).tolist()
    right = None if walks.right is None else walks.right.double().mean(0).tolist()
    layers = [
        {
            "layer": n + 1,
            "contribution": overall[n],
            "in_place": None if math.isnan(mean[n][n]) else mean[n][n],
            "most_at": 1 + int(np.nanargmax(mean[n])),
            "positions": [None if math.isnan(value) else value for value in mean[n]],
            "predicted": None if right is None else right[n],
        }
        for n in range(len(mean))
    ]
    return {"run": name, "layers": layers, "predicted": None if right is None else float(np.mean(right))}


def _text(facts: dict[str, Any]) -> str:
    header = ["layer", "contribution %", "in its own place %", "most at position"]
    rows = [
        [str(row["layer"]), _percent(row["contribution"]), _percent(row["in_place"]), str(row["most_at"])]
        for row in facts["layers"]
    ]
    if facts["predicted"] is not None:
        header.append("says its position %")
        rows = [[*cells, _percent(row["predicted"])] for cells, row in zip(rows, facts["layers"])]
    lines = [facts["run"], table(header, rows, left=())]
    if facts["predicted"] is not None:
        lines.append(f"positions predicted correctly: {_percent(facts['predicted'])} %")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _spot_rows(subjects: list[Subject], spots: list[np.ndarray], held: list[np.ndarray]) -> Iterator[list[object]]:
    for subject, places, positions in zip(subjects, spots, held):
        for image, position, (x, y) in zip(subject.indices.tolist(), positions.tolist(), places.tolist()):
            yield [subject.name, image, position, f"{x:.6g}", f"{y:.6g}"]


def _norm_rows(subjects: list[Subject], walks: list[Walks]) -> Iterator[list[object]]:
    for subject, found in zip(subjects, walks):
        columns = found.positions.tolist(), found.norms.tolist(), found.shares.tolist()
        for image, positions, norms, shares in zip(subject.indices.tolist(), *columns):
            for layer, (position, norm, share) in enumerate(zip(positions, norms, shares), 1):
                yield [subject.name, image, layer, position, f"{norm:.6g}", f"{share:.6g}"]
