"""The analysis of method skip: which layers samples run, and what that costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from supple.analysis.finding import BATCH, Finding, Subject, answering, as_csv, batches, cells, heading
from supple.data.parts import Dataset
from supple.methods.skip import Skip
from supple.point import Point
from supple.reporting.plots import dress, point_colours, render
from supple.scoring import OnProgress
from supple.text import millions, table


@dataclass(frozen=True)
class LayersRun:
    """What one point did to every image."""

    point: Point
    ran: Tensor  # (images, layers)
    labels: Tensor
    right: Tensor  # whether the answer was
    macs: Tensor

    def by_class(self, classes: int) -> Tensor:
        """Share of a class's images that ran a layer (classes, layers); not a number for a class without images."""
        return torch.stack([self.ran[self.labels == label].double().mean(0) for label in range(classes)])

    def histogram(self) -> Tensor:
        """How many images ran 0, 1, 2, ... layers."""
        return torch.bincount(self.ran.sum(1), minlength=self.ran.shape[1] + 1)


def layers_run(
    model: Skip, data: Dataset, indices: Tensor, points: Sequence[Point], on_progress: OnProgress | None = None
) -> list[LayersRun]:
    """One for each point, in execution order."""
    asked = model.order(points)
    found: dict[Point, list[tuple[Tensor, ...]]] = {point: [] for point in asked}
    with answering(model):
        for x, y in batches(model, data, torch.split(indices, BATCH), on_progress):
            for output in model.run(x, asked):
                everything = torch.ones(len(y), len(model.trunk.blocks), dtype=torch.bool)  # full asks no gate
                ran = output.aux.get("ran", everything)
                assert output.cost is not None
                answer = ran, y, output.logits.argmax(1) == y, output.cost
                found[output.point].append(tuple(part.cpu() for part in answer))
    return [LayersRun(point, *(torch.cat(parts) for parts in zip(*found[point]))) for point in asked]


ACROSS = 3  # panels side by side


def draw_classes(found: Sequence[LayersRun], classes: Sequence[str], title: str) -> bytes:
    """A table for each point: what share (%) of a class's images ran a layer."""
    layers = found[0].ran.shape[1]
    size = (1.6 + 0.34 * layers, min(1.1 + 0.24 * len(classes), 8.0))
    panels = [partial(_classes, each, classes) for each in found]
    return render(panels, "png", title, size=size, across=ACROSS)


def _classes(found: LayersRun, classes: Sequence[str], axes: Axes) -> None:
    heading(axes, str(found.point))
    columns = [str(n) for n in range(1, found.ran.shape[1] + 1)]
    cells(axes, found.by_class(len(classes)).numpy(), classes, columns, ("layer", ""))


def draw_histograms(found: Sequence[LayersRun], title: str) -> bytes:
    """Bars for each point: what share of the images ran so many layers."""
    panels = [partial(_bars, each, colour) for each, colour in zip(found, point_colours(len(found)))]
    return render(panels, "png", title, size=(3.2, 2.3), across=ACROSS)


def _bars(found: LayersRun, colour: str, axes: Axes) -> None:
    heading(axes, str(found.point))
    dress(axes, "layers run")
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("images (%)")
    counts = found.histogram().numpy()
    axes.bar(np.arange(len(counts)), 100 * counts / counts.sum(), width=0.8, color=colour)
    axes.set_xlim(0.4, len(counts) - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
    axes.set_ylim(0, 100)


CLASSES = 20  # more are left to the file


def analyse_skip(
    subject: Subject, *, points: Sequence[Point] | None = None, on_progress: OnProgress | None = None
) -> Finding:
    """Per point: share of each class's images that ran each layer, layers run per image, MACs."""
    model, classes = cast(Skip, subject.model), subject.model.classes
    asked = points or (*model.points, *model.settled)
    found = layers_run(model, subject.data, subject.indices, asked, on_progress)
    facts = [_facts(each, classes) for each in found]
    by_class = [
        [fact["point"], name, layer, f"{share:.6g}"]
        for fact in facts
        for name, row in fact["classes"].items()
        for layer, share in enumerate(row["layers"] or (), 1)
    ]
    histogram = [[fact["point"], layers, n] for fact in facts for layers, n in enumerate(fact["histogram"])]
    images = f"{len(subject.indices):,} images"
    return Finding(
        {"images": len(subject.indices), "points": facts},
        _text(facts, classes),
        {
            "classes.png": draw_classes(found, classes, f"Which layers run: % of a class, {images}"),
            "classes.csv": as_csv(("point", "class", "layer", "share"), by_class),
            "histogram.png": draw_histograms(found, f"Layers run per image, {images}"),
            "histogram.csv": as_csv(("point", "layers", "images"), histogram),
        },
    )


def _facts(found: LayersRun, classes: Sequence[str]) -> dict[str, Any]:
    layers = found.ran.sum(1)
    each = found.by_class(len(classes)).tolist()
    counts = [int((found.labels == label).sum()) for label in range(len(classes))]
    return {
        "point": str(found.point),
        "accuracy": float(found.right.double().mean()),
        "layers": float(layers.double().mean()),
        "layers_fewest": int(layers.min()),
        "layers_most": int(layers.max()),
        "macs": round(float(found.macs.double().mean())),
        "macs_worst": int(found.macs.max()),  # of these images
        "histogram": found.histogram().tolist(),
        "classes": {
            name: {"images": count, "layers": row if count else None} for name, count, row in zip(classes, counts, each)
        },
    }


def _text(facts: list[dict[str, Any]], classes: Sequence[str]) -> str:
    header = ("point", "layers run", "fewest", "most", "MMACs", "worst", "top-1 %")
    rows = [
        (
            fact["point"],
            f"{fact['layers']:.2f}",
            str(fact["layers_fewest"]),
            str(fact["layers_most"]),
            millions(fact["macs"]),
            millions(fact["macs_worst"]),
            f"{100 * fact['accuracy']:.1f}",
        )
        for fact in facts
    ]
    first = table(header, rows)
    if len(classes) > CLASSES:
        return f"{first}\n(the {len(classes)} classes are in classes.csv)"
    by_class = [(name, *(_mean_layers(fact["classes"][name]) for fact in facts)) for name in classes]
    return f"{first}\n\n{table(('layers run', *(fact['point'] for fact in facts)), by_class)}"


def _mean_layers(row: dict[str, Any]) -> str:
    return "-" if row["layers"] is None else f"{sum(row['layers']):.2f}"
