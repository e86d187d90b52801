"""The state of a training: what is saved so that a killed run resumes as if nothing had happened."""

import json
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from lightning_fabric import Fabric
from torch import Tensor

from supple import checkpoint
from supple.checkpoint import METRICS, RECIPE, STATE, read_json, read_tensors, weights_of
from supple.errors import CheckpointError, RecipeError, SaveError, SuppleError
from supple.files import locked, sha256, write
from supple.model import FlexibleModel, Output
from supple.point import Point
from supple.recipe import Recipe, load_recipe
from supple.tasks import Task
from supple.text import say
from supple.training.processes import over_all

BEST = f"{STATE}/best.safetensors"
KEPT_STATES = 2
Sections = dict[str, dict[str, Any]]
# What a recipe may leave open, and the first start writes down (see autotune.py and build.pin), or a search.
CHOSEN: dict[str, Any] = {
    "threads": 0,
    "precision": "auto",
    "precision_chosen": False,
    "memory_format": "auto",
    "compile": "auto",
    "size": None,
    "channels": None,
    "classes": None,
    "mean": None,
    "std": None,
    "crop_share": None,
    "interpolation": None,
    "fingerprint": None,
    "unfrozen": [],
    "points": [],
}


@dataclass
class TrainState:
    """Everything but the tensors."""

    epoch: int = 0
    step: int = 0  # inside the epoch
    phase: int = 0
    start: int = 0  # the phase's first epoch
    seconds: float = 0.0
    best: list[float] | None = None  # the selected epoch's merit, more is better
    best_epoch: int = 0
    history: list[float] = field(default_factory=list)  # validation loss of every epoch of the phase
    sums: dict[str, list[float]] = field(default_factory=dict)  # of the epoch under way: loss, score (if any), samples
    joint: list[float] = field(default_factory=lambda: [0.0, 0.0])  # joint loss and steps of the epoch under way

    def tally(
        self,
        fabric: Fabric,
        outputs: Sequence[Output],
        y: Any,
        loss: float,
        task: Task,
        points: Sequence[Point],
        others: str,
    ) -> None:
        """Adds one step, of all processes, to the figures of the epoch under way; what is not one of these points
        counts as the others."""
        self.step += 1
        self.joint = [self.joint[0] + loss, self.joint[1] + 1]
        measures = [task.losses, *(each for name, each in task.each.items() if name == task.metric)]
        with torch.no_grad():
            figures = [figure(output, y).mean() for output in outputs for figure in measures]
            table = over_all(fabric, torch.stack(figures)).view(len(outputs), -1)
            found = table.tolist()  # one wait for the device, not one per point
        for output, values in zip(outputs, found):
            name, samples = str(output.point) if output.point in points else others, len(output.logits)
            old = self.sums.get(name, [0.0] * (1 + len(values)))
            self.sums[name] = [*(a + samples * b for a, b in zip(old, values)), old[-1] + samples]

    def means(self) -> dict[str, dict[str, float]]:
        """Loss and, where single samples have one, score of the epoch under way, by point."""
        found = {}
        for point, (*totals, samples) in self.sums.items():
            found[point] = {name: total / samples for name, total in zip(("loss", "score"), totals)}
        return found

    def next_epoch(self) -> None:
        self.epoch, self.step = self.epoch + 1, 0
        self.sums, self.joint = {}, [0.0, 0.0]

    def next_phase(self) -> None:
        self.phase, self.start = self.phase + 1, self.epoch
        self.history, self.best = [], None


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Holds a run folder for one training at a time."""
    held = ExitStack()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(locked(folder / ".lock", wait=False, remove=True))
    except BlockingIOError:
        cure = "Wait for it, or choose another folder with --out."
        raise CheckpointError(f"another training is at work in {folder}.", cure) from None
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        cause = (
            f"{folder} is a file, not a folder." if folder.is_file() else f"{folder} cannot be made: {error.strerror}."
        )
        raise CheckpointError(cause, "Choose another folder with --out.") from None
    except OSError as error:
        raise SaveError(f"{folder} cannot be written: {error.strerror}.", "Choose another folder with --out.") from None
    try:
        with held:
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()  # nothing came of it; a folder that holds anything stays


def begin(folder: Path, recipe: Recipe | None, resume: bool) -> Recipe | None:
    """The recipe to train in this folder: the saved one when a training is resumed; None if it has finished."""
    saved = folder / RECIPE
    finished = (folder / checkpoint.MANIFEST).is_file() and not (folder / STATE).is_dir()
    if not resume and (saved.is_file() or finished):
        cure = f"Resume it: supple train {folder} --resume, or resume=True. Or choose another folder with --out."
        raise CheckpointError(f"{folder} already holds a {'finished run' if finished else 'training'}.", cure)
    if finished:
        refuse_changes(checkpoint.read_recipe(folder).resolved(), recipe.resolved() if recipe else {}, folder)
        return None
    if not saved.is_file():
        if recipe is None:
            raise CheckpointError(f"{folder} holds no training to resume.", "Give a recipe: supple train RECIPE.")
        return recipe
    started = load_recipe(saved, partial=True)
    refuse_changes(started.resolved(), recipe.resolved() if recipe else {}, folder)
    return started


def refuse_changes(started: Sections, given: Sections, folder: Path) -> None:
    """Refuses to resume a training with other settings, save those that the first start chose."""
    for section, values in given.items():
        for key, value in values.items():
            before = started.get(section, {}).get(key)
            if value != before and not (key in CHOSEN and value == CHOSEN[key]):
                cure = f"Resume without the change, or start a new run in another folder (--out), not {folder}."
                raise RecipeError(f"this training was started with {section}.{key}={before}, not {value}.", cure)


def save(
    fabric: Fabric,
    folder: Path,
    model: FlexibleModel,
    optimizer: torch.optim.Optimizer | None,
    state: TrainState,
    average: Any = None,
) -> None:
    """Saves a state beside the older ones and then drops all but the newest two (optimizer None: it starts anew).

    average: a model whose `module` holds averaged weights.
    """
    if not fabric.is_global_zero:
        return
    path = folder / STATE / f"epoch-{state.epoch:05d}-step-{state.step:07d}.safetensors"
    tensors = {f"model.{name}": value for name, value in weights_of(model).items()}
    if average is not None:
        tensors |= {f"average.{name}": value for name, value in weights_of(average.module).items()}
    packed = None if optimizer is None else _pack(optimizer.state_dict(), "optimizer", tensors)
    write(path, tensors)
    precision = fabric.strategy.precision.state_dict()  # the loss scale of fp16; else empty
    facts = {"sha256": sha256(path), "precision": precision, "optimizer": packed, **asdict(state)}
    # The JSON file is what makes the state count: it is written last and holds the other's digest.
    write(path.with_suffix(".json"), json.dumps(facts))
    for old in _states(folder)[KEPT_STATES:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def newest_state(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Facts and tensors of the newest valid state. States that were cut off while being written do not count."""
    for path in _states(folder):
        tensors = path.with_suffix(".safetensors")
        try:
            facts = read_json(path)
            if tensors.is_file() and sha256(tensors) == facts.pop("sha256", None):
                return facts, read_tensors(tensors)
        except CheckpointError:
            continue
    return None


def restore(
    fabric: Fabric, folder: Path, model: FlexibleModel, optimizer: torch.optim.Optimizer, average: Any = None
) -> TrainState:
    """Fills model, optimizer and average from the newest valid state; a fresh one if there is none."""
    found = newest_state(folder)
    state = TrainState()
    if found is not None:
        facts, tensors = found
        fabric.strategy.precision.load_state_dict(facts.pop("precision", {}))
        packed = facts.pop("optimizer")
        state = TrainState(**facts)
        for kind, filled in (("model.", model), ("average.", None if average is None else average.module)):
            own = {name.removeprefix(kind): value for name, value in tensors.items() if name.startswith(kind)}
            if filled is not None and own:
                checkpoint.fill(filled, own, folder / STATE)
        if packed is not None:
            optimizer.load_state_dict(_unpack(packed, tensors))
    if fabric.is_global_zero:
        _cut_metrics(folder, state.epoch)
    return state


def add_metrics(folder: Path, line: dict[str, Any]) -> None:
    """Appends one line to metrics.jsonl."""
    path = folder / METRICS
    try:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise SaveError(f"{path} could not be written: {error.strerror}.", "Make room, then resume.") from error


def _cut_metrics(folder: Path, epochs: int) -> None:
    """Drops the lines of epochs that will be run again."""
    path = folder / METRICS
    if path.is_file():
        lines = path.read_text().splitlines(keepends=True)
        if len(lines) != epochs or not all(line.endswith("\n") for line in lines):
            write(path, "".join(lines[:epochs]))


def _states(folder: Path) -> list[Path]:
    return sorted((folder / STATE).glob("epoch-*.json"), reverse=True)


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """What an optimizer keeps, as JSON; its tensors, which JSON only names, are added to `tensors`."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(part, f"{name}.{key}", tensors)] for key, part in value.items()]}
    if isinstance(value, (list, tuple)):
        parts = [_pack(part, f"{name}.{place}", tensors) for place, part in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    cure = "Use another optimizer: what it keeps must be tensors, numbers, text, lists and mappings."
    raise SaveError(f"{name} is a {type(value).__name__}, which cannot be saved.", cure)


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The opposite of `_pack`."""
    if isinstance(value, list):
        return [_unpack(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "dtype":
        return getattr(torch, held)
    if kind == "dict":
        return {key: _unpack(part, tensors) for key, part in held}
    return tuple(_unpack(part, tensors) for part in held)


class Interrupted(SuppleError):
    status = 130

    def __init__(self, how: str, saved: bool = True) -> None:
        cause = "stopped, and saved." if saved else "stopped; saved up to the last whole epoch."
        super().__init__(cause, f"Resume it: {how}.")


class GracefulInterrupt:
    """While entered, the first Ctrl-C only sets `ended`; the second acts as always."""

    ended = False

    def __enter__(self) -> Self:
        self.main = threading.current_thread() is threading.main_thread()
        if self.main:
            self.before = signal.signal(signal.SIGINT, self._first)
        return self

    def _first(self, number: int, frame: FrameType | None) -> None:
        self.ended = True
        say("completing this step and saving; Ctrl-C again stops at once")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.main:
            signal.signal(signal.SIGINT, self.before)
