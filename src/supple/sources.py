"""Runs that are to answer together: opened, compared with one another, refused by name where they do not fit."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supple import checkpoint
from supple.errors import MergeError
from supple.model import FlexibleModel
from supple.recipe import Recipe, make_recipe


@dataclass(frozen=True)
class MergeInput:
    """One run that is to answer together with others."""

    name: str  # its folder
    recipe: Recipe
    model: FlexibleModel
    digest: str = ""  # of its weights


def open_merge_inputs(folders: Iterable[Path]) -> list[MergeInput]:
    """Opens run folders, each of which may be named only once."""
    folders = list(folders)
    places = [folder.resolve() for folder in folders]
    for place, folder in enumerate(folders):
        if places[place] in places[:place]:
            raise MergeError(f"the run {folder} is given twice.", "Give every run once.")
    return [_open(folder) for folder in folders]


def _open(folder: Path) -> MergeInput:
    model = checkpoint.load(folder)
    manifest = checkpoint.read_manifest(folder)
    return MergeInput(str(folder), make_recipe(manifest["recipe"]), model, manifest["files"][checkpoint.WEIGHTS])


def must_see_alike(merge_inputs: Sequence[MergeInput]) -> None:
    """Refuses runs that cannot answer the same images: other classes, input or preprocessing."""
    _must_agree(
        merge_inputs, [_seen(one) for one in merge_inputs], "Give runs that were trained with one data section."
    )


def must_be_alike(merge_inputs: Sequence[MergeInput]) -> None:
    """Refuses runs whose layers cannot change places with one another."""
    cure = "Give runs of one backbone and one method section; they may differ in train and loss."
    _must_agree(merge_inputs, [_built(one) for one in merge_inputs], cure)
    must_see_alike(merge_inputs)


def _must_agree(merge_inputs: Sequence[MergeInput], facts: Sequence[dict[str, Any]], cure: str) -> None:
    for one, own in zip(merge_inputs, facts):
        for key, wanted in facts[0].items():
            if own[key] != wanted:
                cause = f"{one.name} does not fit {merge_inputs[0].name}: its {key} is {_short(own[key])}"
                raise MergeError(f"{cause}, not {_short(wanted)}.", cure)


def _built(one: MergeInput) -> dict[str, Any]:
    """What decides the weights' names and shapes, name first: where names agree, so do the keys."""
    sections = {"backbone": one.recipe.backbone, "method": one.recipe.method}
    return {f"{section}.{key}": value for section, settings in sections.items() for key, value in settings.items()}


def _seen(one: MergeInput) -> dict[str, Any]:
    model = one.model
    prepared = model.preprocess.to_json() if model.preprocess is not None else {}
    return {
        "number of classes": len(model.classes),
        **{f"class {place}": name for place, name in enumerate(model.classes, 1)},
        "input shape": model.input_shape,
        **{f"data.{key}": prepared.get(key) for key in ("size", "channels", "mean", "std", "spectrogram")},
    }


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def doubt(merge_inputs: Sequence[MergeInput]) -> str | None:
    """A warning if the runs were not refined from one base run, without which their layers rarely work together."""
    starts = [one.recipe.train.init for one in merge_inputs]
    begun = {os.path.realpath(start): os.path.normpath(start) for start in starts if start}
    bases: dict[str, list[str]] = {}
    for one, start in zip(merge_inputs, starts):
        own = os.path.realpath(one.name)
        base = own if own in begun or not start else os.path.realpath(start)  # a base fits what was refined from it
        bases.setdefault(begun.get(base, "random weights"), []).append(one.name)
    if len(bases) == 1 and "random weights" not in bases:
        return None
    told = "; ".join(f"{', '.join(names)} from {base}" for base, names in bases.items())
    return f"warning: these runs do not come from one base run (train.init), so their layers may not fit: {told}"
