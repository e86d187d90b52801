from typing import Annotated

import typer

from supple.cli.common import Json, print_json


def list_(
    recipes: Annotated[
        bool, typer.Option("--recipes", help="Only the recipes, with what their first line says.")
    ] = False,
    json: Json = False,
) -> None:
    """The names a recipe can use, and the recipes that come with supple."""
    from supple.recipe import options, recipe_folders
    from supple.text import table

    found = {
        str(path.relative_to(folder.parent)): path.read_text().split("\n", 1)[0].lstrip("# ")
        for folder in recipe_folders()[:1]
        for path in sorted(folder.rglob("*.yaml"))
    }
    document: dict[str, object] = {"recipes": found}
    if not recipes:
        from supple.backbones import BACKBONES
        from supple.data import DATASETS
        from supple.losses import OBJECTIVES
        from supple.methods import METHODS
        from supple.sampling import SAMPLERS

        settings = {
            section: {name: list(options(target).model_fields) for name, target in registry.items()}
            for section, registry in (("backbones", BACKBONES), ("methods", METHODS), ("losses", OBJECTIVES))
        }
        document = {**settings, "data": list(DATASETS), "sampling": list(SAMPLERS), **document}
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
