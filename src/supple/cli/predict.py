import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Json, Run, must_be_run, print_json
from supple.errors import CheckpointError, DataError, RecipeError

if TYPE_CHECKING:
    from PIL import Image

    from supple.model import FlexibleModel


def predict(
    run: Run,
    files: Annotated[list[str], typer.Argument(help="Files, or folders of them.")],
    point: Annotated[str | None, typer.Option(help="Run this point.")] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="The best point within so many ms.", min=0)] = None,
    budget_macs: Annotated[
        str | None, typer.Option(help="The best point within so many MACs: 2e6, or 0.5x of full.")
    ] = None,
    confident: Annotated[
        bool, typer.Option("--confident", help="Stop when sure, as supple calibrate has found.")
    ] = False,
    min_confidence: Annotated[
        float | None, typer.Option(help="Stop at the first exit this sure; nothing to calibrate.", min=0, max=1)
    ] = None,
    draw: Annotated[Path | None, typer.Option(help="Draw counts or boxes into this folder.")] = None,
    json: Json = False,
) -> None:
    """Without a limit, the full model answers. A deadline uses measured times (see supple bench). Files that cannot be
    read are named; the others are still answered (exit status 2).
    """
    from supple import checkpoint
    from supple.answer import Answer, classify, gather
    from supple.point import Point
    from supple.policies import sure_above
    from supple.text import say, table

    choices = (point, deadline_ms, budget_macs, True if confident else None, min_confidence)
    if sum(choice is not None for choice in choices) > 1:
        named = "--point, --deadline-ms, --budget-macs, --confident or --min-confidence"
        raise RecipeError(f"more than one of {named} is given.", "Give one of them.")
    model = checkpoint.load(must_be_run(run))
    if model.task != "classes" and (confident or min_confidence is not None):
        named = "--confident" if confident else "--min-confidence"
        raise RecipeError(
            f"{named} is for classes: nothing says how sure a {model.task} is.", "Use --point, or a limit."
        )
    policy = None
    if model.task == "boxes" and (confident or min_confidence is not None):
        raise RecipeError(f"{run} finds objects: nothing says how sure it is of a picture.", "Use --deadline-ms.")
    if min_confidence is not None:
        policy = sure_above(model.points, min_confidence)
    elif confident:
        policy = checkpoint.load_policy(run, model)
        if policy is None:
            there = (run / checkpoint.POLICY).is_file()
            cause = f"{run / checkpoint.POLICY} {'was made for other weights' if there else 'does not exist'}."
            raise CheckpointError(cause, f"Make it: supple calibrate {run} --budget-macs 0.5x.")
    asked = None if point is None else model.check(Point.parse(point))
    paths = gather(files, model.preprocess)
    limit = None if budget_macs is None else _macs(model, budget_macs)
    how: dict[str, Any] = {"deadline_ms": deadline_ms, "budget_macs": limit}
    how |= {"draw": _drawing(model, draw)} if draw is not None else {}
    results = list(classify(model, paths, asked=asked, policy=policy, **how))
    answers = [result for result in results if isinstance(result, Answer)]
    failures = [result for result in results if isinstance(result, DataError)]
    for failure in failures:
        say(f"error: {failure.cause}\n{failure.cure}")
    if json:
        errors = [{"cause": failure.cause, "cure": failure.cure} for failure in failures]
        print_json({"predictions": [answer.to_json() for answer in answers], "errors": errors})
    elif answers:
        sure = {a.file: f"{100 * a.scores[a.label]:.1f}" if a.scores else "-" for a in answers}
        rows = [(a.file, a.label, sure[a.file], a.point, a.why(), f"{a.elapsed_ms:.1f}") for a in answers]
        print(table(("file", "label", "confidence %", "point", "reason", "ms"), rows, left=(0, 1, 3, 4)))
    if failures:
        raise typer.Exit(2)


def _drawing(model: "FlexibleModel", folder: Path) -> "Callable[[Path, Image.Image], None]":
    """Writes pictures into a folder, each under the name of its file."""
    from supple.files import write
    from supple.tasks import TASKS

    if TASKS[model.task].draw is None:
        raise RecipeError("--draw is for counts and boxes; this run names classes.", "Leave --draw out.")
    folder.mkdir(parents=True, exist_ok=True)

    def draw(file: Path, picture: "Image.Image") -> None:
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        write(folder / f"{file.name}.png", buffer.getvalue())

    return draw


def _macs(model: "FlexibleModel", text: str) -> float:
    """A budget as given: MACs, or a share of the full model's."""
    from supple.calibrate import Goal
    from supple.cost import profile

    goal = Goal.parse("budget_macs", text)
    return goal.value * (profile(model)[-1].macs or 0) if goal.relative else goal.value
