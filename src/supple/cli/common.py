"""What several verbs share: their arguments, opening a recipe or a run, printing a result."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.errors import CheckpointError, DataError, PointError, RecipeError
from supple.text import first

if TYPE_CHECKING:
    from supple.data.splits import Splits
    from supple.model import FlexibleModel
    from supple.point import Point
    from supple.recipe import Recipe
    from supple.surgery.ensemble import Accuracy

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
Changes = Annotated[list[str] | None, typer.Argument(help="Changes to the recipe, such as train.epochs=3.")]
Run = Annotated[Path, typer.Argument(help="A run folder.")]
Target = Annotated[str, typer.Argument(help="A recipe or a run folder.")]
Points = Annotated[list[str] | None, typer.Option("--point", help="Only this point; may be given several times.")]


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))


def is_run(target: str | Path) -> bool:
    return Path(target).is_dir()


def recipe_of(target: str | Path, changes: Iterable[str] | None = None) -> "Recipe":
    """The recipe in a file, or the resolved one of a run; with changes."""
    from supple.checkpoint import read_manifest
    from supple.recipe import load_recipe, make_recipe

    changes = list(changes or ())
    if is_run(target):
        if any(change.startswith("data.root=") for change in changes):
            changes += ["data.fingerprint=null", "data.classes=null"]  # other images, on purpose
        return make_recipe(read_manifest(Path(target))["recipe"], changes, f"{target}/manifest.json")
    return load_recipe(target, changes)


def model_of(target: str | Path, changes: Sequence[str] | None = None) -> "FlexibleModel":
    """A trained model from a run, or an untrained one without weights from a recipe."""
    from supple.checkpoint import load
    from supple.training.build import skeleton

    if not is_run(target):
        return skeleton(recipe_of(target, changes))
    only_data(target, changes)
    return load(target)


def points_of(model: "FlexibleModel", texts: Iterable[str] | None) -> "list[Point]":
    from supple.point import Point

    for text in texts or ():
        if text in model.groups:
            cure = "supple evaluate scores groups where no --point is given; train.sample may name one."
            raise PointError(f'"{text}" is a group of points, and no point.', cure)
    return model.order([Point.parse(text) for text in texts] if texts else (*model.points, *model.settled))


def only_data(target: str | Path, changes: Sequence[str] | None) -> None:
    """A finished run's model is what it is: only where its data lie may change."""
    for change in changes or ():
        if not change.startswith("data."):
            cure = "Only data.* can be changed for a finished run; train a new one for the rest."
            raise RecipeError(f'"{change}" does not apply to the run {target}.', cure)


def splits_for(run: str | Path, model: "FlexibleModel", changes: Iterable[str] | None) -> "Splits":
    """The data of a run, which may lie elsewhere now; their classes must be those that the run knows."""
    from supple.training.build import load_data

    splits = load_data(recipe_of(run, changes))
    if splits.test.classes != model.classes:
        cure = f"The run knows {len(model.classes)}: {first(model.classes)}."
        raise DataError(f"these data have other classes than the run: {first(splits.test.classes)}.", cure)
    return splits


def accuracies(found: "Iterable[Accuracy]") -> str:
    """Top-1 and top-5 of each order of layers, for people."""
    from supple.text import table

    def percent(share: float, deviation: float | None) -> str:
        return f"{100 * share:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")

    rows = [(a.order, percent(a.top1, a.top1_deviation), percent(a.top5, a.top5_deviation)) for a in found]
    return table(("layer order", "top-1 %", "top-5 %"), rows)


def check_out(out: Path) -> None:
    """What a verb writes needs a folder of its own."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} already exists and is not an empty folder.", "Choose a new folder with --out.")


def must_be_run(target: str | Path) -> Path:
    path = Path(target)
    if not path.is_dir():
        raise CheckpointError(f"there is no run folder {path}.", "Give the folder that supple train writes.")
    return path


def numbers(text: str, option: str) -> list[int]:
    """`1,16` as whole numbers."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1 or max(values) > 4096:
        raise RecipeError(f'{option} is "{text}".', "Give whole numbers from 1 to 4096, joined by commas: 1,16.")
    return values
