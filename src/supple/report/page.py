"""The report of a run: one HTML file that needs nothing else, from whatever the run folder already holds."""

import json
import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import yaml

from supple.errors import CheckpointError
from supple.ladder import Ladder, Row
from supple.text import duration, millions, quantity

_STYLE = """
:root { color-scheme: light dark;
  --ink: #22272e; --muted: #667080; --grid: #e3e6ea; --paper: #ffffff; --shade: #f5f6f8; --accent: #2f6fb5; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e2e6ea; --muted: #97a1ad; --grid: #30363d; --paper: #15181c; --shade: #1e2227; --accent: #6ea8e5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 64rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.75rem 0 .75rem; }
p { margin: .5rem 0; max-width: 44rem; }
.summary { font-size: 1.1rem; }
.note, figcaption, small, th small { color: var(--muted); font-size: .875rem; }
.missing { border-left: 3px solid var(--accent); background: var(--shade); padding: .6rem .9rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; max-width: 36rem; }
figcaption { margin-bottom: .25rem; }
svg { display: block; width: 100%; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: inherit !important; }
.wide { overflow-x: auto; margin-top: 1.25rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem 1.1rem .4rem 0; text-align: left; vertical-align: baseline;
  border-bottom: 1px solid var(--grid); }
th { font-weight: 600; vertical-align: bottom; white-space: nowrap; }
thead th { border-bottom-color: var(--muted); }
th small { font-weight: 400; }
.number { text-align: right; white-space: nowrap; }
td:first-child { overflow-wrap: anywhere; min-width: 7rem; }
td small { display: block; line-height: 1.3; }
.dominated td { color: var(--muted); }
.inner td { border-bottom-color: transparent; padding-bottom: .1rem; }
.inner + tr td { padding-top: .1rem; }
.facts th { vertical-align: baseline; font-weight: 400; color: var(--muted); }
.facts td { overflow-wrap: anywhere; }
code, pre { font: .875rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.missing code { white-space: nowrap; }
pre { background: var(--shade); padding: 1rem; border-radius: 6px; overflow-x: auto; }
summary { cursor: pointer; }
@media (max-width: 40rem) { body { padding: 1.5rem 1rem 3rem; } table { font-size: .875rem; }
  th, td { padding-right: .7rem; } td:first-child { min-width: 8rem; } }
"""
# The browser itself refuses whatever would leave the file.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_NAMES = 200  # class names listed by name


@dataclass(frozen=True)
class _Run:
    """What a run folder holds; None or empty: not there."""

    name: str
    manifest: dict[str, Any] | None
    ladder: Ladder | None
    metrics: list[dict[str, Any]]
    broken: int  # lines of metrics.jsonl that could not be read

    @property
    def scored(self) -> bool:
        return self.ladder is not None and any(_known(row.score) for row in self.ladder)

    @property
    def timed(self) -> bool:
        return self.ladder is not None and any(_known(row.p50_ms) for row in self.ladder)


def write_report(folder: Path) -> Path:
    """Writes report.html into a run folder, and curve.png where the ladder has scores."""
    from supple.report.plots import draw_ladder, ladder_panels, write_file

    folder = Path(folder)
    run = _read(folder)
    text = _page(run)
    if run.ladder is not None and ladder_panels(run.ladder):
        draw_ladder(run.ladder, folder / "curve.png", run.name)
    return write_file(folder / "report.html", text.encode("utf-8", "replace"))


def page(folder: Path) -> str:
    """The report of a run folder as HTML; writes nothing."""
    return _page(_read(Path(folder)))


# --- reading ---


def _read(folder: Path) -> _Run:
    parts = ("manifest.json", "ladder.json", "metrics.jsonl")
    if not any((folder / part).is_file() for part in parts):
        what = "holds none of " + ", ".join(parts) if folder.is_dir() else "is no folder"
        raise CheckpointError(f"{folder} is no run: it {what}.", "Give the folder that supple train wrote.")
    manifest = _document(folder / "manifest.json", "Restore it from a copy, or train again: supple train RECIPE.")
    document = _document(folder / "ladder.json", "Delete it and measure again: supple evaluate RUN.")
    metrics, broken = _metrics(folder / "metrics.jsonl")
    ladder = None if document is None else Ladder.from_json(document)
    _check(ladder, folder / "ladder.json")
    return _Run(folder.resolve().name, manifest, ladder, metrics, broken)


def _document(path: Path, cure: str) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}).", cure) from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds a {type(document).__name__}, not named values.", cure)
    return document


def _check(ladder: Ladder | None, path: Path) -> None:
    """Refuses a ladder whose figures are no figures, before a sum trips over them."""
    figures = ("macs", "macs_worst", "params", "p50_ms", "p95_ms", "score", "deviation", "n")
    for row in ladder or ():
        for name in figures:
            value = getattr(row, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                cause = f'{path}: {name} of point "{row.point}" is {value!r}, not a number.'
                raise CheckpointError(cause, "Delete it and measure again: supple evaluate RUN.")


def _metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The epochs in order, and how many lines were broken: a killed run leaves half a line, a resumed one goes on."""
    epochs: dict[int, dict[str, Any]] = {}
    broken = 0
    if not path.is_file():
        return [], 0
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            entry = json.loads(line) if line.strip() else None
        except ValueError:
            entry = line
        if isinstance(entry, dict) and isinstance(entry.get("epoch"), int):
            epochs[entry["epoch"]] = entry  # an epoch repeated after a resume replaces the one before
        elif entry is not None:
            broken += 1
    return [epochs[epoch] for epoch in sorted(epochs)], broken


# --- the page ---


def _page(run: _Run) -> str:
    sections = [_ladder_section(run), _training_section(run), _recipe_section(run), _facts_section(run)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(run.name)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(run.name)}</h1>
<p class="summary">{_summary(run)}</p>
{"".join(sections)}</body>
</html>
"""


def _summary(run: _Run) -> str:
    """One sentence: the best point, the cheapest point that comes close, and the cheapest point of all."""
    rows = [row for row in run.ladder or () if _known(row.score) and _known(row.macs)]
    rows = [row for row in rows if _series(row) == _series(rows[0])]
    if not rows:
        points = len((run.manifest or {}).get("points") or ())
        return f"One checkpoint with {points} points, not scored yet." if points else "A run that is not scored yet."
    sign = 1 if rows[0].higher_is_better else -1
    best = max(rows, key=lambda row: (sign * _value(row), -_cost(row)))
    share = best.metric == "accuracy"
    slack = 0.01 if share else 0.01 * abs(_value(best))
    # A hair of tolerance: 0.75 - 0.74 is more than 0.01 to a computer.
    near = min((row for row in rows if sign * (_value(best) - _value(row)) <= slack + 1e-9), key=_cost)
    cheapest = min(rows, key=lambda row: (_cost(row), -sign * _value(row)))
    text = f"The best point, {_name(best)}, reaches {_score(best)} at {millions(best.macs)} M MACs"
    if _known(best.p50_ms) and len({row.point for row in rows}) == len(rows):  # timed in one configuration only
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


def _ladder_section(run: _Run) -> str:
    from supple.report.plots import inline_svg, ladder_panels

    parts = []
    if run.ladder is None or not len(run.ladder):
        parts.append(_missing("There is no ladder yet: no point has a cost or a score.", "supple evaluate RUN"))
    elif not run.scored:
        parts.append(_missing("The points have no scores yet, so there is no curve.", "supple evaluate RUN"))
    if not run.timed:
        parts.append(_missing("No point has been timed yet.", "supple bench RUN"))
    if run.ladder is not None and len(run.ladder):
        captions = {"macs": "Score against counted cost", "p50_ms": "Score against measured time"}
        charts = {captions[cost]: inline_svg(panel, cost) for cost, panel in ladder_panels(run.ladder).items()}
        parts += [_charts(charts), _table(run.ladder)]
    return _section("Ladder", parts)


def _table(ladder: Ladder) -> str:
    """One line per row of the ladder, cheapest first; what is the same for all rows is said once, below."""
    rows = ladder.rows
    varying = [name for name in ("engine", "precision", "batch", "threads", "machine") if len(_values(rows, name)) > 1]
    same = {name: _values(rows, name)[0] for name in ("engine", "precision", "batch", "threads", "machine", "n")
            if len(_values(rows, name)) == 1}  # fmt: skip
    metrics = _values(rows, "metric")
    label = "accuracy <small>%</small>" if metrics == ["accuracy"] else escape(", ".join(map(str, metrics)) or "score")
    if any(not row.higher_is_better for row in rows):
        label += " <small>lower is better</small>"
    columns = {"MACs <small>M</small>": [millions(row.macs) for row in rows]}
    if any(row.macs_worst is not None for row in rows):
        columns["worst case <small>M</small>"] = [millions(row.macs_worst) for row in rows]
    columns["parameters"] = [quantity(row.params) for row in rows]
    columns |= {name: [_text(getattr(row, name)) for row in rows] for name in varying}
    if any(_known(row.p50_ms) for row in rows):
        columns["p50 <small>ms</small>"] = [_digits(row.p50_ms) for row in rows]
        columns["p95 <small>ms</small>"] = [_digits(row.p95_ms) for row in rows]
    columns[label] = [_figure(row) for row in rows]

    head = "".join(f'<th scope="col" class="number">{name}</th>' for name in columns)
    body = []
    for i, row in enumerate(rows):
        remark = _remark(row, rows)
        told = i > 0 and rows[i - 1].point == row.point and _remark(rows[i - 1], rows) == remark
        small = f"<small>{escape(remark)}</small>" if remark and not told else ""
        cells = "".join(f'<td class="number">{escape(column[i])}</td>' for column in columns.values())
        inner = i + 1 < len(rows) and rows[i + 1].point == row.point  # no rule between the lines of one point
        kind = " ".join(name for name, holds in (("dominated", remark), ("inner", inner)) if holds)
        body.append(f'<tr class="{kind}"><td>{escape(row.point)}{small}</td>{cells}</tr>\n')
    words = {"batch": "batch {}", "threads": "{} threads", "machine": "on {}", "n": "scored on {:,} samples"}
    below = ", ".join(escape(words.get(name, "{}").format(value)) for name, value in same.items())
    return (
        f'<div class="wide"><table class="ladder"><thead><tr><th scope="col">point</th>{head}</tr></thead>\n'
        f'<tbody>\n{"".join(body)}</tbody></table></div>\n<p class="note">{below}</p>'
    )


def _remark(row: Row, rows: tuple[Row, ...]) -> str:
    """Why a row is dominated within its own configuration, or nothing. Measured time decides where there is one."""
    cost = "p50_ms" if _known(row.p50_ms) else "macs"
    rivals = [other for other in rows if other.key[1:] == row.key[1:] and other.metric == row.metric]
    winners = [other for other in rivals if other.beats(row, cost)]
    if not winners:
        return ""
    sign = 1 if row.higher_is_better else -1
    winner = max(winners, key=lambda other: (sign * _value(other), -getattr(other, cost)))
    if getattr(winner, cost) == getattr(row, cost):
        return f"worse than {winner.point} at the same cost"
    verb = "no better" if winner.score == row.score else "worse"
    return f"{verb} than {winner.point}, which {'is faster' if cost == 'p50_ms' else 'costs less'}"


def _training_section(run: _Run) -> str:
    from supple.report.plots import inline_svg, training_panels

    parts = []
    if run.metrics:
        captions = {"score": "Validation score of every point", "loss": "Training loss of every point"}
        charts = {captions[name]: inline_svg(panel, name) for name, panel in training_panels(run.metrics).items()}
        parts.append(_charts(charts))
    else:
        parts.append(
            _missing("There are no training curves: metrics.jsonl is missing or empty.", "supple train RECIPE")
        )
    if run.broken:
        lines = "1 line" if run.broken == 1 else f"{run.broken} lines"
        parts.append(f'<p class="note">Left out: {lines} of metrics.jsonl that could not be read.</p>')
    return _section("Training", parts)


def _recipe_section(run: _Run) -> str:
    recipe = (run.manifest or {}).get("recipe")
    if not recipe:
        why = "manifest.json is missing" if run.manifest is None else "manifest.json holds none"
        return _section("Recipe", [_missing(f"The resolved recipe is not known: {why}.", "supple train RECIPE")])
    text = yaml.safe_dump(recipe, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
    return _section("Recipe", [f"<pre>{escape(text)}</pre>"])


def _facts_section(run: _Run) -> str:
    manifest = run.manifest or {}
    facts: dict[str, str] = {}  # values are HTML
    classes = manifest.get("classes")
    if isinstance(classes, list) and classes:
        more = f" and {len(classes) - _NAMES:,} more" if len(classes) > _NAMES else ""
        names = escape(", ".join(map(str, classes[:_NAMES]))) + more
        facts["classes"] = f"<details><summary>{len(classes):,}</summary>{names}</details>"
    shape = manifest.get("input_shape")
    if isinstance(shape, list) and shape:
        facts["input"] = escape(" × ".join(map(str, shape)))
    machines = sorted({str(row.machine) for row in run.ladder or () if row.machine})
    if machines:
        facts["machine"] = escape(", ".join(machines))
    if run.metrics:
        facts |= _training_facts(run.metrics)
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
        parts.append(_missing(text, "supple train RECIPE"))
    return _section("Facts", parts)


def _training_facts(metrics: list[dict[str, Any]]) -> dict[str, str]:
    seconds = [line["seconds"] for line in metrics if _known(line.get("seconds"))]
    facts = {"epochs": f"{metrics[-1]['epoch']:,}"}
    kept = [line["epoch"] for line in metrics if line.get("selected") is True]
    if kept:
        facts["kept epoch"] = f"{kept[-1]:,}"
    if seconds:
        facts["training time"] = f"{duration(seconds[-1])} ({seconds[-1]:,.0f} s)"
    return facts


# --- pieces of HTML and text ---


def _section(title: str, parts: list[str]) -> str:
    return f"<section>\n<h2>{title}</h2>\n" + "\n".join(part for part in parts if part) + "\n</section>\n"


def _missing(what: str, command: str) -> str:
    return f'<p class="missing">{escape(what)} This adds it: <code>{escape(command)}</code></p>'


def _charts(charts: dict[str, str]) -> str:
    figures = []
    for caption, svg in charts.items():
        named = svg.replace("<svg", f'<svg role="img" aria-label="{caption}"', 1)
        figures.append(f"<figure><figcaption>{caption}</figcaption>\n{named}\n</figure>")
    return '<div class="charts">\n' + "\n".join(figures) + "\n</div>" if figures else ""


def _known(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _value(row: Row) -> float:
    return math.nan if row.score is None else row.score


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
    accuracy = row.metric == "accuracy"
    figures = [value for value in (row.score, row.deviation) if value is not None]
    return " ± ".join(f"{100 * value:.1f}" if accuracy else _digits(value) for value in figures)


def _score(row: Row) -> str:
    return f"{_figure(row)} %" if row.metric == "accuracy" else escape(f"{row.metric or 'score'} {_figure(row)}")
