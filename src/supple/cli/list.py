from typing import TYPE_CHECKING, Annotated

import typer

from supple.cli.common import Json, print_json
from supple.errors import RecipeError

if TYPE_CHECKING:
    from torch import nn

    from supple.model import Shape


def list_(
    recipes: Annotated[bool, typer.Option("--recipes", help="Only the recipes, with their first line.")] = False,
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
        return
    from supple.recipe import data_options, options, recipe_folders
    from supple.text import table

    found = {
        str(path.relative_to(folder.parent)): path.read_text().split("\n", 1)[0].lstrip("# ")
        for folder in recipe_folders()[:1]
        for path in sorted(folder.rglob("*.yaml"))
    }
    document: dict[str, object] = {"recipes": found}
    if not recipes:
        from supple.backbones import BACKBONES
        from supple.data.registry import DATASETS
        from supple.losses import OBJECTIVES
        from supple.methods import METHODS
        from supple.methods.branches import BRANCHES
        from supple.sampling import SAMPLERS

        settings = {
            section: {name: list(options(target).model_fields) for name, target in registry.items()}
            for section, registry in (
                ("backbones", BACKBONES),
                ("methods", METHODS),
                ("branches", BRANCHES),
                ("losses", OBJECTIVES),
            )
        }
        data = {name: list(data_options(name, entry.settings()).model_fields) for name, entry in DATASETS.items()}
        document = {**settings, "data": data, "sampling": list(SAMPLERS), **document}
    if json:
        print_json(document)
        return
    for section, names in document.items():
        print(section)
        if isinstance(names, dict):
            rows = [(f"  {name}", text if isinstance(text, str) else ", ".join(text)) for name, text in names.items()]
            print(table(("", ""), rows, left=(0, 1)).strip("\n"))
        else:
            print("  " + "  ".join(names))  # type: ignore[arg-type]
        print()


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
