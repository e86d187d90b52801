import itertools
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from supple.cli.common import Json, print_json


def demo(
    out: Annotated[Path, typer.Option(help="The run folder; a number is added if it exists.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """Takes under 90 seconds on two cores, needs no download."""
    document = run_demo(out, quiet=json)
    if json:
        print_json(document)


def run_demo(out: Path, quiet: bool = False) -> dict[str, Any]:
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
    folder = _free(out)
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


def _free(out: Path) -> Path:
    """The first of runs/demo, runs/demo-2, runs/demo-3, ... that is free, or holds a demo that was interrupted."""
    from supple.checkpoint import MANIFEST, RECIPE

    names = itertools.chain([out], (out.with_name(f"{out.name}-{i}") for i in itertools.count(2)))
    return next(
        path for path in names if not path.exists() or ((path / RECIPE).is_file() and not (path / MANIFEST).exists())
    )
