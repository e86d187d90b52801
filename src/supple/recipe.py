"""Recipes: one YAML file is the whole story of a run. No includes, no inheritance, no interpolation.

Sections: `data`, `backbone`, `method`, `loss`, `train`, and if wanted `copycat`. The settings of a data set, backbone,
method or loss are the keyword arguments of what its `name` stands for. An unknown key stops the run.
"""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from supple.errors import RecipeError
from supple.text import did_you_mean, nearest, one_line

T = TypeVar("T", bound=BaseModel)
STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())
LARGEST = 1_000_000  # bytes of a recipe file
EXPERIMENTS = "claims"  # the folder of those files that declare many trainings: see experiments/
GIVEN = ("num_classes", "in_channels", "input_shape", "epoch")  # keyword arguments that data or the loop decide
# Settings that have settings of their own.
NESTED = (("method", "branch"), ("backbone", "args"), ("train", "optimizer"), ("train", "schedule"))


class Data(BaseModel):
    """What the recipes of all data sets say; the settings of the set itself are attributes too."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)
    name: str = ""  # a key of supple.data.registry.DATASETS; empty: the data were given in Python
    batch_size: int = Field(64, ge=1)
    classes: int | None = Field(None, ge=1)  # how many; only needed to profile a set that is not at hand
    fingerprint: str | None = None  # of the list of samples; written down at the first start, checked ever after


def _optimizer(given: Any) -> Any:
    from supple.training.optim import checked_optimizer

    return checked_optimizer(given) if isinstance(given, (str, dict)) else given


def _schedule(given: Any) -> Any:
    from supple.training.schedule import checked_schedule

    return checked_schedule(given) if isinstance(given, (str, dict)) else given


class Train(BaseModel):
    model_config = STRICT
    epochs: int = Field(10, ge=1)
    optimizer: Annotated[dict[str, Any], BeforeValidator(_optimizer)] = Field(
        "sgd", validate_default=True
    )  # see optim.py
    lr: float = Field(0.1, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    schedule: Annotated[dict[str, Any], BeforeValidator(_schedule)] = Field("cosine", validate_default=True)
    warmup: float = Field(0.0, ge=0)  # epochs in which the rate rises from 0
    layer_decay: float = Field(1.0, gt=0, le=1)  # rate of each layer over that of the next, from the last one down
    branch_rate: float = Field(1.0, gt=0, le=100)  # rate of branches over that of the network that they are put on
    decay_all: bool = True  # weight decay on biases and norms, too
    ema: float = Field(0.0, ge=0, lt=1)  # decay of the averaged weights, which are the ones kept; 0: no averaging
    mixup: float = Field(0.0, ge=0, le=10)  # alpha of mixup: pairs of images are blended; 0: off
    cutmix: float = Field(0.0, ge=0, le=10)  # alpha of cutmix: a rectangle comes from another image; 0: off
    accumulate: int = Field(1, ge=1, le=1024)  # a batch goes through the network in so many parts
    early_stop: int = Field(0, ge=0)  # stop after so many epochs without a better validation loss; 0: never
    clip: float = Field(0.0, ge=0)  # largest gradient norm; 0: no clipping
    sample: str = "every"  # which points a step trains: a key of supple.sampling.SAMPLERS, or a group of the method
    select: Literal["score", "loss", "last"] = "score"  # the epoch kept: best mean score of the points, or mean loss
    init: str | None = None  # weights to start from: a run, a file of weights, or "pretrained" (timm, torchvision)
    cache_features: str | None = None  # classifier_wise: a folder to keep what the branches read in, computed once
    cache_augmented: bool = False  # cache_features although images are augmented: they are then taken as they are
    settle: tuple[str, ...] = ()  # further points to settle after training, such as width=0.35
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"  # auto: bf16 on a GPU; on a CPU where 1.15x as fast
    precision_chosen: bool = False  # written down at the first start: whether auto chose the precision
    memory_format: Literal["auto", "channels_first", "channels_last"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"  # torch.compile where a probe shows that it pays
    threads: int = Field(0, ge=0)  # 0: as torch chooses
    accelerator: str = "auto"  # lightning-fabric's word: cpu, cuda, mps, auto
    devices: int = Field(1, ge=1)
    nodes: int = Field(1, ge=1)
    save_every_s: float = Field(300, gt=0)  # seconds between saves inside an epoch; the end of an epoch always saves
    seed: int = Field(0, ge=0)


class Copycat(BaseModel):
    """Unlabelled images of other classes, labelled by a run, mixed with the training images (SL-ViT, section 3.3)."""

    model_config = STRICT
    labeller: str  # a run folder: its full model labels the images
    root: str  # any folder or zip of images
    ratio: float = Field(2.0, gt=0, le=100)  # copied images for each real one
    limit: int | None = Field(None, ge=1)  # use only so many
    seed: int = Field(0, ge=0)


class Recipe(BaseModel):
    """A checked recipe; `backbone`, `method` and `loss` hold every setting, defaults included."""

    model_config = STRICT
    data: Data
    backbone: dict[str, Any]
    method: dict[str, Any]
    loss: dict[str, Any]
    train: Train
    copycat: Copycat | None = None

    def resolved(self) -> dict[str, Any]:
        """Plain JSON-able values, every default written out; a section that is not used is left out."""
        document: dict[str, Any] = self.model_dump(mode="json", exclude_none=False)
        return {section: values for section, values in document.items() if values is not None}

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.resolved(), sort_keys=False, default_flow_style=None, width=110)


def load_recipe(name: str | os.PathLike[str], changes: Iterable[str] = (), *, partial: bool = False) -> Recipe:
    """Reads a recipe file and applies changes such as `train.epochs=3`. partial: see `make_recipe`."""
    path = find_recipe(name)
    document = read_document(path)
    if isinstance(document, dict) and "claims" in document and "arms" in document:
        cure = f"Run it: supple reproduce {path.stem}. Recipes: supple list --recipes."
        raise RecipeError(f"{path} declares an experiment of many trainings, not one.", cure)
    return make_recipe(document, changes, str(path), partial=partial)


def read_document(path: Path) -> Any:
    """What a YAML file holds, as plain data."""
    try:
        return _parse(_read(path))
    except ValueError as error:
        raise RecipeError(
            f"{path} is not valid YAML: {one_line(error)}.", "See recipes/pocket/ for examples."
        ) from None


def with_changes(document: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """A copy of a recipe as plain data with changes such as `train.epochs=3`, not checked yet."""
    changed = dict(document)
    for change in changes:
        _change(changed, change)
    return changed


def make_recipe(document: Any, changes: Iterable[str] = (), where: str = "recipe", *, partial: bool = False) -> Recipe:
    """Checks a recipe given as plain data. partial: data, backbone and method may be empty, as they are in the run of a
    model in hand whose data or network have no name.
    """
    from supple.backbones import BACKBONES
    from supple.losses import OBJECTIVES
    from supple.methods import METHODS
    from supple.sampling import SAMPLERS

    if not isinstance(document, dict):
        raise RecipeError(f"{where} has no sections.", f"A recipe has: {', '.join(Recipe.model_fields)}.")
    document = with_changes({"loss": {"name": "distill"}, "train": {}, **document}, changes)
    unknown = [key for key in document if key not in Recipe.model_fields]
    if unknown:
        raise RecipeError(f'{where}: unknown key "{unknown[0]}".', did_you_mean(str(unknown[0]), Recipe.model_fields))
    for section in (section for section, field in Recipe.model_fields.items() if field.is_required()):
        if not isinstance(document.get(section), dict):
            raise RecipeError(f'{where}: the section "{section}" is missing.', f"Add {section}: {{name: ...}}.")
    for section in ("method", "backbone"):
        kept = document[section].get("kept")
        if isinstance(kept, str):
            document[section] = {**document[section], "kept": _read_pairs(kept, f"{where}: {section}.kept")}
    for section, registry in (("backbone", BACKBONES), ("method", METHODS), ("loss", OBJECTIVES)):
        if document[section] or not partial:
            document[section] = named_settings(section, document[section], registry, where)
    if "branch" in document["method"]:
        document["method"]["branch"] = _branches(document["method"]["branch"])
    recipe = Recipe(
        data=data_settings(document["data"], where, partial),
        train=_section(Train, "train", document["train"], where),
        **{section: document[section] for section in ("backbone", "method", "loss")},
        copycat=_section(Copycat, "copycat", document["copycat"], where) if document.get("copycat") else None,
    )
    if not recipe.method:
        return recipe
    sample, samplers = recipe.train.sample, [*SAMPLERS, *METHODS[recipe.method["name"]].sampled]
    if sample not in samplers:
        cause = f'{where}: train.sample "{sample}" is unknown for method {recipe.method["name"]}.'
        raise RecipeError(cause, did_you_mean(sample, samplers))
    return recipe


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """The file itself, or one of the recipes that come with supple, by its name."""
    given = Path(name)
    if len(given.name) > 200:
        raise RecipeError(f"{str(name)[:60]}... is not a valid file name.", "Give a recipe. See supple list --recipes.")
    if given.is_file():
        return given
    for root in recipe_folders():
        for candidate in (root / given, root.parent / given):
            for path in (candidate, candidate.parent / f"{candidate.name}.yaml"):
                if path.is_file() and path.suffix == ".yaml":
                    return path
    known = {str(path.relative_to(root)) for root in recipe_folders() for path in root.rglob("*.yaml")}
    close = nearest(str(name), known)
    guess = "" if close is None else f'Did you mean "{close}"? '
    raise RecipeError(f"there is no recipe {name}.", f"{guess}See supple list --recipes.")


def recipe_folders() -> list[Path]:
    """Where the recipes that come with supple lie: at the root of a checkout, or where they were installed."""
    places = (Path(__file__).parents[2] / "recipes", Path(sys.prefix) / "share" / "supple" / "recipes")
    return [folder for folder in places if folder.is_dir()]


def keywords(target: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Type and default of the keyword-only arguments of a class or function, save those of GIVEN; a default of `...`
    means that there is none.
    """
    fields: dict[str, tuple[Any, Any]] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and name not in GIVEN:
            required = parameter.default is parameter.empty
            fields[name] = (parameter.annotation, ... if required else parameter.default)
    return fields


def options(target: Callable[..., Any]) -> type[BaseModel]:
    """The settings of a class or function."""
    return create_model(target.__name__, __config__=STRICT, **cast(dict[str, Any], keywords(target)))


def named_settings(section: str, given: dict[str, Any], registry: dict[str, Any], where: str) -> dict[str, Any]:
    name = _registered(section, given, registry, where)
    own = {key: value for key, value in given.items() if key != "name"}
    return {"name": name, **_section(options(registry[name]), section, own, where).model_dump()}


def data_settings(given: dict[str, Any], where: str, partial: bool = False) -> Data:
    """The `data` section, checked against the settings of the set that it names."""
    from supple.data.registry import DATASETS

    if partial and not given.get("name"):
        return _section(Data, "data", given, where)
    name = _registered("data", given, DATASETS, where)
    model = data_options(name, DATASETS[name].settings())
    for key in given:
        if key not in model.model_fields:
            close = nearest(str(key), model.model_fields)
            others = [other for other, entry in DATASETS.items() if key in entry.settings()]
            takes = f"The data set {name} takes {', '.join(model.model_fields)}."
            cure = f'Did you mean "data.{close}"? {takes}' if close else f"Leave it out. {takes}"
            if others:
                cure = f"Leave it out: the data set {name} has none. data.{key} is for {', '.join(others)}."
            raise RecipeError(f'{where}: unknown key "data.{key}".', cure)
    return Data(**_section(model, "data", given, where).model_dump())


def data_options(name: str, own: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """The settings of a data set: those of all sets, and its own."""
    return create_model(name, __base__=Data, **cast(dict[str, Any], own))


def _registered(section: str, given: dict[str, Any], registry: Mapping[str, Any], where: str) -> str:
    name = given.get("name")
    if not isinstance(name, str) or name not in registry:
        what = f'{section} "{name}" is unknown' if name else f"{section}.name is missing"
        cure = f"{did_you_mean(str(name), registry)} One of your own: supple VERB ... --import MODULE."
        raise RecipeError(f"{where}: {what}.", cure)
    return name


def _read_pairs(name: str, where: str) -> Any:
    """What a JSON file says of kept dimensions: the recipe holds it from then on, not the name of the file."""
    try:
        pairs = json.loads(_read(Path(name)))
        if not isinstance(pairs, list) or not pairs:
            raise ValueError("it holds no list")
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2 or any(type(size) is not int for size in pair):
                raise ValueError(f"{str(pair)[:60]} is not a pair of whole numbers")
        return pairs
    except (OSError, ValueError, RecursionError) as error:
        cure = "Give a JSON file with a pair for each block: [[24, 282], [24, 282], ...]."
        raise RecipeError(f"{where}={name} cannot be read: {one_line(error)}.", cure) from None


def _read(path: Path) -> str:
    """A page of text; never a device, and never more than a page."""
    if not path.is_file():
        raise ValueError("it is not a file" if path.exists() else "there is no such file")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST} bytes")
    return content.decode("utf-8")


def _branches(given: Any) -> Any:
    """The branches of a recipe with every setting written out."""
    from supple.methods.branches import checked_branch

    return tuple(map(checked_branch, given)) if isinstance(given, tuple) else checked_branch(given)


def _section(model: type[T], section: str, given: dict[str, Any], where: str) -> T:
    for key in given:
        if key not in model.model_fields:
            names = [f"{section}.{name}" for name in model.model_fields]
            raise RecipeError(f'{where}: unknown key "{section}.{key}".', did_you_mean(f"{section}.{key}", names))
    try:
        return model.model_validate(given)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error.cause}", error.cure) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([section, *(str(part) for part in first["loc"][:1])])
        value = given.get(str(first["loc"][0])) if first["loc"] else given
        absent = first["type"] == "missing" and len(first["loc"]) == 1
        advice = "Give a list, such as [a, b]" if first["type"] == "tuple_type" else first["msg"]
        cure = f"Add {key}." if absent else f"{advice}."
        raise RecipeError(f"{where}: {key} is {value!r}.", cure) from None


def _change(document: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and name):
        raise RecipeError(f'"{change}" is not a valid change.', "Write section.key=value, for example train.epochs=3.")
    if section not in Recipe.model_fields:
        names = [f"{known}.{name}" for known in Recipe.model_fields]
        raise RecipeError(f'unknown key "{key}".', did_you_mean(key, names))
    try:
        value = _parse(text)
    except ValueError:
        raise RecipeError(
            f'"{text}" in "{change}" is not a valid YAML value.', "Quote it, or write a plain value."
        ) from None
    given = document.get(section) or {}
    if isinstance(given, dict):  # what is not a section is named when the sections are checked
        nested = (section, name.partition(".")[0]) in NESTED
        document[section] = _put(given, name.split(".") if nested else [name], value, key)


def _put(given: dict[str, Any], path: list[str], value: Any, key: str) -> dict[str, Any]:
    """A copy with one value changed; `branch.heads` reaches into a setting that has settings of its own."""
    name, *rest = path
    if not rest:
        return {**given, name: value}
    inner = given.get(name, {})
    inner = {"name": inner} if isinstance(inner, str) else inner
    if not isinstance(inner, dict):
        raise RecipeError(f'"{key}" cannot be changed alone: {name} is {inner!r}.', f"Give the whole of {name}.")
    return {**given, name: _put(inner, rest, value, key)}


def _parse(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except Exception as error:  # bad text makes PyYAML raise errors of many kinds, not only its own
        raise ValueError(str(error)) from None


class _Loader(yaml.SafeLoader):
    """YAML in which `off`, `1:30`, `010` and dates are words (a field of numbers reads 010 as ten), and which refuses
    a key given twice.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        doubled = [key for key in keys if keys.count(key) > 1]
        if doubled:
            raise yaml.YAMLError(f'the key "{doubled[0]}" is given twice')
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?|[-+]?\.inf|\.nan", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^({_pattern})$"), _first)
