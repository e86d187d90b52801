import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Json, must_be_run, print_json
from supple.errors import CheckpointError, DataError, RecipeError, SaveError
from supple.ladder import Ladder
from supple.request import Refusal

if TYPE_CHECKING:
    from PIL import Image

    from supple.model import FlexibleModel
    from supple.runtime.answers import Prediction

Results = Iterator["Prediction | Refusal"]


def predict(
    run: Annotated[Path, typer.Argument(help="A run, or an exported folder.")],
    files: Annotated[list[str], typer.Argument(help="Files, folders, patterns; - is stdin.")],
    point: Annotated[str | None, typer.Option(help="Run this point.")] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="The best answer within so many ms.", min=0)] = None,
    budget_macs: Annotated[str | None, typer.Option(help="The best within MACs: 2e6, or 0.5x of full.")] = None,
    confident: Annotated[bool, typer.Option("--confident", help="Stop when sure, as supple calibrate found.")] = False,
    min_confidence: Annotated[
        float | None, typer.Option(help="Stop at an exit this sure; objects: list those.", min=0, max=1)
    ] = None,
    engine: Annotated[str | None, typer.Option(help="auto, torch, onnxruntime or openvino.")] = None,
    threads: Annotated[int, typer.Option(help="With --engine.", min=1, max=256)] = 2,
    draw: Annotated[Path | None, typer.Option(help="Draw counts or boxes into this folder.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: Json = False,
) -> None:
    """Without a limit, the full model answers. Files that cannot be read are named (exit status 2). With --engine or an
    exported folder, exits run stage by stage until a deadline.
    """
    from supple.progress import counting
    from supple.runtime.answers import Prediction
    from supple.runtime.bundle import is_bundle
    from supple.text import say

    if csv and json:
        raise RecipeError("--csv and --json are both given.", "Give one of them.")
    choices = (point, deadline_ms, budget_macs, True if confident else None, min_confidence)
    if sum(choice is not None for choice in choices) > 1:
        named = "--point, --deadline-ms, --budget-macs, --confident or --min-confidence"
        raise RecipeError(f"more than one of {named} is given.", "Give one of them.")
    how = {"point": point, "deadline_ms": deadline_ms, "budget_macs": budget_macs}
    how |= {"confident": confident, "min_confidence": min_confidence}
    if engine is None and not is_bundle(run):
        count, results = _with_run(must_be_run(run), files, draw, **how)
    elif draw is not None:
        raise RecipeError("--draw needs the run itself.", "Leave --engine out, and give the run.")
    else:
        count, results = _with_engine(run, files, engine or "auto", threads, **how)
    answers, failures = [], []
    with counting(count, "predicting", quiet=json) as on_progress:
        for result in results:
            if isinstance(result, Prediction):
                answers.append(result)
            else:
                failures.append(result)
                say(f"error: {result.cause}\n{result.cure}")
            on_progress(1)
    if json:
        errors = [vars(failure) for failure in failures]
        print_json({"predictions": [answer.to_json() for answer in answers], "errors": errors})
    elif csv or answers:
        _print(answers, csv)
    if failures:
        raise typer.Exit(2)


def _print(answers: "list[Prediction]", as_csv: bool) -> None:
    from csv import writer

    from supple.text import table

    names = ("file", "label", "confidence %", "point", "reason", "ms")
    sure = ["-" if a.best_score is None else f"{100 * a.best_score:.1f}" for a in answers]
    rows = [(a.file or "-", a.label, s, a.point, a.why(), f"{a.elapsed_ms:.1f}") for a, s in zip(answers, sure)]
    if as_csv:
        writer(sys.stdout).writerows([names, *rows])
    else:
        print(table(names, rows, left=(0, 1, 3, 4)))


def _with_engine(folder: Path, files: list[str], engine: str, threads: int, **how: Any) -> tuple[int, Results]:
    """Answers of an engine; of an exported folder, without torch."""
    from supple.request import gather
    from supple.runtime.answers import Prediction
    from supple.runtime.opening import predictor

    made = predictor(folder, engine, threads)
    paths = gather(files, made.preprocess.endings, made.preprocess.kind)
    how["budget_macs"] = None if how["budget_macs"] is None else _macs(how["budget_macs"], made.ladder)

    def answers() -> Results:
        for path in paths:
            try:
                found = made.predict(path, **how)
            except DataError as error:
                yield Refusal.of(path, error)
                continue
            assert isinstance(found, Prediction)  # one file, one answer
            yield found

    return len(paths), answers()


def _with_run(run: Path, files: list[str], drawn: Path | None, **how: Any) -> tuple[int, Results]:
    """Answers of PyTorch."""
    from supple import checkpoint
    from supple.answer import classify
    from supple.cost import profile
    from supple.point import Point
    from supple.policies import sure_above
    from supple.request import gather
    from supple.tasks import get_task

    model, least = checkpoint.load(run), how["min_confidence"]
    task, policy = get_task(model.task), None
    stops = how["confident"] or (least is not None and task.min_score is None)  # else it limits what is listed
    if stops and not task.confidence:
        named = "--confident" if how["confident"] else "--min-confidence"
        raise RecipeError(f"{named} is not for the task {task.name}: no exit says how sure it is.", "Use --point.")
    if least is not None and stops:
        policy = sure_above(model.points, least)
    elif how["confident"]:
        policy = checkpoint.load_policy(run, model)
        if policy is None:
            there = (run / checkpoint.POLICY).is_file()
            cause = f"{run / checkpoint.POLICY} {'was made for other weights' if there else 'does not exist'}."
            raise CheckpointError(cause, f"Make it: supple calibrate {run} --budget-macs 0.5x.")
    asked = None if how["point"] is None else model.check(Point.parse(how["point"]))
    paths = gather(files, model.preprocess.endings, model.preprocess.kind)
    limit = None if how["budget_macs"] is None else _macs(how["budget_macs"], Ladder(profile(model)))
    limits: dict[str, Any] = {"deadline_ms": how["deadline_ms"], "budget_macs": limit}
    limits |= {"min_score": least, "draw": None if drawn is None else _drawing(model, drawn)}
    return len(paths), classify(model, paths, asked=asked, policy=policy, **limits)


def _drawing(model: "FlexibleModel", folder: Path) -> "Callable[[Path, Image.Image], None]":
    """Writes pictures into a folder, each under a name of its own: that of its file, folders before it if need be."""
    from supple.files import write
    from supple.tasks import TASKS

    if TASKS[model.task].draw is None:
        able = " and ".join(task.name for task in TASKS.values() if task.draw is not None)
        raise RecipeError(f"--draw is for {able}; this run answers {model.task}.", "Leave --draw out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"{folder} cannot be made a folder: {error.strerror}.", "Choose another with --draw.") from None
    used: set[str] = set()

    def draw(file: Path, picture: "Image.Image") -> None:
        name = file.name
        for above in (*file.parents[:-1], *range(2, len(used) + 3)):  # files of the same name in other folders
            if name not in used:
                break
            name = f"{above.name}_{name}" if isinstance(above, Path) else f"{above}_{file.name}"
        used.add(name)
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        write(folder / f"{name}.png", buffer.getvalue())

    return draw


def _macs(text: str, ladder: Ladder) -> float:
    """A budget as given: MACs, or a share of the full model's."""
    from supple.goal import Goal

    goal = Goal.parse("budget_macs", text)
    if not goal.relative:
        return goal.value
    full = [row.macs for row in ladder if row.point == "full" and row.macs]
    if not full:
        raise RecipeError(f"{text} is a share of the full model, whose MACs are not known here.", "Give MACs: 2e6.")
    return goal.value * full[0]
