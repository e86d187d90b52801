"""What the results say: a row for each claim, for the terminal, for docs/claims.md and as a picture."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supple.errors import RecipeError
from supple.experiments.declared import Claim, Difference, Experiment, number
from supple.experiments.results import Results, effect_of, read_results, sample, usable_seeds
from supple.experiments.verdict import SEEDS, Effect, judge
from supple.text import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEGIN, END = "<!-- reproduce: begin -->", "<!-- reproduce: end -->"
PICTURE = "img/claims.png"  # beside the page
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
    also: tuple[tuple[str, Effect | None], ...]
    minutes: float  # of all trainings that it compares, or that these start from
    hours: float  # that the whole experiment takes, on one core
    problems: tuple[str, ...]  # stale results, seeds that cannot be compared
    seeds: int  # that are to be run

    @property
    def command(self) -> str:
        return f"supple reproduce {self.experiment} --claims {self.claim}"

    def to_json(self) -> dict[str, Any]:
        effects = {"difference": self.effect, **dict(self.also)}
        told = {name: None if one is None else vars(one) for name, one in effects.items()}
        return {
            "claim": self.claim,
            "experiment": self.experiment,
            "text": self.declared.text,
            "verdict": self.verdict,
            "expect": self.declared.expect,
            "margin": self.declared.margin,
            "published": self.declared.published,
            "difference": told.pop("difference"),
            "also": told,
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
        problems = [f"stale, made by another recipe: {', '.join(old)}", *problems]
    also = tuple((text, effect_of(experiment, results, one)[0]) for text, one in declared.also.items())
    return Row(
        claim,
        name,
        declared,
        judge(found, declared.expect, declared.margin),
        found,
        tuple(_figures(experiment, results, declared)),
        also,
        round(sum(result["minutes"] for (arm, _), result in results.items() if arm in arms), 1),
        experiment.core_hours,
        tuple(problems),
        len(_declared_seeds(experiment, declared)),
    )


def _declared_seeds(experiment: Experiment, difference: Difference) -> set[int]:
    return set.intersection(*(set(experiment.seeds_of(term.arm)) for _, term in difference.terms()))


def _figures(experiment: Experiment, results: Results, difference: Difference) -> Iterable[tuple[str, float]]:
    seeds, _ = usable_seeds(experiment, results, difference)
    for _, term in difference.terms() if seeds else ():
        scores = [sample(results[term.arm, seed], term.at).mean for seed in seeds]
        at = term.at[0] if len(term.at) == 1 else f"{term.at[0]} ... {term.at[-1]}"
        yield f"{term.arm} at {at}", statistics.fmean(scores)


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
    """The part of docs/claims.md between the markers."""
    lines = [BEGIN, ""]
    if any(row.effect is not None for row in rows):
        lines += [f"![effect and interval of every claim]({PICTURE})", ""]
    lines += ["| # | claim | verdict | difference in points, published | our figures | seeds, minutes, command |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in sorted(rows, key=lambda row: number(row.claim))]
    return "\n".join([*lines, "", END])


def _cells(row: Row) -> list[str]:
    claim, found = row.declared, row.effect
    wanted = {"above": "above 0", "below": "below 0", "within": f"within ± {claim.margin:g}"}
    wanted["at_least"] = f"at least -{claim.margin:g}"
    text = claim.text + (f" ({claim.figures})" if claim.figures else "")
    published = "" if claim.published is None else f"; published {claim.published:+.2f}"
    if found is None:
        ours, cost = "not run", f"`{row.command}`, about {row.hours:g} core-hours for all of {row.experiment}"
    else:
        ours = f"{found}"
        cost = f"{found.seeds} of {row.seeds} seeds, {row.minutes:.0f} minutes, `{row.command}`"
    figures = [f"{name} {value:.2f}" for name, value in row.figures]
    figures += [f"{name} {one}" for name, one in row.also if one is not None]
    remarks = [*row.problems, *([claim.note] if claim.note else [])]
    if found is not None and found.half is None:
        remarks.insert(0, f"{SEEDS} seeds are needed")
    said = "; ".join([", ".join(figures), *remarks] if figures else remarks)
    return [row.claim, text, row.verdict, f"{ours} (to hold: {wanted[claim.expect]}{published})", said or "-", cost]


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
    title = "The papers' claims: difference, 95 % interval, published value"
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
