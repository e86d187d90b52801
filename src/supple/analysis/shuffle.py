"""The analysis of method shuffle: positions of a layer, contributions of all layers, positions that layers say."""

import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from supple.analysis.canvas import project, tail
from supple.analysis.finding import Finding, OnProgress, Subject, as_csv, must_be_finite
from supple.analysis.walks import Walks, densities, draw_ridges, draw_spots, walk
from supple.errors import RecipeError
from supple.methods.shuffle import Shuffle
from supple.text import table

ORDERS = 50
PLACES = 200  # at which a density is drawn


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
    spots, way = _spots(walks)
    names = [f"{tail(each.name)}: {len(each.indices):,} images, {n} orders" for each, n in zip(subjects, counts)]
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


def _spots(walks: list[Walks]) -> tuple[list[np.ndarray], str]:
    found = [project(each.outputs) for each in walks]
    return [spots for spots, _ in found], found[0][1]


def _places(walks: list[Walks]) -> np.ndarray:
    """From a little below the smallest share to a little above the largest one."""
    low, high = min(float(each.shares.min()) for each in walks), max(float(each.shares.max()) for each in walks)
    margin = 0.08 * (high - low) or 0.01
    return np.linspace(max(0.0, low - margin), min(1.0, high + margin), PLACES)


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
