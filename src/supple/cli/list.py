from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Json, print_json
from supple.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from supple.model import Shape


def list_(
    words: Annotated[list[str] | None, typer.Argument(help="Only what has these words in its line.")] = None,
    recipes: Annotated[bool, typer.Option("--recipes", help="Only the recipes, all of them.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Every key of a recipe, as docs/reference.md.")] = False,
    cuts: Annotated[
        str | None,
        typer.Option("--cuts", help="Where a network can be cut: a timm name, a recipe or a run."),
    ] = None,
    size: Annotated[int | None, typer.Option(help="With --cuts: pixels of the images.", min=1, max=8192)] = None,
    depth: Annotated[int, typer.Option(help="With --cuts: how deep to list; 9 lists every layer.", min=1)] = 2,
    json: Json = False,
) -> None:
    """The names a recipe can use, the recipes that come with supple, and where a network can be cut."""
    if cuts is not None:
        show_cuts(cuts, size, depth, json)
    elif keys:
        show_keys(json)
    elif json:
        print_json(_document(recipes, words or []))
    else:
        _show({**({} if recipes else names()), **recipe_lines()}, words or [], short=not recipes and not words)


def show_keys(json: bool) -> None:
    from supple.cli.reference import page, reference

    if json:
        print_json(
            {s: [{**e._asdict(), "keys": [k._asdict() for k in e.keys]} for e in v] for s, v in reference().items()}
        )
    else:
        print(page())


def names() -> dict[str, dict[str, str]]:
    """What a recipe can name, by section, each with a sentence."""
    from supple.cli.reference import summary
    from supple.data.registry import DATASETS
    from supple.sampling import SAMPLERS

    found = {title: {name: summary(made) for name, made in made.items()} for title, made in _registries().items()}
    found["data sets"] = {name: summary(entry.read) for name, entry in DATASETS.items()}
    found["sampling"] = {name: summary(sampler) for name, sampler in SAMPLERS.items()}
    return found


def _registries() -> "dict[str, Mapping[str, Callable[..., Any]]]":
    from supple.backbones import BACKBONES
    from supple.losses import OBJECTIVES
    from supple.methods import METHODS
    from supple.methods.branches import BRANCHES

    return {"backbones": BACKBONES, "methods": METHODS, "branches": BRANCHES, "losses": OBJECTIVES}


def recipe_lines() -> dict[str, dict[str, str]]:
    """The recipes that come with supple, by folder, each with its first line."""
    from supple.recipe import EXPERIMENTS, recipe_folders

    found: dict[str, dict[str, str]] = {}
    for root in recipe_folders()[:1]:
        for path in sorted(root.rglob("*.yaml")):
            if path.parent.name == EXPERIMENTS:
                continue  # trainings of many recipes: supple reproduce lists them
            name = path.relative_to(root.parent)
            first = path.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")
            found.setdefault(str(name.parent), {})[str(name)] = first
    return found


def _document(recipes: bool, words: list[str]) -> dict[str, Any]:
    """All of it: the settings of whatever has settings, the recipes with their first lines."""
    found = {name: line for group in recipe_lines().values() for name, line in group.items()}
    document: dict[str, Any] = {"recipes": {n: line for n, line in found.items() if _fits(words, n, line)}}
    if recipes:
        return document
    from supple.data.registry import DATASETS
    from supple.recipe import data_options, options

    lines = names()
    settings: dict[str, Any] = {
        section: {name: list(options(made).model_fields) for name, made in registry.items()}
        for section, registry in _registries().items()
    }
    settings["data"] = {n: list(data_options(n, entry.settings()).model_fields) for n, entry in DATASETS.items()}
    lines["data"] = lines.pop("data sets")
    for section, entries in settings.items():
        settings[section] = {n: own for n, own in entries.items() if _fits(words, n, lines[section][n])}
    sampling = [name for name, line in lines["sampling"].items() if _fits(words, name, line)]
    return {**settings, "sampling": sampling, **document}


def _fits(words: list[str], name: str, line: str) -> bool:
    text = f"{name} {line}".lower()
    return all(word.lower() in text for word in words)


def _show(groups: dict[str, dict[str, str]], words: list[str], short: bool) -> None:
    """A line for each entry that fits. short: of the recipes, one for each folder."""
    from supple.text import cut, some, width

    chosen = {t: {n: line for n, line in entries.items() if _fits(words, n, line)} for t, entries in groups.items()}
    chosen = {title: entries for title, entries in chosen.items() if entries}
    if not chosen:
        wanted = " ".join(words)
        raise RecipeError(f'nothing here has "{wanted}" in its line.', "See supple list, and supple list --recipes.")
    if short:
        folders = {title: entries for title, entries in chosen.items() if title.startswith("recipes")}
        chosen = {title: entries for title, entries in chosen.items() if title not in folders}
        chosen["recipes"] = {title: some(len(entries), "recipe") for title, entries in folders.items()}
    for title, entries in chosen.items():
        column = max(map(len, entries))
        print(title)
        for name, line in entries.items():
            print(cut(f"  {name:<{column}}  {line}".rstrip(), width()))
        print()
    if short:
        print("supple list WORD: what has this word. supple list --recipes WORD: recipes.")
        print("supple list --keys: every key of a recipe.")


def show_cuts(target: str, size: int | None, depth: int, json: bool) -> None:
    """Every place with the tensor there and the share of the network's MACs before it."""
    from supple.backbones._cut.cut_points import cuts
    from supple.text import table

    network, shape = network_of(target, size)
    found = cuts(network, shape, depth)
    if json:
        rows = [{"name": p.name, "tap": str(p.tap), "share": p.share} for p in found]
        print_json({"network": target, "input_shape": shape, "cuts": rows})
        return
    print(
        table(
            ("cut after", "MACs before, %", "tensor"),
            [(p.name, f"{100 * p.share:.1f}", str(p.tap)) for p in found],
            left=(0, 2),
        )
    )
    parts = [shape] if isinstance(shape[0], int) else shape
    print(f"(input {' and '.join('x'.join(map(str, part)) for part in parts)}; --depth {depth + 1} shows more)")


def network_of(target: str, size: int | None) -> "tuple[nn.Module, Shape]":
    """A network without weights, and the shape of its input: that of a recipe or a run, or one of timm."""
    import timm
    import torch

    from supple.backbones import BACKBONES
    from supple.backbones.networks import timm_network
    from supple.opening import is_run, recipe_of
    from supple.training.build import network_skeleton

    if is_run(target) or target.endswith(".yaml"):
        changes = [f"data.size={size}"] if size else []
        return network_skeleton(recipe_of(target, changes))
    if target in BACKBONES and not timm.is_model(target):
        cause = f"{target} has no fixed size: a recipe sets it."
        raise RecipeError(cause, "Name a recipe that uses it: supple list --cuts RECIPE.yaml.")
    name = target.partition(".")[0]
    facts = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    shape = (3, size, size) if size else tuple(facts.input_size) if facts else (3, 224, 224)
    with torch.device("meta"):
        return timm_network(num_classes=1000, input_shape=shape, model=target), shape
