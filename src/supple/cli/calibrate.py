import re
from functools import partial
from typing import Annotated, Any

import typer

from supple.cli.common import Changes, Device, Json, Run, print_json

SEPARATOR = r"\s*;\s*|(?<!,)\s+(?!,)"  # of points: a semicolon or a space; a comma is part of a point


def calibrate(
    run: Run,
    changes: Changes = None,
    budget_macs: Annotated[str | None, typer.Option(help="Mean MACs per image: 2e6, or 0.5x of full.")] = None,
    budget_ms: Annotated[str | None, typer.Option(help="Mean ms per image on this machine: 4, or 0.5x.")] = None,
    max_drop: Annotated[str | None, typer.Option(help="The cheapest that loses at most this accuracy: 0.01.")] = None,
    points: Annotated[
        str | None, typer.Option(help='Points to choose from: "width=0.5;full". Default: the exits, or all points.')
    ] = None,
    measure: Annotated[str, typer.Option(help="max_probability, margin or entropy.")] = "max_probability",
    keep_dominated: Annotated[
        bool, typer.Option("--keep-dominated", help="Also use exits that are no more accurate than an earlier one.")
    ] = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Half of the validation images fit the thresholds, the other half tests them. Then: supple predict --confident.

    The thresholds go into the run's policy.json and report.html.
    """
    from supple import api

    targets: dict[str, Any] = {"budget_macs": budget_macs, "budget_ms": budget_ms, "max_drop": max_drop}
    how: dict[str, Any] = {"measure": measure, "keep_dominated": keep_dominated, "changes": changes or ()}
    how["points"] = None if points is None else list(filter(None, re.split(SEPARATOR, points)))
    policy = api.calibrate(run, **targets, **how, device=device, progress=not json)
    document = {**policy.facts, **policy.to_json()}
    if json:
        print_json(document)
    else:
        print(_tables(document))
        print(f"\nUse it: supple predict {run} FILES --confident")


def _tables(document: dict[str, Any]) -> str:
    """The policy for people: a table of its exits, what was expected, what was achieved."""
    from supple import text as words
    from supple.text import table

    cost, unit = partial(words.cost, unit=document["unit"]), "ms" if document["unit"] == "ms" else "MMACs"
    lines = []
    for row in document["exits"]:
        better = f"no better than {row['dominated_by']}" if row["dominated_by"] else ""
        remark = ", ".join(filter(None, (better, "" if row["looked_at"] else "left out")))
        share = f"{100 * row['achieved']:.1f}" if row["looked_at"] else "-"
        sure = "-" if row["threshold"] is None else f"{row['threshold']:.3f}"
        accuracy = f"{100 * row['accuracy']:.1f}"
        lines.append((row["point"], sure, f"{row['temperature']:.2f}", cost(row["cost"]), accuracy, share, remark))
    header = ("point", "threshold", "temperature", unit, "top-1 %", "answers %", "")
    rows = [
        (
            name,
            f"{cost(facts['cost'])} ± {cost(facts['cost_error'])}",
            f"{100 * facts['cost'] / document['full_cost']:.0f} %",
            f"{100 * facts['accuracy']:.1f}",
            f"{100 * (facts['full_accuracy'] - facts['accuracy']):+.1f} ± {100 * facts['drop_error']:.1f}",
            f"{facts['n']} images",
        )
        for name, facts in (("expected", document["expected"]), ("achieved", document["achieved"]))
    ]
    target = document["target"]
    wanted = f"{target['kind'].replace('_', ' ')} {target['given']}"
    if document["budget"] is not None:
        wanted += f": {cost(document['budget'])} {unit} per image"
    text = f"target: {wanted}\n\n{table(header, lines, left=(0, 6))}\n\n"
    text += table(("", unit, "of full", "top-1 %", "below full", ""), rows, left=(0, 5))
    return f"{text}\n\n{document['remark']}" if document["remark"] else text
