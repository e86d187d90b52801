"""The analysis of method skip: which layers samples run, and what that costs."""

from collections.abc import Sequence
from typing import Any, cast

from supple.analysis.draw_layers_run import draw_classes, draw_histograms
from supple.analysis.finding import Finding, OnProgress, Subject, as_csv
from supple.analysis.layers_run import LayersRun, layers_run
from supple.methods.skip import Skip
from supple.point import Point
from supple.text import millions, table

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
