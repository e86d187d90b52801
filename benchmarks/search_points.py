"""What `supple search` finds, held against chance; and what each axis gives alone and mixing adds.

    supple train recipes/zoo/deit_elastic.yaml --out RUN
    python benchmarks/search_points.py RUN [--engine openvino] [--budgets 0.25x,0.5x,0.75x] [--random 150] [--threads 2]
    python benchmarks/search_points.py --table

Searches the run, whose points become those that were found. Then these, random points and some of each axis alone are
scored and timed as a search does it: on 2,000 validation pictures and on the engine, each group beside the full model.
What was measured is kept in RUN.search_points.json: started again, it goes on. Writes results/search/NAME.json, prints
Markdown. A budget limits the 95th percentile of the time of one picture.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import supple
from supple import files
from supple.data.loaders import at_most
from supple.ladder import Row
from supple.machine import machine, versions
from supple.model import FlexibleModel
from supple.opening import number_of_samples, open_source
from supple.point import FULL, Point
from supple.searching.choose import best_within, limited, spread
from supple.searching.measure import Measurements, tools_of
from supple.searching.memory import Memory
from supple.searching.search import SearchResult, draw

RESULTS = Path(__file__).parent / "results" / "search"
PICTURES = 2000
ALONE = 12  # points of each axis, at most
WITHIN = 1.0  # goal: percentage points that a choice may be below the best random one
COST = "p50_ms"  # what points compete by
Document = dict[str, Any]


# --- measuring --------------------------------------------------------------------------------------------------------


def random_points(model: FlexibleModel, count: int) -> list[Point]:
    """Others than a search draws."""
    return draw(model, 20 * count, "search_points")[:count]


def alone(model: FlexibleModel, drawn: Iterable[Point], macs: Callable[[Point], int]) -> dict[str, list[Point]]:
    """Of every axis, points that differ from the full model in nothing else and spread over the costs."""
    found = {}
    for axis in model.axes:
        values = dict.fromkeys(
            value for point in (*model.points, *drawn) if (value := point.chosen().get(axis)) is not None
        )
        points = dict.fromkeys(model.check(Point(**{axis: value})) for value in values)
        rows = [Row(str(point), macs=macs(point)) for point in points if [*point.chosen()] == [axis]]
        found[axis] = [
            Point.parse(row.point) for row in spread(sorted(rows, key=lambda row: row.macs or 0), ALONE, "macs")
        ]
    return found


def measured(
    model: FlexibleModel, result: SearchResult, found: Measurements, count: int
) -> tuple[list[Row], dict[str, list[str]]]:
    """Rows with scores and times; and the names of the points that are random, and of those of each axis alone."""
    drawn = random_points(model, count)
    groups = {"random": drawn, **alone(model, drawn, found.macs)}
    points = list(dict.fromkeys((FULL, *result.points, *(point for group in groups.values() for point in group))))
    found.score(points)
    found.time(points)
    rows = [row for row in found.rows if row.p50_ms is not None]  # (what cannot be exported has no time)
    return rows, {name: [str(point) for point in group] for name, group in groups.items()}


def document_of(result: SearchResult, rows: Sequence[Row], groups: Mapping[str, Sequence[str]]) -> Document:
    """Of every budget, the choice of the search, the best random point, the best of each axis alone and of all."""
    by_name = {row.point: row for row in rows}
    shift = limited(by_name[str(FULL)], COST) / limited(
        next(row for row in result.ladder if row.point == str(FULL)), COST
    )
    budgets = []
    for one in result.best:
        limit = one.budget * shift  # as this measurement has the full model's time
        best = {
            name: best_within([by_name[p] for p in names if p in by_name], limit, COST)
            for name, names in groups.items()
        }
        entries = {"search": by_name[one.row.point], **best, "mixed": best_within(rows, limit, COST)}
        budgets.append({"given": one.given, "ms": limit, "best": {name: facts(row) for name, row in entries.items()}})
    sizes = {name: len(names) for name, names in groups.items()}
    return {"budgets": budgets, "points": sizes, "full": facts(by_name[str(FULL)])}


def facts(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else {"point": row.point, "accuracy": 100 * (row.score or 0), "p95_ms": row.p95_ms}


# --- Markdown ---------------------------------------------------------------------------------------------------------


def page(document: Document) -> str:
    where = ", ".join((document["machine"], document["engine"], f"{document['threads']} threads"))
    how = f"{document['n']:,} validation pictures; the search took {document['search_minutes']:.0f} minutes."
    head = [f"### {document['name']}", "", f"{where}; {how}", ""]
    return "\n".join([*head, *chance(document), "", *axes(document)])


def chance(document: Document) -> list[str]:
    count = document["points"]["random"]
    lines = [f"| budget | ms | search | accuracy, % | ms | best of {count} random | accuracy, % | difference | goal |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for budget in document["budgets"]:
        ours, theirs = budget["best"]["search"], budget["best"]["random"]
        cells = [
            budget["given"],
            f"{budget['ms']:.3g}",
            ours["point"],
            f"{ours['accuracy']:.2f}",
            f"{ours['p95_ms']:.3g}",
        ]
        if theirs is None:
            cells += ["none", "-", "-", ""]
        else:
            better = ours["accuracy"] - theirs["accuracy"]
            missed = "" if round(better, 2) >= -WITHIN else ": **missed**"
            cells += [
                theirs["point"],
                f"{theirs['accuracy']:.2f}",
                f"{better:+.2f}",
                f"at most {WITHIN:g} below{missed}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def axes(document: Document) -> list[str]:
    """The best points within each budget: of each axis alone, and of all."""
    budgets, counts = document["budgets"], {k: n for k, n in document["points"].items() if k != "random"}
    lines = ["| axis | points |" + "".join(f" within {budget['given']} |" for budget in budgets)]
    lines.append("|---|---|" + "---|" * len(budgets))
    for name, count in counts.items():
        lines.append(f"| {name} alone | {count} | {' | '.join(cell(budget['best'][name]) for budget in budgets)} |")
    lines.append(f"| mixed | all | {' | '.join(cell(budget['best']['mixed']) for budget in budgets)} |")
    added = []
    for budget in budgets:
        single = [found["accuracy"] for name in counts if (found := budget["best"][name])]
        mixed = budget["best"]["mixed"]
        added.append(f"{mixed['accuracy'] - max(single):+.2f}" if single and mixed else "-")
    full = document["full"]
    return [
        *lines,
        f"| mixing adds | | {' | '.join(added)} |",
        "",
        f"full: {full['accuracy']:.2f} %, {full['p95_ms']:.3g} ms",
    ]


def cell(found: Mapping[str, Any] | None) -> str:
    return "none" if found is None else f"{found['accuracy']:.2f} % ({found['point']})"


# --- the program ------------------------------------------------------------------------------------------------------


def run_all(run: Path, name: str, given: argparse.Namespace) -> Document:
    began = time.monotonic()
    how = {"engine": given.engine, "threads": given.threads}
    result = supple.search(run, budget_ms=given.budgets, pictures=PICTURES, progress=True, **how)
    minutes = (time.monotonic() - began) / 60  # next to nothing where it was made before
    opened = open_source(run)
    held = at_most(opened.data(None, "val"), PICTURES)
    found = Measurements(
        tools_of(opened.model, held, device="cpu", **how),
        Memory(opened.weights, run.with_name(f"{run.name}.search_points.json")),
        samples=number_of_samples(held),
        scored_on="validation",
        timed_on=f"{given.engine}, {given.threads}, {machine()}",
        quiet=False,
    )
    about = {
        "name": name,
        "engine": given.engine,
        "threads": given.threads,
        "machine": machine(),
        "versions": versions(),
    }
    about |= {"n": number_of_samples(held), "search_minutes": round(minutes, 1)}
    return {**about, **document_of(result, *measured(opened.model, result, found, given.random))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--name", help="of the recipe; the name of the run's folder, if not given")
    parser.add_argument("--engine", default="openvino")
    parser.add_argument("--budgets", default="0.25x,0.5x,0.75x")
    parser.add_argument("--random", type=int, default=150)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print what was measured before, nothing else")
    given = parser.parse_args()
    if given.table:
        documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(given.results.glob("*.json"))]
    else:
        if given.run is None:
            parser.error("the run is missing: the folder that supple train wrote.")
        name = given.name or given.run.resolve().name
        try:
            documents = [run_all(given.run, name, given)]
        except supple.SuppleError as error:
            raise SystemExit(f"error: {error.cause}\n  {error.cure}") from None
        files.write(given.results / f"{name}.json", json.dumps(documents[0], indent=1))
    print("\n\n".join(map(page, documents)))


if __name__ == "__main__":
    main()
