"""What the results say: a row for each claim, for the terminal, for docs/claims.md and as a picture."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supple.errors import RecipeError
from supple.experiments.declared import Claim, Condition, Difference, Experiment, number
from supple.experiments.results import (
    Results,
    decide,
    declared_seeds,
    effect_of,
    figure,
    read_results,
    usable_seeds,
)
from supple.experiments.verdict import SEEDS, Effect
from supple.text import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEGIN, END = "<!-- reproduce: begin -->", "<!-- reproduce: end -->"
PICTURE = "img/claims.png"  # beside the page
OPEN = {  # claims that no experiment decides, and why
    "C27": (
        "SiDT: 20 % of a detector's backbone can go at no loss, 40 % for under 1.5 mAP (50.4, 49.2 against 50.5)",
        "out of budget: a detector learns too little from few pictures; COCO takes weeks of this processor",
    ),
}
COLOURS = {"holds": "#2e9475", "fails": "#c2506b", "undecided": "#8a9099"}


@dataclass(frozen=True)
class Row:
    """A claim, and what the results say of it."""

    claim: str  # its number
    experiment: str
    declared: Claim
    verdict: str
    effect: Effect | None  # None: nothing was run
    figures: tuple[tuple[str, float], ...]  # what the arms score, means over seeds
    requires: tuple[tuple[str, Effect | None], ...]
    also: tuple[tuple[str, Effect | None], ...]
    minutes: float  # of a core, of all runs that it compares, or that these start from
    hours: float  # of a core, that the whole experiment takes
    order: int  # of the experiment among all
    problems: tuple[str, ...]  # stale results, seeds that cannot be compared
    seeds: int  # that are declared

    @property
    def command(self) -> str:
        return f"supple reproduce {self.experiment} --claims {self.claim}"

    def to_json(self) -> dict[str, Any]:
        def told(effects: Iterable[tuple[str, Effect | None]]) -> dict[str, Any]:
            return {name: None if one is None else vars(one) for name, one in effects}

        return {
            "claim": self.claim,
            "experiment": self.experiment,
            "text": self.declared.text,
            "verdict": self.verdict,
            "expect": self.declared.expect,
            "margin": self.declared.margin,
            "published": self.declared.published,
            "difference": None if self.effect is None else vars(self.effect),
            "seeds": self.seeds,
            "requires": told(self.requires),
            "also": told(self.also),
            "figures": dict(self.figures),
            "minutes": self.minutes,
            "hours": self.hours,
            "problems": list(self.problems),
            "command": self.command,
        }


def rows_of(name: str, experiment: Experiment, folder: Path, claims: Iterable[str] | None = None) -> list[Row]:
    """The rows of an experiment, from its results alone."""
    results, stale = read_results(folder, name, experiment)
    return [_row(name, experiment, results, stale, claim) for claim in claims or experiment.claims]


def _row(name: str, experiment: Experiment, results: Results, stale: Sequence[str], claim: str) -> Row:
    declared, arms = experiment.claims[claim], experiment.arms_of([claim])
    found, problems = effect_of(experiment, results, declared)
    old = [run for run in stale if run.rpartition("-")[0] in arms]
    if old:
        problems = [f"stale, made or evaluated in another way: {', '.join(old)}", *problems]

    def effects(differences: Mapping[str, Difference]) -> tuple[tuple[str, Effect | None], ...]:
        return tuple((text, effect_of(experiment, results, one)[0]) for text, one in differences.items())

    return Row(
        claim,
        name,
        declared,
        decide(experiment, results, declared),
        found,
        tuple(_figures(experiment, results, declared)),
        effects(declared.requires),
        effects(declared.also),
        round(sum(result["minutes"] for (arm, _), result in results.items() if arm in arms), 1),
        experiment.core_hours,
        experiment.order,
        tuple(problems),
        len(declared_seeds(experiment, declared)),
    )


def _figures(experiment: Experiment, results: Results, difference: Difference) -> Iterable[tuple[str, float]]:
    seeds, _ = usable_seeds(experiment, results, difference)
    for _, term in difference.terms() if seeds else ():
        scores = [figure(experiment, results, term, seed).mean for seed in seeds]
        at = term.at[0] if len(term.at) == 1 else f"{term.at[0]} ... {term.at[-1]}"
        who = f"sources of {term.arm}" if term.sources else term.arm
        yield f"{who} at {at}", statistics.fmean(scores)


# --- for people -------------------------------------------------------------------------------------------------------


def terminal(rows: Sequence[Row]) -> str:
    header = ("claim", "verdict", "difference", "published", "seeds", "minutes", "what")
    lines = [
        (
            row.claim,
            row.verdict,
            "not run" if row.effect is None else str(row.effect),
            "-" if row.declared.published is None else f"{row.declared.published:+.2f}",
            f"{0 if row.effect is None else row.effect.seeds}/{row.seeds}",
            f"{row.minutes:.0f}",
            row.declared.text,
        )
        for row in rows
    ]
    problems = [f"{row.claim}: {problem}" for row in rows for problem in row.problems]
    return "\n".join([table(header, lines, left=(0, 1, 6)), *problems])


def block(rows: Sequence[Row]) -> str:
    """The part of docs/claims.md between the markers: what is decided, the picture, and a row for each claim."""
    lines = [BEGIN, "", summary(rows), ""]
    if any(row.effect is not None for row in rows):
        lines += [f"![effect and interval of every claim, and the published value]({PICTURE})", ""]
    lines += ["| # | claim | verdict | difference in points, published | our figures | seeds, minutes, command |"]
    lines += ["|---|---|---|---|---|---|"]
    cells = {row.claim: _cells(row) for row in rows}
    cells |= {claim: [claim, text, "undecided", "not run", why, "-"] for claim, (text, why) in OPEN.items()}
    lines += [f"| {' | '.join(cells[claim])} |" for claim in sorted(cells, key=number)]
    hours = sorted({(row.order, row.experiment, row.hours) for row in rows})
    told = ", ".join(f"{name} {count:g}" for _, name, count in hours)
    lines += [
        "",
        f"Core-hours of the experiments, about, in the order of `--all`: {told}; in all {sum(h for *_, h in hours):g}.",
    ]
    return "\n".join([*lines, "", END])


def summary(rows: Sequence[Row]) -> str:
    """What is decided and what is not, as a paragraph."""
    verdicts = {row.claim: row.verdict for row in rows} | dict.fromkeys(OPEN, "undecided")
    effects = {row.claim: f" ({row.effect})" for row in rows if row.effect is not None}

    def named(verdict: str) -> str:
        claims = sorted((claim for claim, one in verdicts.items() if one == verdict), key=number)
        return ", ".join(claim + effects.get(claim, "") for claim in claims)

    decided = [
        f"{word}: {named(verdict)}." for verdict, word in (("holds", "Hold"), ("fails", "Fail")) if named(verdict)
    ]
    count = sum(verdict != "undecided" for verdict in verdicts.values())
    told = f"**{count} of {len(verdicts)} claims are decided.**" if count else "**No claim is decided yet.**"
    unrun = [row.claim for row in rows if row.effect is None]
    begun = [row.claim for row in rows if row.verdict == "undecided" and row.effect is not None]
    parts = [told, *decided]
    if begun:
        parts.append(f"Undecided, though runs are there: {ranges(begun)}.")
    if unrun:
        parts.append(f"Not run yet: {ranges(unrun)}.")
    if OPEN:
        parts.append(f"Out of reach here: {ranges(OPEN)}.")
    return " ".join(parts)


def ranges(claims: Iterable[str]) -> str:
    """`C1 to C4, C6, C7`."""
    found: list[list[int]] = []
    for one in sorted(map(number, claims)):
        if found and one == found[-1][1] + 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return ", ".join(
        f"C{low} to C{high}" if high > low + 1 else ", ".join(f"C{one}" for one in range(low, high + 1))
        for low, high in found
    )


def _cells(row: Row) -> list[str]:
    claim, found = row.declared, row.effect
    text = claim.text + (f" ({claim.figures})" if claim.figures else "")
    published = "" if claim.published is None else f"; published {claim.published:+.2f}"
    if found is None:
        ours, cost = "not run", f"`{row.command}`, about {row.hours:g} core-hours for all of {row.experiment}"
    else:
        ours = f"{found}" + ("" if claim.unit == "points" else f" {claim.unit}")
        cost = f"{found.seeds} of {row.seeds} seeds, {row.minutes:.0f} minutes, `{row.command}`"
    conditions = [f"{name} {_wanted(one)}" for name, one in claim.requires.items()]
    wanted = ", and ".join([_wanted(claim), *conditions])
    figures = [f"{name} {value:.2f}" for name, value in row.figures]
    figures += [f"{name} {one}" for name, one in (*row.requires, *row.also) if one is not None]
    remarks = [*row.problems, *([claim.note] if claim.note else [])]
    if found is not None and found.seeds < row.seeds:
        remarks.insert(0, f"{row.seeds - found.seeds} of {row.seeds} seeds are missing: nothing is decided before")
    elif found is not None and found.half is None:
        remarks.insert(0, f"{SEEDS} seeds are needed")
    said = "; ".join([", ".join(figures), *remarks] if figures else remarks)
    return [row.claim, text, row.verdict, f"{ours} (to hold: {wanted}{published})", said or "-", cost]


def _wanted(condition: Condition) -> str:
    margin = f"{condition.margin:g}"
    words = {"above": "above 0", "below": "below 0", "within": f"within ± {margin}", "at_least": f"at least -{margin}"}
    return words[condition.expect]


def updated(page: str, rows: Sequence[Row], where: str = "the page") -> str:
    """A page with the rows between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise RecipeError(f"{where} has no place for the rows.", f"Add two lines: {BEGIN} and {END}.")
    return before + block(rows) + after


# --- picture ----------------------------------------------------------------------------------------------------------


def picture(rows: Sequence[Row]) -> bytes | None:
    """Effect and interval of every claim that was run, the published value beside it; None: none was."""
    from supple.reporting.plots import render

    shown = sorted((row for row in rows if row.effect is not None), key=lambda row: number(row.claim))
    if not shown:
        return None
    title = "The papers' claims: difference (dot), 95 % interval, published value (diamond)"
    return render([partial(_draw, shown)], "png", title, size=(7.2, 1.2 + 0.3 * len(shown)))


def _draw(rows: Sequence[Row], axes: "Axes") -> None:
    from supple.reporting.labels import FONT
    from supple.reporting.plots import INK, dress, plain

    dress(axes, "difference (percentage points)")
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.6)
    axes.axvline(0, color=INK, linewidth=0.8)
    for place, row in enumerate(rows):
        assert row.effect is not None
        colour = COLOURS[row.verdict]
        if row.declared.expect in ("within", "at_least"):
            ends = (-row.declared.margin, row.declared.margin)
            axes.plot(ends, (place, place), color=colour, linewidth=7, alpha=0.18, solid_capstyle="butt")
        axes.errorbar(row.effect.points, place, xerr=row.effect.half, fmt="o", color=colour, markersize=5, capsize=3)
        if row.declared.published is not None:
            style: Mapping[str, Any] = {"marker": "D", "s": 26, "facecolors": "none", "edgecolors": INK}
            axes.scatter([row.declared.published], [place], zorder=3, linewidths=0.9, **style)
    names = [plain(f"{row.claim} {row.verdict}") for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=FONT - 0.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
