"""The demo: a small flexible model on the built-in digits, trained, measured, and used at three budgets."""

import itertools
import time
from pathlib import Path
from typing import Any

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


def run_demo(out: Path, quiet: bool = False) -> dict[str, Any]:
    began = time.monotonic()
    recipe = load_recipe("pocket/digits.yaml")
    folder = next(path for path in _names(out) if not path.exists() or _is_unfinished(path))
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
    files = []
    for i in range(3):
        file = folder / "images" / f"digit-{model.classes[int(test.targets[i])]}-{i}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(test.raw(i)[0].numpy()).save(file)
        files.append(file)
    costs = [row.macs or 0 for row in model.ladder.rows]
    budgets = (costs[0], (costs[0] + costs[-1]) // 2, costs[-1])
    predictor = of_model(model, threads)
    answers = [(budget, predictor.predict(file, budget_macs=budget)) for budget in budgets for file in files]
    rows = [
        (
            macs(budget),
            Path(str(a.file)).name,
            a.label,
            f"{100 * (a.best_score or 0):.1f}",
            a.point,
            f"{a.elapsed_ms:.1f}",
        )
        for budget, a in answers
        if isinstance(a, Prediction)
    ]
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
        "predictions": [{"budget_macs": budget, **a.to_json()} for budget, a in answers if isinstance(a, Prediction)],
        "next": commands,
    }


def _is_unfinished(folder: Path) -> bool:
    """An earlier demo that was interrupted: it goes on."""
    return (folder / checkpoint.RECIPE).is_file() and not (folder / checkpoint.MANIFEST).exists()


def _names(out: Path) -> Any:
    """runs/demo, runs/demo-2, runs/demo-3, ..."""
    return itertools.chain([out], (out.with_name(f"{out.name}-{i}") for i in itertools.count(2)))
