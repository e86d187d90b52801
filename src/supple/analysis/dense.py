"""The analysis of method dense: what each layer reads."""

from typing import Any, cast

from supple.analysis.dependencies import Dependencies, dependencies
from supple.analysis.draw_dependencies import draw_dependencies
from supple.analysis.finding import Finding, OnProgress, Subject, as_csv, must_be_finite
from supple.methods.dense import Dense
from supple.text import table


def analyse_dense(subject: Subject, *, on_progress: OnProgress | None = None) -> Finding:
    """Figures 1 to 4 of the Dynamic Transformer paper: mean weights of all images, of right and of wrong answers."""
    found = dependencies(cast(Dense, subject.model), subject.data, subject.indices, on_progress)
    every = found["all"]
    assert every is not None
    must_be_finite(every.weights, subject)
    rows = [
        [kind, layer + 1, activation, f"{float(each.weights[layer, activation]):.6g}"]
        for kind, each in found.items()
        if each is not None
        for layer in range(len(each.weights))
        for activation in range(layer + 1)
    ]
    return Finding(
        {"images": every.count, "maps": {kind: _facts(each) for kind, each in found.items()}},
        _text(every),
        {
            "dependencies.png": draw_dependencies(found, "What each layer reads (read down a column; %)"),
            "dependencies.csv": as_csv(("images", "layer", "activation", "weight"), rows),
        },
    )


def _facts(found: Dependencies | None) -> dict[str, Any] | None:
    if found is None:
        return None
    layers = [row[: layer + 1] for layer, row in enumerate(found.weights.tolist())]  # what there was to read
    return {"images": found.count, "weights": layers}


def _text(found: Dependencies) -> str:
    rows = []
    for layer, row in enumerate(found.weights.tolist()):
        readable = row[: layer + 1]
        most = max(range(len(readable)), key=readable.__getitem__)
        shares = f"{100 * readable[layer]:.0f}", f"{100 * readable[0]:.0f}", f"{100 * readable[most]:.0f}"
        rows.append([f"T{layer + 1}", *shares[:2], str(most), shares[2]])
    header = ("layer", "the one before %", "patch encoding (0) %", "most from", "that is %")
    return table(header, rows)
