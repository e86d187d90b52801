"""Run folders: weights, manifest, ladder, policy, and the state to resume from.

Nothing is ever unpickled. Writes go to a temporary file, are synced and renamed; what is read is checked against the
sha256 in the manifest, which is written last: a folder without one is a run that has not finished.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supple import files
from supple.errors import IMPORTED, CheckpointError, PointError, RecipeError, import_cure
from supple.files import as_bytes, as_shape, sha256, staged, write
from supple.ladder import Ladder
from supple.machine import versions
from supple.model import FlexibleModel
from supple.networks import located
from supple.point import AnyPoint, Point
from supple.policy.policy import POLICY, Policy, run_policy
from supple.recipe import Recipe, make_recipe

FORMAT = 3
WEIGHTS, MANIFEST, LADDER = "model.safetensors", "manifest.json", "ladder.json"
METRICS, RECIPE, STATE = "metrics.jsonl", "recipe.yaml", "state"


def read_json(path: Path) -> dict[str, Any]:
    return files.read_json(path, "Restore it, or train again.", _what_a_run_is(path.parent))


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return files.read_tensors(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing.", _what_a_run_is(path.parent)) from None


def _what_a_run_is(folder: Path) -> str:
    if (folder / STATE).is_dir():
        again = f"supple train {folder} --resume, or the same call of supple.fit with resume=True"
        return f"This training has not finished. Resume it: {again}."
    return "A run is the folder that supple train writes."


# --- runs -------------------------------------------------------------------------------------------------------------


def save(folder: Path, model: FlexibleModel, recipe: Recipe | None = None, facts: dict[str, Any] | None = None) -> None:
    """Writes the weights and the manifest that has their digest; neither is in place before both are on the disk.

    recipe: how the model was made; None: as the model says itself.
    """
    manifest = {
        "format": FORMAT,
        "recipe": (recipe or recipe_of_model(model)).resolved(),
        "task": model.task,
        "classes": list(model.classes),
        "input_shape": list(model.input_shape or ()),
        "preprocess": model.preprocess.to_json() if model.preprocess is not None else None,
        "points": [str(point) for point in model.points],
        "settled": [str(point) for point in model.settled],
        "versions": versions(),
        "imports": [*IMPORTED],
        **(facts or {}),
    }
    with staged(folder / WEIGHTS, weights_of(model)) as weights:
        manifest["files"] = {WEIGHTS: sha256(weights)}
        with staged(folder / MANIFEST, json.dumps(manifest, indent=1)) as about:
            weights.replace(folder / WEIGHTS)
            about.replace(folder / MANIFEST)


def save_new(folder: Path, model: FlexibleModel) -> Path:
    """A model as a new run, with what was measured of it."""
    check_out(folder)
    save(folder, model)
    save_ladder(folder, model.ladder)
    if model.policy is not None:
        save_policy(folder, model.policy)
    return folder


def check_out(out: Path) -> None:
    """What is written needs a folder of its own."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} already exists and is not an empty folder.", "Choose a new folder (--out).")
    above = next((folder for folder in out.absolute().parents if folder.is_file()), None)
    if above is not None:
        raise CheckpointError(f"{out} cannot be made: {above} is a file.", "Choose a new folder (--out).")


def weights_of(model: FlexibleModel) -> dict[str, Tensor]:
    """On the CPU. Of tied weights, which safetensors does not know, each has a copy."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict().items():
        tensor = value.detach().cpu().contiguous()
        found[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return found


def digest(model: FlexibleModel) -> str:
    """The sha256 that the file of its weights has, or would have."""
    return hashlib.sha256(as_bytes(weights_of(model))).hexdigest()


def recipe_of_model(model: FlexibleModel, **sections: Any) -> Recipe:
    """The recipe of a model: that of its training or, with new sections, what it says of itself; what has no name is
    left empty."""
    if model.recipe is not None and not sections:
        return model.recipe
    known = {"data": {}, "backbone": model.backbone_spec or {}, "method": model.method_spec or {}}
    return make_recipe({**known, **sections}, where="the model", partial=True)


def load(folder: str | PathLike[str], factory: Callable[[], FlexibleModel] | None = None) -> FlexibleModel:
    """Opens a run folder, or a network that comes with supple by its name: the model in eval mode, with its ladder,
    policy, class names and preprocessing. It computes in fp32; weights that are stored in fp16 keep their values.

    factory: builds the same model untrained. It is needed where the run does not know how, which is so for networks
    that have no name.
    """
    from supple.data.preprocess import saved_preprocess

    folder = Path(located(folder))
    manifest = read_manifest(folder)
    digest = sha256(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else None
    if digest is not None and digest != manifest["files"].get(WEIGHTS):
        cure = "The file was altered or truncated since it was saved. Restore it, or train again."
        raise CheckpointError(f"{folder / WEIGHTS} does not match its digest in {MANIFEST}.", cure)
    tensors = read_tensors(folder / WEIGHTS)
    try:
        recipe = read_recipe(folder)
        shape, classes = as_shape(manifest["input_shape"]), tuple(manifest["classes"])
        model = _untrained(folder, recipe, len(classes), shape) if factory is None else factory()
        model.input_shape, model.recipe = shape, recipe
        if factory is not None and model.publishes:
            model.publish(map(Point.parse, manifest["points"]))
        model.add_points(Point.parse(text) for text in manifest["settled"])
        model.classes, model.task = classes, manifest["task"]
        saved = manifest["preprocess"]
        model.preprocess = None if saved is None else saved_preprocess(model.task, saved)
    except (RecipeError, PointError) as error:
        if not set(manifest.get("imports", ())) - {*sys.modules}:
            raise
        raise CheckpointError(f"{folder / MANIFEST}: {error.cause}", import_cure(manifest)) from None
    except (LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is incomplete: {error}.", "Restore it, or train again.") from None
    built = "" if factory is None else "The factory builds another network than the one that was saved."
    fill(model, tensors, folder / WEIGHTS, built)
    model.ladder = load_ladder(folder)
    model.policy = load_policy(folder, model)
    return model.eval()


Source = FlexibleModel | str | PathLike[str]  # a model in hand, a run folder, or the Run of a training


@dataclass(frozen=True)
class Run:
    """A run folder, and its model in hand. It stands for the folder wherever a path is taken."""

    folder: Path
    model: FlexibleModel = field(repr=False)

    @property
    def ladder(self) -> Ladder:
        return self.model.ladder

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A line for every epoch."""
        return [json.loads(line) for line in (self.folder / METRICS).read_text().splitlines()]

    def __fspath__(self) -> str:
        return str(self.folder)


def model_of(source: str | PathLike[str]) -> FlexibleModel:
    """The model of a run: that in hand, with what was measured of the folder since, or the saved one."""
    if not isinstance(source, Run):
        return load(source)
    known = read_manifest(source.folder)["files"].get(WEIGHTS)
    if digest(source.model) != known and not _has_stored(source.model, source.folder / WEIGHTS):
        cure = "Give the model instead of the run; or save it in a folder of its own: model.save(folder)."
        raise CheckpointError(f"the model of {source.folder} has changed since it was saved.", cure)
    source.model.ladder = load_ladder(source.folder)
    source.model.policy = load_policy(source.folder, source.model)
    return source.model.eval()


def _has_stored(model: FlexibleModel, file: Path) -> bool:
    """Whether a model has the weights of a file, which may hold them in fewer bits than it computes with."""
    stored, own = read_tensors(file), weights_of(model)
    return stored.keys() == own.keys() and all(torch.equal(stored[name].to(own[name].dtype), own[name]) for name in own)


def _untrained(folder: Path, recipe: Recipe, classes: int, shape: Any) -> FlexibleModel:
    from supple.methods import build

    if not recipe.backbone or not recipe.method:
        cause = f"{folder} holds the weights of a network that supple cannot build by name."
        cure = "In Python, give the Run of supple.fit; or say what builds it: supple.load(folder, factory=f)."
        raise CheckpointError(cause, cure)
    return build(recipe.backbone, recipe.method, classes, shape)


def fill(model: FlexibleModel, tensors: dict[str, Tensor], path: Path, cure: str = "") -> None:
    """Loads weights into a model, refusing by name what is missing, left over or of another shape."""
    cure = cure or "The weights do not belong to this recipe. Restore the folder, or train again."
    expected = model.state_dict()
    for name in (*expected, *tensors):
        there, wanted = tensors.get(name), expected.get(name)
        if there is None or wanted is None or there.shape != wanted.shape:
            seen = "nothing" if there is None else f"shape {tuple(there.shape)}"
            want = "nothing" if wanted is None else f"shape {tuple(wanted.shape)}"
            raise CheckpointError(f"{path}: {name} has {seen}, the model expects {want}.", cure)
    model.load_state_dict(tensors)


def read_manifest(folder: Path) -> dict[str, Any]:
    if folder.is_file():
        cure = "Give the folder that supple train writes; pickled checkpoints are never opened."
        raise CheckpointError(f"{folder} is a file, not a run folder.", cure)
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}.", "Give the folder that supple train writes.")
    manifest = read_json(folder / MANIFEST)
    if "point" in manifest and "recipe" not in manifest:
        cure = "Open its model.pt2 with torch.export.load, or give the run that it came from."
        raise CheckpointError(f"{folder} is an extracted network, not a run.", cure)
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("files"), dict):
        cure = f"This supple reads format {FORMAT}; another version wrote this, or the file was altered. Train again."
        raise CheckpointError(f"{folder / MANIFEST} has format {manifest.get('format')!r}.", cure)
    return manifest


def read_recipe(folder: Path, changes: Iterable[str] = ()) -> Recipe:
    """The resolved recipe of a run; with changes, which may say where its data lie now."""
    return changed(read_manifest(folder)["recipe"], changes, str(folder / MANIFEST))


def changed(recipe: dict[str, Any], changes: Iterable[str], where: str = "recipe") -> Recipe:
    """The recipe of a run with changes. Another root means other samples, on purpose."""
    changes = [*changes]
    if any(change.startswith("data.root=") for change in changes):
        changes += ["data.fingerprint=null", "data.classes=null"]
    return make_recipe(recipe, changes, where, partial=True)


def publish(model: FlexibleModel, points: Iterable[AnyPoint], folder: Path | None = None) -> None:
    """Gives a model, and the run that it came from, other published points. The weights, and their digest, stay."""
    model.publish(points)
    names = [str(point) for point in model.points]
    if model.recipe is not None and model.recipe.method:
        model.recipe = model.recipe.model_copy(update={"method": {**model.recipe.method, "points": tuple(names)}})
    if folder is not None:
        manifest = read_manifest(folder)
        if manifest["recipe"].get("method"):
            manifest["recipe"]["method"]["points"] = names
        write(folder / MANIFEST, json.dumps({**manifest, "points": names}, indent=1))


def load_ladder(folder: Path) -> Ladder:
    """The measured ladder; empty if there is none, or if it was measured on other weights."""
    if not (folder / LADDER).is_file():
        return Ladder()
    try:
        document = read_json(folder / LADDER)
        ladder = Ladder.from_json(document)
    except CheckpointError as error:
        cause = error.cause if str(folder / LADDER) in error.cause else f"{folder / LADDER}: {error.cause}"
        raise CheckpointError(cause, f"Delete it and measure again: supple evaluate {folder}.") from None
    known = read_json(folder / MANIFEST)["files"].get(WEIGHTS) if (folder / MANIFEST).is_file() else None
    return ladder if known is None or document.get("weights") == known else Ladder()


def save_ladder(folder: Path, ladder: Ladder) -> None:
    document = {"weights": sha256(folder / WEIGHTS), **ladder.to_json()}
    write(folder / LADDER, json.dumps(document, indent=1))


def load_policy(folder: Path, model: FlexibleModel) -> Policy | None:
    """The calibrated policy; None if there is none, or if it was calibrated for other weights."""
    policy = run_policy(folder, read_manifest(folder))
    try:
        if policy is not None and model.order(policy.points) != list(policy.points):
            raise PointError("its points are out of order.")
    except PointError as error:
        cure = f"Delete it and calibrate again: supple calibrate {folder} --budget-macs 0.5x."
        raise CheckpointError(f"{folder / POLICY}: this is not a valid policy: {error.cause}", cure) from None
    return policy


def save_policy(folder: Path, policy: Policy) -> None:
    document = {"weights": sha256(folder / WEIGHTS), **policy.facts, **policy.to_json()}
    write(folder / POLICY, json.dumps(document, indent=1, allow_nan=False))
