"""What several verbs share: their arguments, and how a result is printed."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.errors import RecipeError

if TYPE_CHECKING:
    from supple.surgery.ensemble import Accuracy

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Changes = Annotated[list[str] | None, typer.Argument(help="Changes to the recipe, such as train.epochs=3.")]
Run = Annotated[Path, typer.Argument(help="A run folder.")]
Target = Annotated[str, typer.Argument(help="A recipe or a run folder.")]
Device = Annotated[str | None, typer.Option(help="cpu (default), cuda, cuda:1, mps or auto.")]
RayAddress = Annotated[str | None, typer.Option(help="HOST:PORT of a cluster.", hidden=True)]
Points = Annotated[list[str] | None, typer.Option("--point", help="Only this point; may be given several times.")]


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))


def accuracies(found: "Iterable[Accuracy]") -> str:
    """Top-1 and top-5 of each order of layers, for people."""
    from supple.text import table

    def percent(share: float, deviation: float | None) -> str:
        return f"{100 * share:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")

    rows = [(a.order, percent(a.top1, a.top1_deviation), percent(a.top5, a.top5_deviation)) for a in found]
    return table(("layer order", "top-1 %", "top-5 %"), rows)


def numbers(text: str, option: str) -> list[int]:
    """`1,16` as whole numbers."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1 or max(values) > 4096:
        raise RecipeError(f'{option} is "{text}".', "Give whole numbers from 1 to 4096, joined by commas: 1,16.")
    return values


def loss_unit(metric: str | None) -> str:
    """Of what int8 and bf16 lose, times 100: shares lose percentage points, errors grow by a part of themselves."""
    from supple.tasks import get_metric

    return "points" if get_metric(metric).unit == "%" else "%"
