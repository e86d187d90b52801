from typing import Annotated

import typer

from supple.cli.common import Json, Run, must_be_run, print_json
from supple.errors import DataError, RecipeError


def predict(
    run: Run,
    files: Annotated[list[str], typer.Argument(help="Image files, or folders of them.")],
    point: Annotated[str | None, typer.Option(help="Run this point.")] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="The best point within so many ms.", min=0)] = None,
    budget_macs: Annotated[float | None, typer.Option(help="The best point within so many MACs.", min=0)] = None,
    json: Json = False,
) -> None:
    """Without a limit, the full model answers. A deadline uses the measured p95 of this machine (see supple bench).

    Files that cannot be read are named; the others are still answered (exit status 2).
    """
    from supple import checkpoint
    from supple.answer import Answer, classify, gather
    from supple.point import Point
    from supple.text import say, table

    if sum(choice is not None for choice in (point, deadline_ms, budget_macs)) > 1:
        raise RecipeError("more than one of --point, --deadline-ms, --budget-macs is given.", "Give one of them.")
    model = checkpoint.load(must_be_run(run))
    asked = None if point is None else model.check(Point.parse(point))
    paths = gather(files)
    results = list(classify(model, paths, asked=asked, deadline_ms=deadline_ms, budget_macs=budget_macs))
    answers = [result for result in results if isinstance(result, Answer)]
    failures = [result for result in results if isinstance(result, DataError)]
    for failure in failures:
        say(f"error: {failure.cause}\n{failure.cure}")
    if json:
        errors = [{"cause": failure.cause, "cure": failure.cure} for failure in failures]
        print_json({"predictions": [answer.to_json() for answer in answers], "errors": errors})
    elif answers:
        rows = [
            (a.file, a.label, f"{100 * a.scores[a.label]:.1f}", a.point, a.reason, f"{a.elapsed_ms:.1f}")
            for a in answers
        ]
        print(table(("file", "label", "confidence %", "point", "reason", "ms"), rows, left=(0, 1, 3, 4)))
    if failures:
        raise typer.Exit(2)
