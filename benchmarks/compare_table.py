"""Tables and picture of the comparison (compare.py), from its results alone: pure functions of JSON files.

Runs are timed one after the other, over days, each beside the same reference network. So a time is given as its ratio
to the reference then, times the median of the reference over all runs: a machine that was slower once does not show.
"""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supple.experiments.results import unpack

ENGINES = ("torch", "onnxruntime", "openvino")
BATCHES = (1, 16)
WORSE, BYTES = 1.0, 0.5  # goals: points below static networks of the same time at most; share of the shelf's bytes
NAMES = {
    "A": "one elastic checkpoint",
    "B": "static networks, trained apart",
    "C": "the static networks, quantised",
    "D": "elastic points, quantised",
    "E": "policy on A",
    "F": "Torch-Pruning, fine-tuned",
    "G": "earlyon",
    "H": "token merging, untrained",
}
MARKS = dict(zip(NAMES, "os^vDXP*"))


@dataclass
class Line:
    """One way to answer, over the seeds that there are. Times in ms by batch: median, and 95th percentile."""

    letter: str
    name: str  # of a point, with the precision where it is not fp32
    engine: str
    accuracies: list[float] = field(default_factory=list)  # %
    p50: dict[int, list[float]] = field(default_factory=dict)
    p95: dict[int, list[float]] = field(default_factory=dict)
    minutes: list[float] = field(default_factory=list)
    checkpoint: int | None = None
    exported: int | None = None

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.accuracies)

    def ms(self, batch: int) -> float | None:
        found = self.p50.get(batch)
        return statistics.median(found) if found else None


Result = Mapping[str, Any]


def read(folder: Path) -> dict[str, list[Result]]:
    """All results by family, in the order of their names."""
    found: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(result["family"], []).append(result)
    return found


def references(results: Iterable[Result]) -> dict[tuple[str, int], float]:
    """The median ms of the reference, by engine and batch."""
    seen: dict[tuple[str, int], list[float]] = {}
    for result in results:
        for row in result["times"]:
            seen.setdefault((row["engine"], row["batch"]), []).append(row["reference_ms"])
    return {key: statistics.median(values) for key, values in seen.items()}


def letter_of(arm: str, precision: str) -> str:
    """Quantised, A is D and B is C."""
    return arm[0] if precision == "fp32" else {"A": "D", "B": "C"}.get(arm[0], arm[0])


def lines(results: Sequence[Result]) -> list[Line]:
    """All ways to answer of a family."""
    usual, found = references(results), dict[tuple[str, str, str], Line]()
    for result in results:
        arm = result["arm"]
        for row in result["times"]:
            point, engine, precision, batch = (row[key] for key in ("point", "engine", "precision", "batch"))
            answers = result["answers"].get(f"{point} fp32" if precision == "fp32" else f"{point} {precision} {engine}")
            if answers is None:
                continue
            size = arm[2:] if arm[0] in "BF" else point
            name = size if precision == "fp32" else f"{size}, {precision}"
            line = found.setdefault(
                (letter_of(arm, precision) + name, engine, arm), Line(letter_of(arm, precision), name, engine)
            )
            scale = usual[engine, batch] / row["reference_ms"]
            note(line, result, batch, row["p50_ms"] * scale, row["p95_ms"] * scale, answers)
            kind = {"torch": "", "onnxruntime": "onnx"}.get(engine, engine)
            line.exported = result["bytes"].get(f"{kind} {precision}")
        for row in result["policies"]:
            engine, batch = row["engine"], row["batch"]
            letter = "E" if arm == "A" else arm[0]
            line = found.setdefault((letter + row["policy"], engine, arm), Line(letter, row["policy"], engine))
            scale = usual.get((engine, batch), row["reference_p50_ms"]) / row["reference_p50_ms"]
            note(line, result, batch, row["mean_ms"] * scale, row["p95_ms"] * scale, row["answers"])
    return list(found.values())


def note(line: Line, result: Result, batch: int, p50: float, p95: float, answers: Mapping[str, Any]) -> None:
    line.p50.setdefault(batch, []).append(p50)
    line.p95.setdefault(batch, []).append(p95)
    if batch == BATCHES[0]:
        line.accuracies.append(float(unpack(answers).mean()))
        line.minutes.append(result["minutes"])
    line.checkpoint = result["checkpoint_bytes"]


# --- against static networks of the same time -------------------------------------------------------------------------


def static_at(ms: float, shelf: Sequence[tuple[float, float]]) -> float:
    """The accuracy of a static network that takes so long: between two of the shelf, as the logarithm of time goes;
    beyond its ends, that of the end. Of two networks the slower one counts only where it is better."""
    best: list[tuple[float, float]] = []
    for spent, accuracy in sorted(shelf):
        if not best or accuracy > best[-1][1]:
            best.append((spent, accuracy))
    if ms <= best[0][0]:
        return best[0][1]
    for (low, worse), (high, better) in itertools.pairwise(best):
        if ms <= high:
            share = math.log(ms / low) / math.log(high / low)
            return worse + share * (better - worse)
    return best[-1][1]


def against(
    found: Sequence[Line], ours: str, theirs: str, engine: str, precision: str, batch: int
) -> list[tuple[Line, float]]:
    """Points of our letter, and how much better they are than a static network of the same time."""
    marked = "" if precision == "fp32" else f", {precision}"
    mine, shelf = (
        [line for line in found if (line.letter, line.engine) == (letter, engine) and line.name.endswith(marked)]
        for letter in (ours, theirs)
    )
    known = [(ms, line.accuracy) for line in shelf if (ms := line.ms(batch)) is not None]
    timed = [(line, ms) for line in mine if (ms := line.ms(batch)) is not None]
    if not known:
        return []
    return [(line, line.accuracy - static_at(ms, known)) for line, ms in sorted(timed, key=lambda pair: pair[1])]


# --- Markdown ---------------------------------------------------------------------------------------------------------


def page(folder: Path) -> str:
    """Everything there is, as Markdown."""
    families = read(folder)
    if not families:
        return f"No results in {folder} yet."
    return "\n\n".join(part for family, results in families.items() for part in sections(family, results))


def sections(family: str, results: Sequence[Result]) -> list[str]:
    found, first = lines(results), results[0]
    machines = ", ".join(sorted({f"{result['machine']}, {result['threads']} threads" for result in results}))
    n = next((unpack(packed).size for result in results for packed in result["answers"].values()), 0)
    epochs = first["recipe"]["train"]["epochs"]
    parts = [f"### {family.capitalize()} family\n\n{machines}; {n:,} test pictures; {epochs} epochs."]
    for engine in ENGINES:
        own = [line for line in found if line.engine == engine]
        if own:
            parts.append(f"**{engine}**\n\n{table(own)}")
    return [*parts, totals(results), *verdicts(found)]


def table(found: Sequence[Line]) -> str:
    rows = [
        "| | point | accuracy, % | batch 1: ms p50 | p95 | batch 16: ms p50 | p95 | minutes | checkpoint | exported |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|---|---|")
    for line in sorted(found, key=lambda line: (line.letter, line.ms(1) or 0.0)):
        times = [cell for batch in BATCHES for cell in (ms(line.p50.get(batch)), ms(line.p95.get(batch)))]
        cells = [line.letter, line.name, accuracy(line.accuracies), *times, f"{statistics.fmean(line.minutes):.0f}"]
        rows.append(f"| {' | '.join([*cells, size(line.checkpoint), size(line.exported)])} |")
    used = [letter for letter in NAMES if any(line.letter == letter for line in found)]
    legend = "; ".join(f"{letter}: {NAMES[letter]}" for letter in used)
    remark = (
        "Of policies (E, G) the first time is the mean: a median would hide the slow answers. Those of about so many "
        "points lose them as the validation pictures estimate it, without a margin of error."
    )
    return "\n".join([*rows, "", f"{legend}.", *([remark] if {"E", "G"} & {*used} else [])])


def totals(results: Sequence[Result]) -> str:
    """Training minutes and bytes of A against the whole shelf."""
    ours, theirs = ([result for result in results if result["arm"][0] == letter] for letter in "AB")
    if not ours or not theirs:
        return "Minutes and bytes of A against B: not measured yet."
    shelf: dict[str, list[Result]] = {}
    for result in theirs:
        shelf.setdefault(result["arm"], []).append(result)
    minutes = statistics.fmean(result["minutes"] for result in ours)
    together = sum(statistics.fmean(result["minutes"] for result in same) for same in shelf.values())
    share = ours[0]["checkpoint_bytes"] / sum(same[0]["checkpoint_bytes"] for same in shelf.values())
    missed = ": **missed**"
    return "\n".join([
        f"| A against {len(shelf)} networks of the shelf | A | shelf | ratio | goal |",
        "|---|---|---|---|---|",
        f"| training minutes | {minutes:.0f} | {together:.0f} | {minutes / together:.2f} "
        f"| at most 1.00{'' if minutes <= together else missed} |",
        f"| bytes of the checkpoints | {size(ours[0]['checkpoint_bytes'])} "
        f"| {size(sum(same[0]['checkpoint_bytes'] for same in shelf.values()))} | {share:.2f} "
        f"| at most {BYTES:.2f}{'' if share <= BYTES else missed} |",
    ])  # fmt: skip


def verdicts(found: Sequence[Line]) -> list[str]:
    parts = []
    for ours, theirs, precision in (("A", "B", "fp32"), ("D", "C", "int8"), ("D", "C", "bf16")):
        rows = []
        for engine in ENGINES:
            for batch in BATCHES:
                for line, better in against(found, ours, theirs, engine, precision, batch):
                    missed = "" if better >= -WORSE else ": **missed**"
                    spent = ms([line.ms(batch) or 0.0])
                    rows.append(f"| {line.name} | {engine} | {batch} | {spent} | {line.accuracy:.2f} | {better:+.2f} "
                                f"| at most {WORSE:g} below{missed} |")  # fmt: skip
        if rows:
            title = f"{ours} against {theirs} ({precision}): points above a static network of the same measured time"
            head = [
                "| point | engine | batch | ms | accuracy, % | difference | goal |",
                "|---|---|---|---|---|---|---|",
            ]
            parts.append("\n".join([f"{title}\n", *head, *rows]))
    return parts


def accuracy(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def ms(values: Sequence[float] | None) -> str:
    return "-" if not values else f"{statistics.median(values):.3g}"


def size(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.2f} MB"


# --- picture ----------------------------------------------------------------------------------------------------------


def draw(folder: Path, path: Path, batch: int = 1) -> None:
    """Accuracy over time, a panel for each family and engine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    families = {family: lines(results) for family, results in read(folder).items()}
    panels = [
        (family, engine, own)
        for family, found in families.items()
        for engine in ENGINES
        if (own := [line for line in found if line.engine == engine and line.ms(batch) is not None])
    ]
    if not panels:
        return
    figure, plots = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4.5), squeeze=False)
    for plot, (family, engine, own) in zip(plots[0], panels):
        for letter in (letter for letter in NAMES if any(line.letter == letter for line in own)):
            some = sorted((line.ms(batch) or 0.0, line.accuracy) for line in own if line.letter == letter)
            style = {"linestyle": "-" if letter in "AB" else "", "marker": MARKS[letter], "markersize": 5}
            plot.plot(*zip(*some), label=f"{letter}: {NAMES[letter]}", linewidth=1, **style)
        plot.set(xscale="log", xlabel=f"ms, batch {batch}", ylabel="test accuracy, %", title=f"{family}, {engine}")
        plot.grid(alpha=0.3)
    plots[0][-1].legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
