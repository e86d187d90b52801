"""The figures of a network of recipes/zoo/: what its exits cost and score, and what a calibrated policy saves.

    supple train recipes/zoo/cifar10_anytime.yaml --out RUN
    python benchmarks/zoo.py RUN [--name cifar10_anytime] [--engines torch,onnxruntime] [--rounds 100] [--threads 2]
    python benchmarks/zoo.py --table

Calibrates the run (the smallest budget of MACs that loses half a point at most, as the validation pictures estimate it,
without a margin of error), exports it, times every point with a batch of 1, in turn, and lets the
policy and the full model answer all test pictures in batches of 1 and 32. Writes benchmarks/results/zoo/NAME.json and
prints Markdown, with the goals of the networks that have some.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import supple
from compare_measure import MOST_LOST, answers_of_model, follow, near_full, own_choices, size_of
from supple import checkpoint, files
from supple.errors import RecipeError
from supple.experiments.results import unpack
from supple.inference.compare import compare
from supple.inference.predictor import Predictor
from supple.inference.select import Choice, of_bundle, of_model
from supple.machine import machine, versions
from supple.training.build import data_of

RESULTS = Path(__file__).parent / "results" / "zoo"
KINDS = {"onnxruntime": "onnx", "openvino": "openvino"}
BATCHES = (1, 32)
Document = dict[str, Any]


# --- measuring --------------------------------------------------------------------------------------------------------


def measured(run: Path, name: str, engines: Sequence[str], rounds: int, threads: int) -> Document:
    model, splits = checkpoint.load(run).eval(), data_of(run)
    torch.set_num_threads(threads)
    answers = answers_of_model(model, splits.test)
    policy = near_full(model, splits.val)
    if policy is None:
        raise RecipeError(f"no policy of {run} loses as little as {100 * MOST_LOST:g} points.", "Train it on.")
    checkpoint.save_policy(run, policy)
    bundles = {engine: supple.export(run, to=KINDS[engine]) for engine in engines if engine in KINDS}
    model = checkpoint.load(run)  # with its policy
    made: list[tuple[Choice, Predictor]] = []
    if "torch" in engines:
        made.append((Choice("torch"), of_model(model, threads)))
    for bundle in bundles.values():
        made += [(choice, of_bundle(bundle, choice.engine, threads)) for choice in own_choices(bundle)]
    times = list(compare(made, batch=1, threads=threads, rounds=rounds, seconds=600.0))
    policies = [
        {"engine": choice.engine, "batch": batch, **follow(one, splits.test, batch)}
        for choice, one in made
        for batch in BATCHES
    ]
    for _, one in made:
        one.close()
    full = {row.engine: row.p50_ms for row in times if row.point == "full"}
    macs = {row.point: row.macs for row in supple.profile(model)}
    names = ("point", "engine", "p50_ms", "p95_ms", "iqr_ms")
    return {
        "name": name,
        "recipe": model.recipe.resolved() if model.recipe else None,
        "minutes": round(checkpoint.read_manifest(run)["seconds"] / 60, 1),
        "machine": machine(),
        "threads": threads,
        "versions": versions(),
        "n": len(splits.test),
        "checkpoint_bytes": (run / checkpoint.WEIGHTS).stat().st_size,
        "exported_bytes": {engine: size_of(bundle.folder) for engine, bundle in bundles.items()},
        "points": [{"point": point, "macs": macs[point], "answers": packed} for point, packed in answers.items()],
        "times": [
            {**{name: getattr(row, name) for name in names}, "share": row.p50_ms / full[row.engine]} for row in times
        ],
        "policies": policies,
    }


# --- goals ------------------------------------------------------------------------------------------------------------


def accuracies(document: Document) -> dict[str, float]:
    """Of every point, in %."""
    return {entry["point"]: float(unpack(entry["answers"]).mean()) for entry in document["points"]}


def shares(document: Document) -> dict[str, dict[str, float]]:
    """Of every engine: the time of every point over that of the full model, batch 1."""
    found: dict[str, dict[str, float]] = {}
    for row in document["times"]:
        found.setdefault(row["engine"], {})[row["point"]] = row["share"]
    return found


MET, FLOOR, MISSED = "met", "**missed**; the floor is kept", "**missed**"
Row = tuple[str, str, str, str, str]  # what, on which engine, measured, goal, and what became of it
Goal = Callable[[Document], Iterator[Row]]


def verdict(goal: bool, floor: bool | None = None) -> str:
    """Of a goal, and of the floor below it that must be kept, if it has one."""
    return MET if goal else FLOOR if floor else f"{MISSED}, and so is the floor" if floor is not None else MISSED


def full_at_least(goal: float, floor: float | None = None) -> Goal:
    def rows(document: Document) -> Iterator[Row]:
        found = accuracies(document)["full"]
        least = f"{goal:g} %" if floor is None else f"{goal:g} %, floor {floor:g} %"
        kept = None if floor is None else found >= floor
        yield "accuracy at full", "", f"{found:.2f} %", least, verdict(found >= goal, kept)

    return rows


def early_enough(accuracy: float, share: float, most: float | None = None) -> Goal:
    """The cheapest point of an accuracy, as a share of the time of the full model. most: the floor of the goal."""

    def rows(document: Document) -> Iterator[Row]:
        good = [point for point, found in accuracies(document).items() if found >= accuracy]
        for engine, spent in shares(document).items():
            at = min(((spent[point], point) for point in good if point in spent), default=None)
            said = "none" if at is None else f"{100 * at[0]:.0f} % of the time ({at[1]})"
            limit = f"{100 * share:g} %" if most is None else f"{100 * share:g} %, floor {100 * most:g} %"
            kept = None if most is None else at is not None and at[0] <= most
            yield f"a point of {accuracy:g} %", engine, said, limit, verdict(at is not None and at[0] <= share, kept)

    return rows


def near_enough(share: float, points: float) -> Goal:
    """The best point within a share of the time: how far below the full model."""

    def rows(document: Document) -> Iterator[Row]:
        found = accuracies(document)
        for engine, spent in shares(document).items():
            best = max(((found[point], point) for point in spent if spent[point] <= share), default=None)
            lost = None if best is None else found["full"] - best[0]
            said = "none" if best is None else f"{lost:.2f} points below full ({best[1]})"
            met = lost is not None and lost <= points
            what = f"the best point within {100 * share:g} % of the time"
            yield what, engine, said, f"at most {points:g}", verdict(met)

    return rows


def policy_pays(ratios: dict[int, float], lost: float = 0.5) -> Goal:
    def rows(document: Document) -> Iterator[Row]:
        full = accuracies(document)["full"]
        for row in document["policies"]:
            ratio, below = row["reference_ms"] / row["mean_ms"], full - float(unpack(row["answers"]).mean())
            least = ratios[row["batch"]]
            said = f"{ratio:.2f}x, {below:.2f} points less"
            goal = f"at least {least:g}x, at most {lost:g} points less"
            met = round(ratio, 2) >= least and round(below, 2) <= lost
            yield f"the policy, batch {row['batch']}", row["engine"], said, goal, verdict(met)

    return rows


GOALS: dict[str, tuple[Goal, ...]] = {
    "cifar10_anytime": (
        full_at_least(94.0, 93.5),
        early_enough(87, 0.25, 0.30),
        early_enough(91, 0.50, 0.55),
        policy_pays({1: 2.2, 32: 1.8}),
    ),
    "deit_elastic": (full_at_least(77.0), near_enough(0.5, 4.0), near_enough(0.25, 12.0)),
}


# --- Markdown ---------------------------------------------------------------------------------------------------------


def page(document: Document) -> str:
    found, spent, macs = accuracies(document), shares(document), {p["point"]: p["macs"] for p in document["points"]}
    size, minutes = document["checkpoint_bytes"] / 1e6, document["minutes"]
    lines = [
        f"### {document['name']}",
        "",
        f"{document['machine']}, {document['threads']} threads; trained for {minutes:.0f} minutes; {size:.2f} MB; "
        f"{document['n']:,} test pictures.",
        "",
        "| point | accuracy, % | MMACs |" + "".join(f" {engine}: ms, batch 1 | share |" for engine in spent),
        "|---|---|---|" + "---|---|" * len(spent),
    ]
    p50 = {(row["engine"], row["point"]): row["p50_ms"] for row in document["times"]}
    for point in sorted(found, key=lambda point: macs[point]):
        cells = [point, f"{found[point]:.2f}", f"{macs[point] / 1e6:.1f}"]
        for engine, own in spent.items():
            cells += [f"{p50[engine, point]:.3g}", f"{100 * own[point]:.0f} %"] if point in own else ["-", "-"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| policy on | batch | full: ms | policy: ms | ratio | accuracy, % | points less | who answered |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in document["policies"]:
        accuracy, count = float(unpack(row["answers"]).mean()), row["answers"]["n"]
        where = ", ".join(f"{point} {100 * some / count:.0f} %" for point, some in row["where"].items() if some)
        cells = [row["engine"], str(row["batch"]), f"{row['reference_ms']:.3g}", f"{row['mean_ms']:.3g}"]
        cells += [f"{row['reference_ms'] / row['mean_ms']:.2f}", f"{accuracy:.2f}", f"{found['full'] - accuracy:.2f}"]
        lines.append(f"| {' | '.join([*cells, where])} |")
    how = f"loses at most {100 * MOST_LOST:g} points as the validation pictures estimate it, without a margin of error"
    lines += ["", f"The policy has the smallest budget of MACs that {how}."]
    goals = GOALS.get(document["name"], ())
    if goals:
        lines += ["", "| figure | engine | measured | goal | |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for goal in goals for row in goal(document)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--name", help="of the recipe; the name of the run's folder, if not given")
    parser.add_argument("--engines", default="torch,onnxruntime,openvino")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print what was measured before, nothing else")
    given = parser.parse_args()
    if given.table:
        paths = sorted(given.results.glob("*.json"))
        print("\n\n".join(page(json.loads(path.read_text(encoding="utf-8"))) for path in paths))
        return
    if given.run is None:
        parser.error("the run is missing: the folder that supple train wrote.")
    name = given.name or given.run.resolve().name
    try:
        document = measured(given.run, name, given.engines.split(","), given.rounds, given.threads)
    except supple.SuppleError as error:
        raise SystemExit(f"error: {error.cause}\n  {error.cure}") from None
    files.write(given.results / f"{name}.json", json.dumps(document, indent=1))
    print(page(document))


if __name__ == "__main__":
    main()
