"""Curves of a run: score against cost, and training per point. Drawn on figures of their own, without pyplot."""

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from supple.errors import CheckpointError, SaveError
from supple.files import write
from supple.ladder import Ladder, Row, verdict
from supple.machine import short_names
from supple.reporting.labels import FONT, LABELS, MUTED, Spot, name_ends, name_spots
from supple.reporting.reading import known
from supple.tasks import get_metric
from supple.text import cut, some

INK, GRID, PAPER = "#22272e", "#e3e6ea", "#ffffff"
_SERIES = (("#2f6fb5", "o"), ("#d97a2b", "s"), ("#2e9475", "^"), ("#8a5fb8", "D"), ("#c2506b", "v"), ("#8a7a2e", "P"))
_POINTS = LinearSegmentedColormap.from_list("cheap to full", ["#4fae93", "#3d8fbf", "#666bcf"])
_PANEL = (5.0, 3.7)  # inches

# Draws on its axes; what it gives back, if anything, places the names, and is called when the layout is settled.
Panel = Callable[[Axes], Callable[[], None] | None]


def draw_ladder(ladder: Ladder, path: Path, title: str = "") -> Path:
    """Draws score against MACs and, where there are times, against milliseconds. The suffix says png or svg."""
    panels = list(ladder_panels(ladder).values())
    if not panels:
        raise CheckpointError("this ladder has no scores: there is nothing to draw.", "Measure: supple evaluate RUN.")
    suffix = path.suffix.lower()
    if suffix not in (".png", ".svg"):
        raise SaveError(f'{path}: pictures are written as png or svg, not as "{path.suffix}".', "Name it curve.png.")
    return write(path, render(panels, suffix[1:], title))


def inline_svg(panel: Panel, prefix: str) -> str:
    """One panel as an <svg> element for a web page: ids start with `prefix`, colours are the page's variables.

    The page defines --ink, --muted, --grid and --paper; it also sets the font, as text stays text.
    """
    text = render([panel], "svg", paper="none").decode()
    text = text[text.index("<svg") :]
    # A style element inside an inlined picture would apply to the whole page.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'^(<svg[^>]*?) width="[^"]*"', r"\1", text)
    text = re.sub(r'^(<svg[^>]*?) height="[^"]*"', r"\1", text)
    text = re.sub(r'(?<= )(id="|xlink:href="#)', rf"\g<1>{prefix}-", text)
    text = text.replace("url(#", f"url(#{prefix}-")
    for name, colour in {"ink": INK, "muted": MUTED, "grid": GRID, "paper": PAPER}.items():
        text = re.sub(rf"(fill|stroke): {colour}", rf"\1: var(--{name})", text)
    return text.strip()


def point_colours(count: int) -> list[str]:
    """One colour per point, from cheap to full."""
    return [to_hex(_POINTS(i / max(1, count - 1))) for i in range(count)]


def ladder_panels(ladder: Ladder) -> dict[str, Panel]:
    """The panels a ladder has data for, by their cost: "macs" and "p50_ms"."""
    metric = next((row.metric for row in ladder if row.score is not None), None)
    rows = [row for row in ladder if known(row.score) and row.metric == metric]
    panels: dict[str, Panel] = {}
    for cost, series in (("macs", _counted(rows)), ("p50_ms", _timed(rows))):
        if series:
            panels[cost] = lambda axes, cost=cost, series=series: _draw_cost(axes, cost, series)  # type: ignore[misc]
    return panels


def training_panels(metrics: Sequence[dict[str, Any]]) -> dict[str, Panel]:
    """The panels these metrics have data for: "score" (validation) and "loss" (training)."""
    score, loss = _per_point(metrics, "val", "score"), _per_point(metrics, "train", "loss")
    if not loss:
        loss = {"": [(line["epoch"], line["loss"]) for line in metrics if known(line.get("loss"))]}
    last = metrics[-1] if metrics else {}
    metric, higher = str(last.get("metric") or "score"), bool(last.get("higher_is_better", True))
    kept = next((line["epoch"] for line in reversed(metrics) if line.get("selected") is True), None)
    scale = get_metric(metric).scale
    score = {name: [(epoch, scale * value) for epoch, value in curve] for name, curve in score.items()}
    panels: dict[str, Panel] = {}
    if any(score.values()):
        panels["score"] = lambda axes: _draw_epochs(axes, score, f"validation {_score_label(metric, higher)}", kept)
    if any(loss.values()):
        panels["loss"] = lambda axes: _draw_epochs(axes, loss, "training loss", None)
    return panels


# --- score against cost ---


def _counted(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """One series per engine and precision; timed copies of a point count once, and equal series are one."""
    series: dict[str, dict[tuple[object, ...], Row]] = {}
    for row in rows:
        if known(row.macs):
            members = series.setdefault(f"{row.engine}, {row.precision}", {})
            members.setdefault((row.point, row.macs, row.score), row)
    distinct: dict[frozenset[tuple[object, ...]], str] = {}
    for name, members in series.items():
        distinct.setdefault(frozenset(members), name)
    return {name: list(series[name].values()) for name in distinct.values()}


def _timed(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """One series per configuration that was timed."""
    rows = [row for row in rows if known(row.p50_ms)]
    machines = short_names({row.machine for row in rows if row.machine})
    several = len({row.precision for row in rows}) > 1
    series: dict[str, list[Row]] = {}
    for row in rows:
        parts = [row.engine, row.precision if several else ""]
        parts += [cut(machines.get(row.machine or "", ""), 32) if len(machines) > 1 else ""]
        parts += ["" if row.batch is None else f"batch {row.batch}"]
        parts += ["" if row.threads is None else some(row.threads, "thread")]
        series.setdefault(", ".join(filter(None, parts)), []).append(row)
    return series


def _draw_cost(axes: Axes, cost: str, series: dict[str, list[Row]]) -> Callable[[], None]:
    unit = 1e-6 if cost == "macs" else 1.0
    first = next(iter(series.values()))[0]
    scale = get_metric(first.metric).scale
    dress(axes, "MACs (M)" if cost == "macs" else "time per call (ms): median, whisker to p95")
    axes.set_ylabel(_score_label(first.metric or "score", first.higher_is_better))
    every = [row for rows in series.values() for row in rows]
    tails = [row.p95_ms for row in every] if cost == "p50_ms" else []
    _cost_axis(axes, [*(unit * getattr(row, cost) for row in every), *filter(known, tails)])

    spots: list[Spot] = []
    paths: list[list[tuple[float, float]]] = []
    hollow = False
    for rows, (colour, marker) in zip(series.values(), itertools.cycle(_SERIES)):
        place = {row.key: (unit * getattr(row, cost), scale * (row.score or 0.0)) for row in rows}
        front = sorted(place[row.key] for row in Ladder(rows).pareto(cost))
        axes.plot(*zip(*front), color=colour, linewidth=1.6, zorder=2)
        paths.append(front)
        for row in rows:
            x, y = place[row.key]
            dominated = bool(verdict(row, rows, cost))
            hollow = hollow or dominated
            style: dict[str, Any] = {"markerfacecolor": PAPER if dominated else colour, "markeredgecolor": colour}
            axes.plot([x], [y], marker=marker, markersize=5.5, markeredgewidth=1.3, linestyle="", zorder=3, **style)
            for end in _whiskers(row, cost, x, y, scale):
                axes.plot(*zip((x, y), end), color=colour, linewidth=0.9, alpha=0.65, zorder=1.5, solid_capstyle="butt")
                paths.append([(x, y), end])
            paths.append([(x, y)])
            # The same points recur at the same heights in every series: naming one series is enough.
            if len(every) <= LABELS or rows is next(iter(series.values())):
                spots.append((x, y, plain(row.point), MUTED if dominated else INK))
    axes.margins(y=0.14)
    # A single counted series needs no name; a single timed one does, because times belong to a configuration.
    _legend(axes, list(series) if len(series) > 1 or cost == "p50_ms" else [], hollow)
    if len(spots) > LABELS:
        spots = [spots[i] for i in sorted({round(i * (len(spots) - 1) / (LABELS - 1)) for i in range(LABELS)})]
    return lambda: name_spots(axes, spots, paths, falling=not first.higher_is_better)


def _whiskers(row: Row, cost: str, x: float, y: float, scale: float) -> list[tuple[float, float]]:
    """Where the thin lines of a point end: its p95, and the score's deviation over the draws of a group."""
    ends = [(row.p95_ms, y)] if cost == "p50_ms" and known(row.p95_ms) else []
    if known(row.deviation):
        ends += [(x, y - scale * row.deviation), (x, y + scale * row.deviation)]
    return ends


def _cost_axis(axes: Axes, costs: Sequence[float]) -> None:
    low, high = min(costs), max(costs)
    if low > 0 and high / low > 40:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(LogLocator(subs=()))
        axes.set_xlim(low / 1.6, high * 1.6)
    else:
        axes.set_xlim(0, high * 1.06 or 1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _legend(axes: Axes, names: Sequence[str], hollow: bool) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=5, linewidth=1.6, label=plain(name))
        for name, (colour, marker) in zip(names, itertools.cycle(_SERIES))
    ]
    if hollow:
        style: dict[str, Any] = {"markerfacecolor": PAPER, "markeredgecolor": MUTED, "linestyle": ""}
        handles.append(Line2D([], [], marker="o", markersize=5, label="hollow: a cheaper point is as good", **style))
    if not handles:
        return
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, frameon=False, fontsize=FONT - 1,
        labelcolor=INK, handlelength=1.6, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip


# --- training ---


def _per_point(metrics: Sequence[dict[str, Any]], part: str, value: str) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for line in metrics:
        entries = line.get(part)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if isinstance(entry, dict) and known(entry.get(value)):
                curves.setdefault(str(name), []).append((line["epoch"], entry[value]))
    return curves


def _draw_epochs(
    axes: Axes, curves: dict[str, list[tuple[float, float]]], label: str, kept: float | None
) -> Callable[[], None]:
    dress(axes, "epoch")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
    axes.margins(x=0.02)
    epochs = {epoch for curve in curves.values() for epoch, _ in curve}
    if len(epochs) == 1:
        axes.set_xlim(min(epochs) - 0.5, min(epochs) + 0.5)
    colours = point_colours(len(curves))
    ends: list[Spot] = []
    for (name, curve), colour in zip(curves.items(), colours):
        thin = curve[:: max(1, len(curve) // 300)]
        thin += [curve[-1]] if thin[-1] != curve[-1] else []
        dots = "o" if len(thin) <= 12 else ""
        axes.plot(*zip(*thin), color=colour, linewidth=1.5, marker=dots, markersize=3)
        ends.append((*curve[-1], plain(name), colour))
    if kept is not None:
        axes.axvline(kept, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)), zorder=1)
        low, high = axes.get_xlim()
        left = kept > (low + high) / 2
        axes.annotate(
            f"best epoch: {kept}", (kept, 0), (-4 if left else 4, 5), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="right" if left else "left", fontsize=FONT - 1.5, color=MUTED,
        )  # fmt: skip
    return name_ends(axes, ends)


# --- shared ---


def render(
    panels: Sequence[Panel],
    format: str,
    title: str = "",
    paper: str = PAPER,
    size: tuple[float, float] = _PANEL,  # of a panel, in inches
    across: int | None = None,  # panels side by side; None: all
) -> bytes:
    columns = min(across or len(panels), len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + (0.3 if title else 0)), dpi=160)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1, wspace=0.03)
    FigureCanvasAgg(figure)
    # Text stays text, and ids do not change from one drawing to the next. rc_context restores the settings.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "supple"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in another script must not stop a drawing
        if title:
            figure.suptitle(plain(title), x=0.012, ha="left", fontsize=FONT + 2.5, fontweight="bold", color=INK)
        every = [*np.atleast_1d(figure.subplots(rows, columns)).ravel()]
        for spare in every[len(panels) :]:
            spare.remove()
        finish = [panel(axes) for axes, panel in zip(every, panels)]
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # from here on a pixel stays where it is
        for place_names in filter(None, finish):
            place_names()
        buffer = io.BytesIO()
        nothing = {"svg": ("Creator", "Date", "Format", "Type"), "png": ("Software",)}[format]
        figure.savefig(buffer, format=format, metadata=dict.fromkeys(nothing), facecolor=paper)
    return buffer.getvalue()


def dress(axes: Axes, xlabel: str) -> None:
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.spines[["left", "bottom"]].set_linewidth(0.8)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=FONT - 0.5, width=0.8, length=3)
    axes.set_xlabel(xlabel, fontsize=FONT, color=INK)
    axes.yaxis.label.set(fontsize=FONT, color=INK)


def _score_label(metric: str, higher: bool) -> str:
    declared = get_metric(metric)
    name = f"{declared.called} ({declared.unit})" if declared.unit else declared.called
    return plain(name if higher else f"{name} (lower is better)")


def plain(text: str) -> str:
    """Text that is drawn as it stands: no formula between dollar signs, nothing that cannot be encoded."""
    return text.encode("utf-8", "replace").decode().replace("$", r"\$").replace("\n", " ")
