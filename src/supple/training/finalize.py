"""The end of a training: the best epoch's weights, settled, scored on the test images, written as a run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supple import checkpoint
from supple.cost import profile
from supple.data.loaders import as_batches
from supple.model import FlexibleModel
from supple.point import Point
from supple.recipe import Recipe, Train
from supple.scoring import evaluate
from supple.text import say, some
from supple.training.state import BEST, TrainState

SETTLED_ON = 4096  # images


def finalize(
    recipe: Recipe, folder: Path, model: FlexibleModel, train: Any, val: Any, test: Any, state: TrainState, quiet: bool
) -> None:
    """Takes the best epoch's weights, settles, scores the test samples, and writes the run folder."""
    checkpoint.fill(model, checkpoint.read_tensors(folder / BEST), folder / BEST)
    settle(model, train, val, settled_points(recipe.train), recipe.train.seed)
    facts = {"seconds": round(state.seconds, 1), "epoch": state.best_epoch, "epochs": state.epoch}
    score_and_save(recipe, folder, model, test, facts)
    shutil.rmtree(folder / checkpoint.STATE, ignore_errors=True)
    if not quiet:
        kind = "sample" if model.preprocess is None else model.preprocess.kind
        tested = some(model.ladder.rows[0].n or 0, f"{'validation' if test is val else 'test'} {kind}")
        kept = "last" if recipe.train.select == "last" else "best"
        say(f"{folder}: {kept} epoch {state.best_epoch}/{state.epoch}; scores on {tested}")


def settled_points(settings: Train) -> list[Point]:
    return [Point.parse(text) for text in settings.settle]


def settle(model: FlexibleModel, train: Any, val: Any, points: list[Point], seed: int) -> None:
    """Settles a model on some training or validation images, as it wants. Training images are augmented as they were
    when its weights learnt: these expect the statistics of such images, also where they answer for others.
    """
    held = model.settles_on == "validation"
    data = as_batches(val if held else train)
    model.settle(data.drawn(SETTLED_ON, 256, seed, augmented=not held), points)


def score_and_save(
    recipe: Recipe,
    folder: Path,
    model: FlexibleModel,
    test: Any,
    facts: dict[str, Any],
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Scores every point on the test samples and writes weights, manifest, ladder and report."""
    from supple.reporting import write_report

    ladder = checkpoint.load_ladder(folder).where(precision="fp32")  # bf16 was scored for other weights
    for row in profile(model):
        ladder.update(row.point, **row.counts())
    for score in evaluate(model, test, on_progress=on_progress):
        ladder.update(score.name, **score.facts())
    kept = ("seconds", "epoch", "epochs", "merged")
    checkpoint.save(folder, model, recipe, {key: facts[key] for key in kept if key in facts})
    checkpoint.save_ladder(folder, ladder)
    model.ladder = ladder
    write_report(folder)
