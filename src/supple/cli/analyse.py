import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from supple.cli.common import Changes, Json, Points, Run, print_json
from supple.errors import RecipeError
from supple.text import say


def analyse(
    run: Run,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="A folder for pictures and data; default: RUN/analysis.")] = None,
    images: Annotated[int | None, typer.Option(help="Test images; default: 1000 (shuffle), 256 (dense), all.")] = None,
    layer: Annotated[
        int | None, typer.Option(help="shuffle: project this layer's outputs; default: the middle.")
    ] = None,
    orders: Annotated[int | None, typer.Option(help="shuffle: number of random orders; default: 50.")] = None,
    base: Annotated[Path | None, typer.Option(help="shuffle: a second run to compare with.")] = None,
    point: Points = None,
    json: Json = False,
) -> None:
    """shuffle: outputs and contributions by position. dense: what each layer reads. skip: which layers run."""
    from supple import api
    from supple.files import write
    from supple.opening import must_be_run

    folder = out if out is not None else must_be_run(run) / "analysis"
    how: dict[str, Any] = {"images": images, "layer": layer, "orders": orders, "base": base, "points": point or None}
    with _writable(folder):
        found = api.analyse(run, changes=changes or (), **how, progress=not json)
    if found.facts.get("projection") == "PCA":
        say("umap-learn is not installed, so this is PCA. For UMAP: pip install 'supple[analysis]'")
    files = [write(folder / name, content) for name, content in found.files.items()]
    facts = {"run": str(run), **found.facts}
    files.append(write(folder / "analysis.json", _as_json(facts)))
    if json:
        print_json({**facts, "files": [str(path) for path in files]})
    else:
        print(f"{found.text}\n({found.facts['images']} test images)\n")
        print("\n".join(map(str, files)))


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """The folder, made where it is missing: better to know before than after the work. If that fails, it goes again."""
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RecipeError(f"{folder} cannot be written: {error.strerror}.", "Choose another folder: --out.") from None
    try:
        yield
    except BaseException:
        if fresh:
            folder.rmdir()
        raise


def _as_json(document: dict[str, Any]) -> str:
    import json

    return json.dumps(document, indent=1, allow_nan=False)
