"""The report of a run: one HTML file that needs nothing else, from whatever the run folder already holds."""

import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from supple.files import write
from supple.ladder import Ladder, Row
from supple.reporting.html import STYLE, line, missing, note, section, table
from supple.reporting.reading import Run, known, read_run
from supple.tasks import get_metric
from supple.text import duration, millions, quantity, some

if TYPE_CHECKING:
    from supple.reporting.plots import Panel

# The browser itself refuses whatever would leave the file.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_NAMES = 200  # class names listed by name
_CAPTIONS = {
    "macs": "Score against counted cost",
    "p50_ms": "Score against measured time",
    "score": "Validation score of every point",
    "loss": "Training loss of every point",
}


def write_report(folder: Path) -> Path:
    """Writes report.html into a run folder, and curve.png where the ladder has scores."""
    from supple.reporting.plots import draw_ladder, ladder_panels

    folder = Path(folder)
    run = read_run(folder)
    text = _page(run)
    if ladder_panels(run.ladder):
        draw_ladder(run.ladder, folder / "curve.png", run.name)
    return write(folder / "report.html", text)


def page(folder: Path) -> str:
    """The report of a run folder as HTML; writes nothing."""
    return _page(read_run(Path(folder)))


# --- the page ---


def _page(run: Run) -> str:
    sections = [_ladder_section(run), _policy_section(run), _training_section(run)]
    sections += [_recipe_section(run), _facts_section(run)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(run.name)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(run.name)}</h1>
<p class="summary">{_summary(run)}</p>
{"".join(sections)}</body>
</html>
"""


def _summary(run: Run) -> str:
    """One sentence: the point of the highest score, the cheapest one that comes close, and the cheapest of all."""
    rows = [row for row in run.ladder if known(row.score) and known(row.macs) and not row.is_group]
    rows.sort(key=lambda row: row.precision != "fp32")
    rows = [row for row in rows if _series(row) == _series(rows[0])]
    if not rows:
        points = len((run.manifest or {}).get("points") or ())
        return f"One checkpoint with {points} points, not scored yet." if points else "A run that is not scored yet."
    best = max(rows, key=lambda row: (row.merit, -_cost(row)))
    share = get_metric(best.metric).unit == "%"
    slack = 0.01 if share else 0.01 * abs(best.merit)
    # A hair of tolerance: 0.75 - 0.74 is more than 0.01 to a computer.
    near = min((row for row in rows if best.merit - row.merit <= slack + 1e-9), key=_cost)
    cheapest = min(rows, key=lambda row: (_cost(row), -row.merit))
    text = f"The highest-scoring point, {_name(best)}, reaches {_score(best)} at {millions(best.macs)} M MACs"
    if known(best.p50_ms) and len({row.point for row in rows}) == len(rows):  # timed in one configuration only
        text += f" in {best.p50_ms:.3g} ms"
    clauses = []
    if near.point != best.point:
        within = "one percentage point" if share else "1 %"
        clauses.append(f"{_name(near)} comes within {within} of it at {_percent(near, best)} of the MACs")
    if cheapest.point not in (best.point, near.point):
        clauses.append(
            f"the cheapest, {_name(cheapest)}, reaches {_score(cheapest)} at {_percent(cheapest, best)} of the MACs"
        )
    return text + ("; " + ", and ".join(clauses) if clauses else "") + "."


def _ladder_section(run: Run) -> str:
    from supple.reporting.plots import ladder_panels

    rows, parts = run.ladder.rows, []
    if not rows:
        parts.append(missing("There is no ladder yet: no point has a cost or a score.", "supple evaluate RUN"))
    elif not any(known(row.score) for row in rows):
        parts.append(missing("The points have no scores yet, so there is no curve.", "supple evaluate RUN"))
    if not any(known(row.p50_ms) for row in rows):
        parts.append(missing("No point has been timed yet.", "supple bench RUN"))
    if rows:
        parts += [_charts(ladder_panels(run.ladder)), _ladder_table(run.ladder)]
    return section("Ladder", parts)


def _ladder_table(ladder: Ladder) -> str:
    """One line per row of the ladder, cheapest first; what is the same for all rows is said once, below."""
    rows = ladder.rows
    shared = {name: _values(rows, name) for name in ("engine", "precision", "batch", "threads", "machine", "n")}
    metrics = [get_metric(name) for name in _values(rows, "metric")]
    units = {metric.unit for metric in metrics}
    lower = "" if all(row.higher_is_better for row in rows) else "lower is better"
    score = (", ".join(metric.called for metric in metrics) or "score", units.pop() if len(units) == 1 else "", lower)
    columns: dict[tuple[str, ...], list[str]] = {("MACs", "M"): [millions(row.macs) for row in rows]}
    if any(row.macs_worst is not None for row in rows):
        columns["worst case", "M"] = [millions(row.macs_worst) for row in rows]
    columns["parameters",] = [quantity(row.params) for row in rows]
    for name, values in shared.items():
        if len(values) > 1 and name != "n":
            columns[name,] = [_text(getattr(row, name)) for row in rows]
    if any(known(row.p50_ms) for row in rows):
        columns["p50", "ms"] = [_digits(row.p50_ms) for row in rows]
        columns["p95", "ms"] = [_digits(row.p95_ms) for row in rows]
    columns[score] = [_figure(row) for row in rows]
    for name in dict.fromkeys(name for row in rows for name in row.extra_metrics or ()):
        metric = get_metric(name)
        columns[metric.called, metric.unit] = [_shown((row.extra_metrics or {}).get(name), name) for row in rows]

    body = []
    remarks = [ladder.remark(row) for row in rows]
    for i, (row, remark) in enumerate(zip(rows, remarks)):
        repeated = i > 0 and rows[i - 1].point == row.point and remarks[i - 1] == remark
        inner = i + 1 < len(rows) and rows[i + 1].point == row.point  # no rule between the lines of one point
        kind = " ".join(name for name, holds in (("dominated", remark), ("inner", inner)) if holds)
        body.append(line(row.point, [column[i] for column in columns.values()], "" if repeated else remark, kind))
    threads = "{} thread" if shared["threads"] == [1] else "{} threads"
    words = {"batch": "batch {}", "threads": threads, "machine": "on {}", "n": "scored on {:,} samples"}
    below = ", ".join(words.get(name, "{}").format(*values) for name, values in shared.items() if len(values) == 1)
    return f"{table('ladder', [('point',), *columns], body)}\n{note(below)}"


def _policy_section(run: Run) -> str:
    """Only where a policy was calibrated: a run without one lacks nothing."""
    from supple.reporting.policy import policy_parts

    if run.policy is None:
        return ""
    if run.stale:
        text = "policy.json was calibrated for other weights than this run has."
        return section("Stopping when sure", [missing(text, "supple calibrate RUN --budget-macs 0.5x")])
    return section("Stopping when sure", policy_parts(run.policy))


def _training_section(run: Run) -> str:
    from supple.reporting.plots import training_panels

    parts = []
    if run.metrics:
        parts.append(_charts(training_panels(run.metrics)))
    else:
        parts.append(missing("There are no training curves: metrics.jsonl is missing or empty.", "supple train RECIPE"))
    if run.broken:
        parts.append(note(f"Left out: {some(run.broken, 'line')} of metrics.jsonl that could not be read."))
    return section("Training", parts)


def _recipe_section(run: Run) -> str:
    recipe = (run.manifest or {}).get("recipe")
    if not recipe:
        why = "manifest.json is missing" if run.manifest is None else "manifest.json holds none"
        return section("Recipe", [missing(f"The resolved recipe is not known: {why}.", "supple train RECIPE")])
    text = yaml.safe_dump(recipe, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
    return section("Recipe", [f"<pre>{escape(text)}</pre>"])


def _facts_section(run: Run) -> str:
    manifest = run.manifest or {}
    facts: dict[str, str] = {}  # values are HTML
    classes = manifest.get("classes")
    if isinstance(classes, list) and classes:
        more = f" and {len(classes) - _NAMES:,} more" if len(classes) > _NAMES else ""
        names = escape(", ".join(map(str, classes[:_NAMES]))) + more
        facts["classes"] = f"<details><summary>{len(classes):,}</summary>{names}</details>"
    shape = manifest.get("input_shape")
    if isinstance(shape, list) and shape:
        inputs = shape if isinstance(shape[0], list) else [shape]
        facts["input"] = escape(", ".join(" × ".join(map(str, sides)) for sides in inputs))
    machines = sorted({str(row.machine) for row in run.ladder if row.machine})
    if machines:
        facts["machine"] = escape(", ".join(machines))
    if run.metrics:
        facts["epochs"] = f"{run.metrics[-1]['epoch']:,}"
    kept = [entry["epoch"] for entry in run.metrics if entry.get("selected") is True]
    if kept:
        facts["best epoch"] = f"{kept[-1]:,}"
    seconds = [entry["seconds"] for entry in run.metrics if known(entry.get("seconds"))]
    if seconds:
        facts["training time"] = f"{duration(seconds[-1])} ({seconds[-1]:,.0f} s)"
    if isinstance(manifest.get("versions"), dict):
        facts["versions"] = escape(", ".join(f"{name} {version}" for name, version in manifest["versions"].items()))
    if isinstance(manifest.get("files"), dict):
        for name, digest in manifest["files"].items():
            facts[f"sha256 of {name}"] = f"<code>{escape(str(digest))}</code>"
    if manifest.get("format") is not None:
        facts["format"] = escape(str(manifest["format"]))
    lines = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{value}</td></tr>\n' for name, value in facts.items())
    parts = [f'<table class="facts"><tbody>\n{lines}</tbody></table>'] if facts else []
    if run.manifest is None:
        text = "manifest.json is missing: classes, input, versions and checksums are not known."
        parts.append(missing(text, "supple train RECIPE"))
    return section("Facts", parts)


# --- pieces of HTML and text ---


def _charts(panels: "dict[str, Panel]") -> str:
    from supple.reporting.plots import inline_svg

    figures = []
    for name, panel in panels.items():
        caption = _CAPTIONS[name]
        svg = inline_svg(panel, name).replace("<svg", f'<svg role="img" aria-label="{caption}"', 1)
        figures.append(f"<figure><figcaption>{caption}</figcaption>\n{svg}\n</figure>")
    return '<div class="charts">\n' + "\n".join(figures) + "\n</div>" if figures else ""


def _cost(row: Row) -> float:
    return math.inf if row.macs is None else row.macs


def _series(row: Row) -> tuple[object, ...]:
    return (row.metric, row.engine, row.precision)


def _values(rows: tuple[Row, ...], name: str) -> list[Any]:
    return list(dict.fromkeys(getattr(row, name) for row in rows if getattr(row, name) is not None))


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _digits(value: float | None) -> str:
    """Three significant digits, zeros kept so that columns line up: 1.50, 12.3, 105."""
    return "-" if value is None else f"{value:#.3g}".rstrip(".")


def _name(row: Row) -> str:
    return f"<strong>{escape(row.point)}</strong>"


def _percent(row: Row, best: Row) -> str:
    return f"{100 * _cost(row) / _cost(best):.0f} %" if _cost(best) else "the same"


def _figure(row: Row) -> str:
    """The score as the table shows it; the unit is in the header."""
    if row.score is None:
        return "-"
    return " ± ".join(_shown(value, row.metric) for value in (row.score, row.deviation) if value is not None)


def _shown(value: float | None, name: str | None) -> str:
    metric = get_metric(name)
    return "-" if value is None else f"{metric.scale * value:.1f}" if metric.unit else _digits(value)


def _score(row: Row) -> str:
    metric = get_metric(row.metric)
    figure = _figure(row)
    return escape(f"{figure} {metric.unit} {metric.called}" if metric.unit else f"{metric.called} {figure}")
