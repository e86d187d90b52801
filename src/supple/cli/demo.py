import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Json, print_json
from supple.errors import RecipeError

if TYPE_CHECKING:
    from supple.model import FlexibleModel
    from supple.showing import Shown

NETWORK = "cifar10_small"


def demo(
    pictures: Annotated[list[str] | None, typer.Argument(help="Files, folders, patterns; default: drawings.")] = None,
    out: Annotated[Path, typer.Option(help="The run folder; a number is added if it exists.")] = Path("runs/demo"),
    train: Annotated[bool, typer.Option("--train", help="Train a small network on digits instead; 90 s.")] = False,
    json: Json = False,
) -> None:
    """Opens the network that comes with supple, at once: no training, no download. The curve of its stored scores over
    times measured here goes into a copy of it, runs/demo, which is yours. It tells airplanes, automobiles, birds, cats,
    deer, dogs, frogs, horses, ships and trucks apart, and takes all else for one of these.
    """
    if train and pictures:
        raise RecipeError("pictures are not for --train.", "Leave one of them out.")
    document = train_demo(out, quiet=json) if train else show_demo(pictures or (), out, quiet=json)
    if json:
        print_json(document)
    if document.get("errors"):
        raise typer.Exit(2)


# --- the network that ships ---


def show_demo(pictures: "list[str] | tuple[str, ...]", out: Path, quiet: bool = False) -> dict[str, Any]:
    """The curve of the network that ships, on this machine, and what it says of pictures at three deadlines."""
    from supple import checkpoint, networks, showing
    from supple.inference.request import gather
    from supple.machine import cores, machine
    from supple.progress import counting
    from supple.text import duration, say

    began = time.monotonic()
    model = checkpoint.load(networks.folder_of(NETWORK))
    given = model.preprocess
    assert given is not None
    found = gather(pictures, given.endings, given.kind) if pictures else None
    folder = networks.copied(NETWORK, _free(out))
    files = showing.samples(model.classes, folder / "images") if found is None else found
    with counting(showing.ROUNDS, "timing", quiet=quiet, timing=True) as on_progress:
        shown = showing.show(model, folder, files, cores(), on_progress)
    commands = _next(folder, pictures, shown)
    if not quiet:
        print(f"{_about(model)}\nScores: its own, stored. Times: measured now, batch 1, {machine()}.\n")
        print(f"{shown.ladder}\n")
        print(_answers(shown))
        if found is None:
            print(f"\n{_verdict(shown)}")
        print(f"\nDone in {duration(time.monotonic() - began)}. The curve: {folder / 'curve.png'}. Try:")
        print("\n".join(f"  {command}" for command in commands))
    for refusal in () if quiet else shown.refused:
        say(f"error: {refusal.cause}\n{refusal.cure}")
    return {
        "run": str(folder),
        "network": NETWORK,
        "seconds": round(time.monotonic() - began, 1),
        **shown.ladder.to_json(),
        "deadlines_ms": [*shown.deadlines_ms],
        "reading_ms": shown.reading_ms,
        "predictions": [
            {"deadline_ms": ms, **answer.to_json()}
            for answers in shown.answers
            for ms, answer in zip(shown.deadlines_ms, answers)
        ],
        "errors": [vars(refusal) for refusal in shown.refused],
        "next": commands,
    }


def _about(model: "FlexibleModel") -> str:
    from supple.text import some

    points = some(len(model.points), "operating point")
    return f"{NETWORK} comes with supple: one checkpoint, {points}, {len(model.classes)} classes."


def _answers(shown: "Shown") -> str:
    """A row for each picture, a column for each deadline."""
    from supple.text import table

    names = [Path(answers[0].file or "-").name for answers in shown.answers]
    header = ["picture", *(f"within {ms:g} ms" for ms in shown.deadlines_ms)]
    rows = [
        [name, *(f"{a.label} {100 * (a.best_score or 0):.0f} % ({a.point}{', late' * a.late})" for a in answers)]
        for name, answers in zip(names, shown.answers)
    ]
    read = "" if shown.reading_ms is None else f"\n(before that, reading a picture took {shown.reading_ms:.2g} ms)"
    return table(header, rows, left=range(len(header))) + read


def _verdict(shown: "Shown") -> str:
    """How many of the drawings, which are named by what they show, were taken for that."""
    last = [answers[-1] for answers in shown.answers]
    wrong = [f"{Path(a.file or '').stem} for {a.label}" for a in last if a.label != Path(a.file or "").stem]
    right = f"{len(last) - len(wrong)} of {len(last)} are right within {shown.deadlines_ms[-1]:g} ms"
    took = f"; it took {', '.join(wrong)}" if wrong else ""
    return f"These pictures are drawings, and it has only seen photographs: {right}{took}."


def _next(folder: Path, pictures: "list[str] | tuple[str, ...]", shown: "Shown") -> list[str]:
    import shlex

    ms = (shown.reading_ms or 0.0) + shown.deadlines_ms[len(shown.deadlines_ms) // 2]
    words = shlex.join([str(folder), *(pictures or [str(folder / "images")])])
    small = shown.ladder.rows[0].point
    return [
        f"supple predict {words} --deadline-ms {round(ms, 1):g}",
        f"supple bench {shlex.quote(str(folder))} --batch 1,16",
        f"supple extract {shlex.quote(str(folder))} --point {small} --out {shlex.quote(f'{folder}-small')}",
        "supple demo --train",
    ]


# --- a training ---
def train_demo(out: Path, quiet: bool = False) -> dict[str, Any]:
    """A small flexible model on the built-in digits, trained, measured, and used at three budgets."""
    import torch
    from PIL import Image

    from supple import checkpoint
    from supple.data.images import ImageSet
    from supple.inference.compare import time_model
    from supple.inference.result import Prediction
    from supple.inference.select import of_model
    from supple.machine import machine
    from supple.recipe import load_recipe
    from supple.reporting import write_report
    from supple.text import duration, macs, table
    from supple.training.build import load_data
    from supple.training.loop import train

    began = time.monotonic()
    recipe = load_recipe("pocket/digits.yaml")
    folder = _free(out, resume=True)
    show = (lambda *words: None) if quiet else print
    show(f"Training a small flexible model on handwritten digits, into {folder} ...")
    train(recipe, folder, quiet=quiet, resume=folder.exists())

    model = checkpoint.load(folder)
    threads = torch.get_num_threads()
    time_model(model, batch=1, threads=threads, rounds=60, seconds=10)
    checkpoint.save_ladder(folder, model.ladder)
    write_report(folder)
    show(f"\nOne checkpoint, {len(model.points)} operating points (batch 1, {machine()}):\n\n{model.ladder}\n")

    test = load_data(recipe).test
    assert isinstance(test, ImageSet)
    files = [folder / "images" / f"digit-{model.classes[int(test.targets[i])]}-{i}.png" for i in range(3)]
    (folder / "images").mkdir(exist_ok=True)
    for i, file in enumerate(files):
        Image.fromarray(test.raw(i)[0].numpy()).save(file)
    costs = [row.macs or 0 for row in model.ladder.rows]
    budgets = (costs[0], (costs[0] + costs[-1]) // 2, costs[-1])
    predictor = of_model(model, threads)
    rows, predictions = [], []
    for budget, file in itertools.product(budgets, files):
        answer = predictor.predict(file, budget_macs=budget)
        assert isinstance(answer, Prediction)
        sure = f"{100 * (answer.best_score or 0):.1f}"
        rows.append((macs(budget), file.name, answer.label, sure, answer.point, f"{answer.elapsed_ms:.1f}"))
        predictions.append({"budget_macs": budget, **answer.to_json()})
    show(table(("budget", "image", "label", "confidence %", "point", "ms"), rows, left=(0, 1, 4)))
    seconds = time.monotonic() - began
    show(f"\nDone in {duration(seconds)}. Look at {folder / 'report.html'} and {folder / 'curve.png'}, or try:")
    commands = [
        f"supple predict {folder} {folder / 'images'} --deadline-ms 5",
        f"supple bench {folder} --batch 1,16",
        f"supple extract {folder} --point exit=2 --out {folder}-exit2",
    ]
    show("\n".join(f"  {command}" for command in commands))
    return {
        "run": str(folder),
        "seconds": round(seconds, 1),
        **model.ladder.to_json(),
        "predictions": predictions,
        "next": commands,
    }


def _free(out: Path, resume: bool = False) -> Path:
    """The first of runs/demo, runs/demo-2, runs/demo-3, ... that is free. resume: or holds a training that was
    interrupted."""
    from supple.checkpoint import MANIFEST, RECIPE

    names = itertools.chain([out], (out.with_name(f"{out.name}-{i}") for i in itertools.count(2)))
    return next(
        path
        for path in names
        if not path.exists() or (resume and (path / RECIPE).is_file() and not (path / MANIFEST).exists())
    )
