import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Device, Json, RayAddress, print_json
from supple.errors import CheckpointError, DataError, RecipeError, SaveError
from supple.inference.request import Piped, Refusal, gather

if TYPE_CHECKING:
    from supple.inference.predictor import Predictor
    from supple.inference.result import Prediction

Drawing = Callable[["Prediction", Path | Piped], None]


def predict(
    run: Annotated[Path, typer.Argument(help="A run, or an exported folder.")],
    files: Annotated[list[str], typer.Argument(help="Files, folders, patterns; - is stdin.")],
    point: Annotated[str | None, typer.Option(help="Run this point.")] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="The best answer within this many ms.", min=0)] = None,
    budget_macs: Annotated[str | None, typer.Option(help="The best within MACs: 2e6, or 0.5x of full.")] = None,
    confident: Annotated[bool, typer.Option("--confident", help="Stop when sure, as calibrated.")] = False,
    min_confidence: Annotated[
        float | None,
        typer.Option(help="Stop (objects: list) from this.", min=0, max=1),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="auto (default), torch, onnxruntime, openvino", show_default=False)
    ] = "auto",
    threads: Annotated[int | None, typer.Option(help="Default: all cores.", min=1, max=256)] = None,
    device: Device = None,
    draw: Annotated[Path | None, typer.Option(help="Draw counts or boxes into this folder.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    out: Annotated[Path | None, typer.Option(help="With --ray: a folder for Parquet.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Over Ray; of .parquet and .tar too.")] = False,
    ray_address: RayAddress = None,
    workers: Annotated[
        int | None, typer.Option(help="With --ray: default one per core.", min=1, max=4096, hidden=True)
    ] = None,
    json: Json = False,
) -> None:
    """Without a limit, the full model answers; RUN/export does where it is faster. Files that cannot be read are named
    (exit status 2).
    """
    from supple.inference.inputs import must_read_files
    from supple.inference.select import predictor
    from supple.machine import cores
    from supple.progress import counting
    from supple.text import say

    if csv and json:
        raise RecipeError("--csv and --json are both given.", "Give one of them.")
    if deadline_ms == 0:
        cure = f"Give milliseconds above 0; for the cheapest answer, a point: supple profile {run} lists them."
        raise RecipeError("--deadline-ms is 0: nothing answers in no time.", cure)
    if not ray and (out, ray_address, workers) != (None, None, None):
        raise RecipeError("--out, --ray-address and --workers are for --ray.", "Add --ray, or leave them out.")
    if ray and (draw is not None or csv):
        raise RecipeError("--draw and --csv are not for --ray.", "Leave them out: --out gets Parquet.")
    if ray and out is None:
        raise RecipeError("--ray writes a folder, which is not named.", "Name it: --out answers.")
    engine, warm = engine if draw is None else "torch", (deadline_ms is not None or confident) and not ray
    threads = threads or (1 if ray else cores())
    made = predictor(run, engine, threads, warm=warm, progress=True, device=device)
    least = min_confidence if made.task.min_score is None else None  # else it limits what is listed
    limits = (point, deadline_ms, budget_macs, confident or None, least)
    if sum(limit is not None for limit in limits) > 1:
        named = "--point, --deadline-ms, --budget-macs, --confident or --min-confidence"
        raise RecipeError(f"more than one of {named} is given.", "Give one of them.")
    if (confident or least is not None) and not made.task.confidence:
        named = "--confident" if confident else "--min-confidence"
        raise RecipeError(f"{named} is not for the task {made.task.name}: no exit says how sure it is.", "Use --point.")
    if confident:
        _must_be_calibrated(run, made)
        used = None if ray else made.policy_for(1)
        if used is not None and len(used.points) == 1:
            say(f"stopping early saves no time on this engine, singly: {used.points[0]} answers as one graph")
    how: dict[str, Any] = {"point": point, "deadline_ms": deadline_ms, "confident": confident}
    how |= {"budget_macs": None if budget_macs is None else _macs(budget_macs), "min_confidence": min_confidence}
    if out is not None:
        made.close()
        where: dict[str, Any] = {"address": ray_address, "workers": workers, "engine": engine, "threads": threads}
        _batch(run, files, out, json, **where, device=device, **how)
        return
    must_read_files(made.preprocess)
    found = gather(files, made.preprocess.endings, made.preprocess.kind)
    drawing = None if draw is None else _drawing(made, draw, min_confidence)
    answers, failures = [], []
    with counting(len(found), "predicting", quiet=json) as on_progress:
        for result in _results(made, found, drawing, how):
            if isinstance(result, Refusal):
                failures.append(result)
                say(f"error: {result.cause}\n{result.cure}")
            else:
                answers.append(result)
            on_progress(1)
    if json:
        errors = [vars(failure) for failure in failures]
        print_json({"predictions": [answer.to_json() for answer in answers], "errors": errors})
    elif csv or answers:
        _print(answers, csv)
    if failures:
        raise typer.Exit(2)


def _batch(run: Path, names: list[str], out: Path, as_json: bool, **how: Any) -> None:
    from supple.cluster.batches import predict_batch
    from supple.text import say, some

    done = predict_batch(run, names, out, progress=not as_json, **how)
    if done.found and done.found < done.parts:
        say(f"{some(done.found, 'file')} of {done.parts} had been written before")
    if as_json:
        print_json(done.to_json())
    else:
        print(
            f"{some(done.rows, 'row')} in {some(done.parts, 'file')} of {out}, {some(done.errors, 'error')} among them"
        )


def _results(
    made: "Predictor", files: list[Path | Piped], drawing: Drawing | None, how: dict[str, Any]
) -> "Iterator[Prediction | Refusal]":
    from supple.inference.result import Prediction

    for file in files:
        try:
            found = made.predict(file, **how)
            assert isinstance(found, Prediction)  # one file, one answer
            if drawing is not None:
                drawing(found, file)
        except DataError as error:
            yield Refusal.of(file, error)
            continue
        yield found


def _must_be_calibrated(run: Path, made: "Predictor") -> None:
    from supple.inference.bundle import is_bundle

    if made.policy is None and not is_bundle(run):
        file = run / "policy.json"
        cause = f"{file} {'was made for other weights' if file.is_file() else 'does not exist'}."
        raise CheckpointError(cause, f"Make it: supple calibrate {run} --budget-macs 0.5x.")


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


def _drawing(made: "Predictor", folder: Path, min_score: float | None) -> Drawing:
    """Writes pictures into a folder, each under a name of its own: that of its file, folders before it if need be."""
    from supple.data._io.decode import decode
    from supple.files import write
    from supple.tasks import TASKS

    if made.task.draw is None:
        able = " and ".join(task.name for task in TASKS.values() if task.draw is not None)
        raise RecipeError(f"--draw is for {able}; this run answers {made.task.name}.", "Leave --draw out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"{folder} cannot be made a folder: {error.strerror}.", "Choose another with --draw.") from None
    used: set[str] = set()
    options = {} if min_score is None or made.task.min_score is None else {"min_score": min_score}

    def draw(answer: "Prediction", given: Path | Piped) -> None:
        assert made.task.draw is not None
        file = Path("stdin") if isinstance(given, Piped) else given
        name = file.name
        for above in (*file.parents[:-1], *range(2, len(used) + 3)):  # files of the same name in other folders
            if name not in used:
                break
            name = f"{above.name}_{name}" if isinstance(above, Path) else f"{above}_{file.name}"
        used.add(name)
        aux = {key: value[0].float().cpu().numpy() for key, value in answer.aux.items()}
        picture = made.task.draw(decode(given, made.preprocess.max_pixels), answer.logits, aux, made.classes, **options)
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        write(folder / f"{name}.png", buffer.getvalue())

    return draw


def _macs(text: str) -> float | str:
    """A budget as given, checked: MACs, or a share of the full model's."""
    from supple.policy.fitting import Target

    target = Target.parse("budget_macs", text)
    return target.given if target.relative else target.value
