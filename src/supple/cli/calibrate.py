from typing import Annotated, Any

import typer

from supple.cli.common import Changes, Json, Run, must_be_run, print_json
from supple.errors import DataError, RecipeError


def calibrate(
    run: Run,
    changes: Changes = None,
    budget_macs: Annotated[str | None, typer.Option(help="Mean MACs per image: 2e6, or 0.5x of full.")] = None,
    budget_ms: Annotated[str | None, typer.Option(help="Mean ms per image on this machine: 4, or 0.5x.")] = None,
    max_drop: Annotated[str | None, typer.Option(help="Stay this near to full, cheaply: 0.01.")] = None,
    measure: Annotated[str, typer.Option(help="max_probability, margin or entropy.")] = "max_probability",
    keep_dominated: Annotated[
        bool, typer.Option("--keep-dominated", help="Also use exits that an earlier one is as accurate as.")
    ] = False,
    json: Json = False,
) -> None:
    """Half of the validation images decide, the other half tells what came of it. Then: supple predict --confident.

    The thresholds go into the run's policy.json and report.html.
    """
    from supple import checkpoint
    from supple.cli.common import model_of, recipe_of
    from supple.data.images import ImageSet
    from supple.inference.calibration import MOST
    from supple.inference.calibration import calibrate as find_policy
    from supple.policy.fitting import Target
    from supple.policy.policy import MEASURES
    from supple.progress import counting
    from supple.reporting import write_report
    from supple.tasks import get_task
    from supple.text import did_you_mean, first
    from supple.training.build import load_data

    asked = {"budget_macs": budget_macs, "budget_ms": budget_ms, "max_drop": max_drop}
    given = [Target.parse(kind, text) for kind, text in asked.items() if text is not None]
    if len(given) != 1:
        count = "none" if not given else "more than one"
        cure = "Give one of them: supple calibrate RUN --budget-macs 0.5x."
        raise RecipeError(f"{count} of --budget-macs, --budget-ms, --max-drop is given.", cure)
    if measure not in MEASURES:
        raise RecipeError(f'--measure is "{measure}".', did_you_mean(measure, MEASURES))
    model = model_of(must_be_run(run), changes)
    recipe = recipe_of(run, changes)
    held = load_data(recipe).val
    if not get_task(model.task).confidence or not isinstance(held, ImageSet):
        cause = f"{run} answers {model.task}: nothing says how sure it is."
        raise RecipeError(cause, f"Limit its time instead: supple predict {run} FILE --deadline-ms 50.")
    if held.classes != model.classes:
        cure = f"The run knows {len(model.classes)}: {first(model.classes)}."
        raise DataError(f"these data have other classes than the run: {first(held.classes)}.", cure)
    with counting(min(len(held), MOST), "calibrating", quiet=json) as on_progress:
        document = find_policy(
            model,
            held,
            given[0],
            measure=measure,
            keep_dominated=keep_dominated,
            seed=recipe.train.seed,
            on_progress=on_progress,
        )
    checkpoint.save_policy(run, document)
    write_report(run)
    if json:
        print_json(document)
    else:
        print(_tables(document))
        print(f"\nUse it: supple predict {run} FILES --confident")


def _tables(document: dict[str, Any]) -> str:
    """The policy for people: a table of its exits, what was expected, what was achieved."""
    from supple.text import millions, table

    timed = document["unit"] == "ms"
    unit = "ms" if timed else "MMACs"

    def cost(value: float | None) -> str:
        return millions(value) if not timed else "-" if value is None else f"{value:.{0 if value >= 100 else 2}f}"

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
