from pathlib import Path
from typing import Annotated, Any

import typer

from supple.cli.common import Changes, Json, print_json
from supple.errors import RecipeError
from supple.text import say


def train(
    target: Annotated[str, typer.Argument(help="Pictures (folder, zip, .csv), a recipe, or a run.")],
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; default: runs/<name of the recipe>.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Pictures: the time to train for; 0: no limit.")] = None,
    network: Annotated[str | None, typer.Option(help="Pictures: a network of timm or torchvision.")] = None,
    weights: Annotated[str | None, typer.Option(help="Pictures: a file of weights to start from.")] = None,
    method: Annotated[str | None, typer.Option(help="Pictures: another way to flex than exits.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the newest valid state in the folder.")] = False,
    settle: Annotated[list[str] | None, typer.Option(help="Settle a further point of a run: width=0.3.")] = None,
    search: Annotated[bool, typer.Option("--search", help="Try SL-ViT branches of many sizes.")] = False,
    search_d: Annotated[str, typer.Option(help="For it: embedding sizes.")] = "16,24,32,48",
    search_heads: Annotated[str, typer.Option(help="For it: numbers of heads.")] = "1,4,12",
    json: Json = False,
) -> None:
    """Progress goes to stderr, figures per epoch to metrics.jsonl. Ctrl-C once: finish the step, save, stop."""
    from supple import checkpoint
    from supple.opening import is_run, must_be_run
    from supple.training.propose import PROPOSED, is_pictures

    if not target:
        raise RecipeError("the name of the pictures, the recipe or the run is empty.", "Give a path.")
    given_run = is_run(target) and not is_pictures(target)
    if out is not None and (settle or given_run):
        raise RecipeError(f"--out does not go with the run {target}: it is changed where it is.", "Leave --out out.")
    if search:
        if is_run(target):
            raise RecipeError(f"--search needs a recipe, not {target}.", "Give the recipe.")
        _search(target, changes, out, search_d, search_heads, json)
        return
    if settle:
        if not given_run:
            raise RecipeError(f"--settle needs a run folder, not {target}.", "Use train.settle in a recipe instead.")
        folder = must_be_run(target)
        _settle(folder, settle, changes)
    else:
        from supple.training.processes import is_main

        asked = {"minutes": minutes, "network": network, "weights": weights, "method": method}
        asked = {name: value for name, value in asked.items() if value is not None}
        folder = _trained(target, changes or [], out, resume, json, asked)
        if not is_main():
            return  # one of several processes: the first one tells
    ladder = checkpoint.load_ladder(folder)
    if json:
        print_json({"run": str(folder), **ladder.to_json()})
    else:
        print(f"\n{ladder}\n\n{folder / 'report.html'}")
        if (folder / PROPOSED).is_file():
            say(f"Next: supple predict {folder} PICTURE; supple export {folder}; supple bench {folder}")


def _trained(
    target: str, changes: list[str], out: Path | None, resume: bool, quiet: bool, asked: dict[str, Any]
) -> Path:
    """Trains pictures, a recipe, or what was left of a training; gives the run folder."""
    from supple.opening import is_run, must_be_run
    from supple.recipe import load_recipe
    from supple.training.loop import train as run
    from supple.training.propose import is_pictures, train_pictures

    folder = out or Path("runs") / (Path(target).stem or "pictures")
    if is_pictures(target):
        return train_pictures(target, folder, changes, resume=resume, quiet=quiet, **asked)
    if asked:
        if not is_run(target):
            _must_be_recipe(target)
        cause = f"--{next(iter(asked))} is for pictures, but {target} is {'a run' if is_run(target) else 'a recipe'}."
        raise RecipeError(
            cause, "Give a folder of pictures, or change the recipe: train.epochs=3, backbone.model=NAME."
        )
    if is_run(target):
        if not resume:
            cure = f"To resume an unfinished training: supple train {target} --resume."
            raise RecipeError(f"{target} is a run, not a recipe or pictures.", cure)
        if changes:
            raise RecipeError("a training goes on with the recipe it was started with.", "Leave the changes out.")
        return run(None, Path(target), resume=True, quiet=quiet)
    if resume and out is None and Path(target).suffix != ".yaml":
        must_be_run(target)
    _must_be_recipe(target)
    return run(load_recipe(target, changes), folder, resume=resume, quiet=quiet)


def _must_be_recipe(target: str) -> None:
    """What is no recipe either, and what was meant."""
    from supple.recipe import find_recipe
    from supple.text import nearest

    path = Path(target)
    kinds = "Give a folder of class folders, a .zip of one, a .csv of paths and labels, or a recipe (.yaml)."
    if path.is_file():
        with path.open("rb") as file:
            binary = b"\0" in file.read(1024)
        if binary:
            raise RecipeError(f"{target} is a file, but neither a recipe nor pictures.", kinds)
        return
    try:
        find_recipe(target)
    except RecipeError as error:
        if path.suffix == ".yaml" or len(path.name) > 200:
            raise
        _, equals, value = target.partition("=")
        close = nearest(path.name, [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else [])
        cure = f'Did you mean "{path.parent / close}"?' if close else error.cure if "Did" in error.cure else kinds
        if equals:
            cure = f"Give the path alone, then changes to the recipe: supple train {value} train.epochs=3."
        raise RecipeError(f'there is no recipe, run or pictures "{target}".', cure) from None


def _settle(folder: Path, texts: list[str], changes: list[str] | None) -> None:
    from supple import checkpoint
    from supple.point import Point
    from supple.training.build import load_data
    from supple.training.finalize import score_and_save, settle

    model = checkpoint.load(folder)
    recipe = checkpoint.read_recipe(folder)  # stays what it was trained with, wherever the images lie now
    splits = load_data(checkpoint.read_recipe(folder, changes or ()))
    settle(model, splits.train, splits.val, [Point.parse(text) for text in texts], recipe.train.seed)
    score_and_save(recipe, folder, model, splits.test, checkpoint.read_manifest(folder))


def _search(target: str, changes: list[str] | None, out: Path | None, d: str, heads: str, json: bool) -> None:
    from supple.cli.common import numbers
    from supple.recipe import load_recipe
    from supple.text import quantity, table
    from supple.training.branch_search import search

    folder = out or Path("runs") / f"{Path(target).stem}-search"
    sizes = tuple(numbers(d, "--search-d")), tuple(numbers(heads, "--search-heads"))
    found = search(load_recipe(target, changes or ()), folder, *sizes, quiet=json)
    if json:
        print_json({"folder": str(folder), "exits": [[vars(one) for one in exit_] for exit_ in found]})
        return
    rows = [
        (t.point, str(t.d), str(t.heads), quantity(t.params), f"{100 * t.score:.2f}") for exit_ in found for t in exit_
    ]
    print(table(("point", "d", "heads", "params", "validation %"), rows))
    best = ", ".join(f"{{name: sl_vit, d: {one[0].d}, heads: {one[0].heads}}}" for one in found if one)
    print(f"\nbest: method.branch=[{best}]")
