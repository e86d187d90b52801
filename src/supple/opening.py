"""What a verb is given: a run, a recipe or a model in hand, and the data to use it on."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from supple import checkpoint
from supple.checkpoint import Source
from supple.data.loaders import as_batches
from supple.data.registry import load as load_set
from supple.data.splits import Splits
from supple.errors import CheckpointError, DataError, PointError, RecipeError
from supple.ladder import Ladder
from supple.model import FlexibleModel, example
from supple.networks import located, own
from supple.point import AnyPoint, Point
from supple.recipe import Recipe, load_recipe
from supple.reporting import write_report
from supple.tasks import get_task
from supple.text import first
from supple.training.build import load_data, skeleton

Path_ = str | os.PathLike[str]
Points = Iterable[AnyPoint] | AnyPoint | None  # None: all
MOVES = (
    "data.root",
    "data.fingerprint",
    "data.workers",
    "data.batch_size",
)  # changes that leave the samples as they are
DRAWN = 256  # labels that are looked at before a training


@dataclass(frozen=True)
class Opened:
    """A model, and the run that it was opened from."""

    model: FlexibleModel
    folder: Path | None = None  # None: the model is in hand
    changes: tuple[str, ...] = ()  # where the data of the run lie now: data.root=pictures

    @property
    def name(self) -> str:
        return "the model" if self.folder is None else str(self.folder)

    @property
    def recipe(self) -> Recipe:
        if self.folder is not None:
            return checkpoint.read_recipe(self.folder, self.changes)
        return checkpoint.recipe_of_model(self.model)

    @property
    def recipe_as_trained(self) -> Recipe:
        assert self.folder is not None
        return checkpoint.read_recipe(self.folder)

    @property
    def weights(self) -> str:
        """The digest of the file of its weights, or of what that would be."""
        if self.folder is None:
            return checkpoint.digest(self.model)
        return str(checkpoint.read_manifest(self.folder)["files"][checkpoint.WEIGHTS])

    def points(self, wanted: Points) -> list[Point]:
        """The points asked for, in execution order; None: all."""
        if wanted is None:
            return self.model.offered
        wanted = [wanted] if isinstance(wanted, (str, Point)) else [*wanted]
        for text in wanted:
            if isinstance(text, str) and text in self.model.groups:
                cure = "supple evaluate scores groups where no point is given; train.sample may name one."
                raise PointError(f'"{text}" is a group of points, not a point.', cure)
        return self.model.order(wanted)

    def splits(self) -> Splits:
        """The data of the run, which may lie elsewhere now; their classes must be those that the model knows."""
        return self._known(load_data(self.recipe))

    def data(self, given: Any, part: Literal["train", "val", "test"]) -> Any:
        """Data as given: a data set, a loader, or a path of pictures; None: the run's own."""
        if given is None:
            return getattr(self.splits(), part)
        if not isinstance(given, (str, os.PathLike)):
            return given
        if self.recipe.data.name:
            splits = load_data(checkpoint.changed(self.recipe.resolved(), [f"data.root={os.fspath(given)}"]))
        elif self.model.preprocess is None:
            cause = f"nothing says how the pictures of {given} become inputs of this model."
            raise DataError(cause, "Give a data set or a loader; or train it with preprocess=...")
        else:
            splits = load_set("folder", root=os.fspath(given), **self.model.preprocess.facts())
        return getattr(self._known(splits), part)

    def tested(self, given: Any) -> tuple[Any, str | None]:
        """Test data, and their name where they are others than the run's own (which may lie elsewhere now)."""
        if given is not None or not self.changes:
            named = str(given) if isinstance(given, (str, os.PathLike)) else "the data given"
            return self.data(given, "test"), None if given is None else named
        splits = self.splits()
        if self.are_own(splits):
            return splits.test, None
        root = self.recipe.data.model_dump().get("root")
        return splits.test, str(root or ", ".join(self.changes))

    def are_own(self, splits: Splits) -> bool:
        """Whether these are the samples that the run was trained on and is scored on, wherever they lie now."""
        if not self.changes:
            return True
        moved = all(change.partition("=")[0] in MOVES for change in self.changes)
        return moved and splits.fingerprint == self.recipe_as_trained.data.fingerprint

    def parts(self, given: Any) -> tuple[Any, Any, Any]:
        """For training, validation and test: the parts of a path or of the run; what else is given is all three."""
        if isinstance(given, (str, os.PathLike)):
            return self.data(given, "train"), self.data(given, "val"), self.data(given, "test")
        if given is not None or not self.recipe.data.name:
            return given, given, given
        splits = self.splits()
        return splits.train, splits.val, splits.test

    def _known(self, splits: Splits) -> Splits:
        if splits.test.classes != self.model.classes:
            cure = f"Give data of its {len(self.model.classes)} classes: {first(self.model.classes)}."
            raise DataError(f"these data have other classes than the model: {first(splits.test.classes)}.", cure)
        return splits

    def keep(self, ladder: Ladder) -> None:
        """Writes what was measured into the run, if there is one."""
        self.model.ladder = ladder
        if self.folder is not None:
            checkpoint.save_ladder(self.folder, ladder)
            write_report(self.folder)


def open_source(source: Source, changes: Iterable[str] = ()) -> Opened:
    """A trained model: the run's, or the one given. Of a finished run, only where its data lie may change."""
    if isinstance(source, FlexibleModel):
        return Opened(source.eval())
    folder = must_be_run(source)
    for change in (changes := tuple(changes)):
        if not change.startswith("data."):
            cure = "Only data.* can be changed for a finished run; train a new one for the rest."
            if Path(change).exists():
                cure = f"To use other data than the run's own: data.root={change}."
            raise RecipeError(f'"{change}" does not apply to the run {folder}.', cure)
    return Opened(checkpoint.model_of(source if isinstance(source, checkpoint.Run) else folder), folder, changes)


def open_any(source: Source, changes: Iterable[str] = (), device: str = "meta") -> Opened:
    """The same, or the untrained model of a recipe, by default without weights."""
    if isinstance(source, FlexibleModel) or is_run(source):
        return open_source(source, changes)
    recipe = load_recipe(source, changes)
    model = skeleton(recipe, device).eval()
    model.recipe = recipe
    return Opened(model)


def recipe_of(target: Path_, changes: Iterable[str] = ()) -> Recipe:
    """The recipe in a file, or the resolved one of a run; with changes."""
    return checkpoint.read_recipe(Path(located(target)), changes) if is_run(target) else load_recipe(target, changes)


def is_run(target: Path_) -> bool:
    """Whether a path is that of a run, finished or not, or the name of one that comes with supple; any folder is taken
    for one but for pictures."""
    return Path(located(target)).is_dir()


def must_be_run(target: Path_) -> Path:
    """The folder of a run, to be read and written."""
    path = own(target)
    if not path.is_dir():
        cause = f"{path} is a file, not a run folder." if path.is_file() else f"there is no run folder {path}."
        raise CheckpointError(cause, "Give the folder that supple train writes.")
    return path


def must_take(model: FlexibleModel, data: Any) -> None:
    """Refuses samples of another shape than the model's; one that has none takes theirs."""
    with torch.random.fork_rng(devices=[]):  # a loader draws its order
        x, _ = as_batches(data).example(2)
    if not isinstance(x, torch.Tensor):
        return  # several inputs
    shape = tuple(x.shape[1:])
    model.input_shape = model.input_shape or shape
    if shape != model.input_shape:
        cure = "Resize the samples, or build the model with another input_shape."
        raise DataError(f"the samples have the shape {shape}; the model takes {model.input_shape}.", cure)


def check_targets(model: FlexibleModel, data: Any) -> None:
    """Refuses labels that the model's task cannot learn, of some that are drawn."""
    check = get_task(model.task).check_targets
    if check is not None:
        with torch.random.fork_rng(devices=[]):
            drawn = [y for _, y in as_batches(data).drawn(DRAWN, 64, 0)]
        if drawn and all(isinstance(y, torch.Tensor) for y in drawn):
            check(torch.cat(drawn), model.classes)


def class_names(model: FlexibleModel, data: Any, given: Sequence[str] | None) -> tuple[str, ...]:
    """The classes as given or as the data name them, if they are as many as the model's outputs; else their numbers."""
    if get_task(model.task).metric != "accuracy":
        return tuple(given or model.classes)
    assert model.input_shape is not None
    with torch.inference_mode():
        count = model.eval()(example(model.input_shape, 1)).shape[-1]
    named = given or getattr(getattr(data, "dataset", data), "classes", None) or ()
    if given is not None and len(given) != count:
        raise DataError(f"{len(given)} classes are named; the model tells {count} apart.", "Give a name for each.")
    return tuple(map(str, named)) if len(named) == count else tuple(map(str, range(count)))


def input_settings(model: FlexibleModel) -> dict[str, Any]:
    """How the weights that a model started from want pictures to be prepared, as settings of a data set."""
    wanted = dict(model.expected_input)
    if model.input_shape is not None and wanted.get("size") != model.input_shape[-1]:
        wanted["crop_share"] = 1.0
    return wanted


def number_of_samples(data: Any) -> int:
    """Samples, for a progress bar; 0 where nobody knows."""
    held = getattr(data, "dataset", data)
    return len(held) if hasattr(held, "__len__") else 0
