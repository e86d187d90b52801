import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Changes, Json, Points, Run, must_be_run, points_of, print_json
from supple.errors import RecipeError
from supple.text import say

if TYPE_CHECKING:
    from supple.analysis.finding import Subject

# Of test images: how many are drawn where --images does not say it (None: all), and how many are needed.
IMAGES = {"shuffle": (1000, 20), "dense": (256, 1), "skip": (None, 1)}


def analyse(
    run: Run,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="A folder for pictures and data; default: RUN/analysis.")] = None,
    images: Annotated[int | None, typer.Option(help="Test images; default: 1000 (shuffle), 256 (dense), all.")] = None,
    layer: Annotated[int | None, typer.Option(help="shuffle: whose outputs to project; default: the middle.")] = None,
    orders: Annotated[int | None, typer.Option(help="shuffle: random orders that the images share; 50.")] = None,
    base: Annotated[Path | None, typer.Option(help="shuffle: another run, drawn beside this one.")] = None,
    point: Points = None,
    json: Json = False,
) -> None:
    """shuffle: what layers give and add in other positions. dense: what each layer reads. skip: which layers run."""
    from supple.analysis import ANALYSES
    from supple.files import write
    from supple.progress import counting

    method = _method(must_be_run(run), changes)
    _must_apply(method, {"--layer": layer, "--orders": orders, "--base": base}, "shuffle")
    _must_apply(method, {"--point": point}, "skip")
    subject = _subject(run, changes, method, images)
    options: dict[str, Any] = {}
    total = len(subject.indices)
    if method == "shuffle":
        options = {"layer": layer, "orders": orders}
        if base is not None:
            options["base"] = _beside(subject, base, changes, images)
            total += len(options["base"].indices)
    elif method == "skip":
        options = {"points": points_of(subject.model, point)}
    folder = out if out is not None else run / "analysis"
    with _writable(folder), counting(total, "analysing", quiet=json) as on_progress:
        found = ANALYSES[method](subject, **options, on_progress=on_progress)
    if found.facts.get("projection") == "PCA":
        say("umap-learn is not installed, so this is PCA. For UMAP: pip install 'supple[analysis]'")
    files = [write(folder / name, content) for name, content in found.files.items()]
    facts = {"run": str(run), "method": method, **found.facts}
    files.append(write(folder / "analysis.json", _as_json(facts)))
    if json:
        print_json({**facts, "files": [str(path) for path in files]})
    else:
        print(f"{found.text}\n({found.facts['images']} test images)\n")
        print("\n".join(map(str, files)))


def _method(run: Path, changes: list[str] | None) -> str:
    from supple.analysis import ANALYSES
    from supple.cli.common import recipe_of

    method = str(recipe_of(run, changes).method["name"])
    if method not in ANALYSES:
        cure = f"Methods that can be analysed: {', '.join(sorted(ANALYSES))}."
        raise RecipeError(f"{run} is a run of method {method}, which cannot be analysed.", cure)
    return method


def _must_apply(method: str, given: dict[str, object], wanted: str) -> None:
    for option, value in given.items():
        if value is not None and method != wanted:
            cause = f"{option} is for runs of method {wanted}, and this is one of method {method}."
            raise RecipeError(cause, f"Leave {option} out.")


def _subject(run: Path, changes: list[str] | None, method: str, images: int | None) -> "Subject":
    from supple.analysis.finding import Subject, choose
    from supple.cli.common import model_of, splits_for

    model = model_of(run, changes)
    test = splits_for(run, model, changes).test
    usual, least = IMAGES[method]
    return Subject(str(run), model, test, choose(test, images, usual, least))


def _beside(subject: "Subject", base: Path, changes: list[str] | None, images: int | None) -> "Subject":
    """The other run; pictures side by side should be of the same images."""
    method = _method(must_be_run(base), changes)
    if method != "shuffle":
        raise RecipeError(f"--base {base} is a run of method {method}.", "Name a run of method shuffle.")
    other = _subject(base, changes, "shuffle", images)
    if other.model.classes != subject.model.classes:
        cure = "Name a run that was trained on the same data."
        raise RecipeError(f"--base {base} knows other classes than {subject.name}.", cure)
    return other


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
