"""The analysis of method dense: what each layer reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from supple.analysis.finding import (
    BATCH,
    Finding,
    Subject,
    answering,
    as_csv,
    batches,
    cells,
    heading,
    must_be_finite,
)
from supple.data.parts import Dataset
from supple.methods.dense import Dense
from supple.point import FULL
from supple.reporting.labels import FONT, MUTED
from supple.reporting.plots import render
from supple.scoring import OnProgress
from supple.text import table


@dataclass(frozen=True)
class Dependencies:
    """Mean weights (layers, activations): row j says what layer j + 1 reads; activation 0 is the patch encoding."""

    weights: Tensor
    count: int  # of images

    def readable(self) -> list[list[float]]:
        """The weights of what there was to read: one for the first layer, two for the second, ..."""
        return [row[: layer + 1] for layer, row in enumerate(self.weights.tolist())]


def dependencies(
    model: Dense, data: Dataset, indices: Tensor, on_progress: OnProgress | None = None
) -> dict[str, Dependencies | None]:
    """Of all images, and of those classified rightly and wrongly; None where there is no such image."""
    weights, right = [], []
    with answering(model):
        for x, y in batches(model, data, torch.split(indices, BATCH), on_progress):
            (output,) = model.run(x, (FULL,))
            weights.append(output.aux["weights"].cpu())
            right.append((output.logits.argmax(1) == y).cpu())
    each, correct = torch.cat(weights), torch.cat(right)
    return {"all": _mean(each), "right": _mean(each[correct]), "wrong": _mean(each[~correct])}


def _mean(weights: Tensor) -> Dependencies | None:
    return Dependencies(weights.double().mean(0), len(weights)) if len(weights) else None


WORDS = {"all": "all {} images", "right": "classified rightly: {}", "wrong": "classified wrongly: {}"}


def draw_dependencies(found: Mapping[str, Dependencies | None], title: str) -> bytes:
    """A table for each kind of image; read down a column, it says what share a layer takes from each activation."""
    size = next(len(each.weights) for each in found.values() if each is not None)
    panels = [partial(_panel, WORDS[kind].format(each.count if each else "none"), each) for kind, each in found.items()]
    return render(panels, "png", title, size=(1.3 + 0.36 * size, 1.5 + 0.32 * size))


def _panel(name: str, found: Dependencies | None, axes: Axes) -> None:
    heading(axes, name)
    if found is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no such image", ha="center", color=MUTED, fontsize=FONT, transform=axes.transAxes)
        return
    weights = found.weights.T.numpy()  # (activations, layers)
    later = np.tril(np.ones(weights.shape, dtype=bool), -1)  # activations that a layer cannot read
    names = [str(n) for n in range(len(weights))]
    columns = [f"T{n}" for n in range(1, len(weights) + 1)]
    labels = ("layer", "reads the output of (0: patch encoding)")
    cells(axes, np.where(later, np.nan, weights), names, columns, labels)


def analyse_dense(subject: Subject, *, on_progress: OnProgress | None = None) -> Finding:
    """Figures 1 to 4 of the Dynamic Transformer paper: mean weights of all images, of right and of wrong answers."""
    found = dependencies(cast(Dense, subject.model), subject.data, subject.indices, on_progress)
    every = found["all"]
    assert every is not None
    must_be_finite(every.weights, subject)
    maps = {
        kind: None if each is None else {"images": each.count, "weights": each.readable()}
        for kind, each in found.items()
    }
    rows = [
        [kind, layer, activation, f"{weight:.6g}"]
        for kind, each in found.items()
        for layer, weights in enumerate(each.readable() if each else (), 1)
        for activation, weight in enumerate(weights)
    ]
    return Finding(
        {"images": every.count, "maps": maps},
        _text(every),
        {
            "dependencies.png": draw_dependencies(found, "What each layer reads (read down a column; %)"),
            "dependencies.csv": as_csv(("images", "layer", "activation", "weight"), rows),
        },
    )


def _text(found: Dependencies) -> str:
    rows = []
    for layer, weights in enumerate(found.readable()):
        most = max(range(len(weights)), key=weights.__getitem__)
        before, first, largest = (f"{100 * weights[place]:.0f}" for place in (layer, 0, most))
        rows.append((f"T{layer + 1}", before, first, str(most), largest))
    return table(("layer", "the one before %", "patch encoding (0) %", "most from", "that is %"), rows)
