from pathlib import Path
from typing import Annotated

import typer

from supple.cli.common import Json, print_json


def demo(
    out: Annotated[Path, typer.Option(help="The run folder; a number is added if it exists.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """Takes under 90 seconds on two cores, needs no download."""
    from supple.cli._demo import run_demo

    document = run_demo(out, quiet=json)
    if json:
        print_json(document)
