"""The one training loop. Every random choice is a function of (seed, epoch, step), so that a resumed run is bit-equal.

Lightning Fabric carries it to other devices, precisions and nodes.
"""

import copy
import math
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from supple import checkpoint, files
from supple.backbones.protocols import starts_from_data
from supple.cost import costly_points, profile
from supple.data.loaders import Batches, Indexed, as_batches
from supple.errors import RecipeError, TrainError
from supple.losses import Objective, make_objective, usual_loss
from supple.model import FlexibleModel
from supple.point import FULL, Group, Point
from supple.progress import Progress
from supple.recipe import Recipe, Train
from supple.sampling import SAMPLERS, from_group, seed_of
from supple.scoring import evaluate, evaluate_group, mean_loss, mean_score
from supple.tasks import TASKS
from supple.text import say, some
from supple.training.autotune import choose, settle_precision
from supple.training.build import fresh_model, load_data, pin, with_copies
from supple.training.feature_cache import cached
from supple.training.finalize import finalize, settled_points
from supple.training.init import begun
from supple.training.mixing import mixed
from supple.training.optim import set_rates
from supple.training.processes import is_main, together
from supple.training.schedule import make_schedule, should_stop
from supple.training.state import (
    BEST,
    GracefulInterrupt,
    Interrupted,
    TrainState,
    add_metrics,
    begin,
    claim,
    newest_state,
    restore,
    save,
)
from supple.training.step import make_fabric, set_up, to_step, training_step

STARTED_ON = 2048  # training samples that a network which starts from data sees
VALIDATED = 4  # points of a group that validation looks at


@dataclass(frozen=True)
class Training:
    """What the loop works with."""

    fabric: Fabric
    settings: Train
    folder: Path
    model: FlexibleModel
    train: Batches
    val: Any  # whatever `evaluate` takes
    loss: Mapping[str, Any]  # the recipe's section
    batch_size: int  # of each process
    quiet: bool
    resume: str  # how to go on after an interruption

    @property
    def size(self) -> int:
        """Samples of a step, over all processes."""
        return self.batch_size * self.fabric.world_size

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return self.train.steps(self.size)

    @property
    def taught(self) -> bool:
        """Whether larger points teach smaller ones."""
        return bool(self.loss.get("teachers", "none") != "none")

    def objective(self, epoch: float = math.inf) -> Objective:
        """What is minimised when so many epochs are over."""
        return make_objective(self.loss, self.model.points, self.model.task, epoch)

    def with_choices(self) -> "Training":
        """With what only a clock can choose, see `probe`; another precision needs another Fabric."""
        points, example = trained_points(self, 0), self.train.example(self.batch_size)
        total = self.settings.epochs * self.steps
        chosen = choose(
            self.settings, self.model, points, example, total, self.objective(), self.fabric.device, self.quiet
        )
        measured = self.settings.precision == "auto"  # only where this process is the only one
        return replace(self, settings=chosen, fabric=make_fabric(chosen) if measured else self.fabric)


def train(recipe: Recipe | None, folder: str | Path, *, resume: bool = False, quiet: bool = False) -> Path:
    """Trains a recipe into a run folder and returns it. With `resume`, goes on from the newest valid state there."""
    folder = Path(folder)
    with claim(folder) if is_main() else nullcontext():
        started = begin(folder, recipe, resume or not is_main())
        if started is None:
            if not quiet:
                say(f"{folder} has finished; there is nothing to resume.")
            return folder
        started, fabric = launched(started, quiet)
        quiet = quiet or not fabric.is_global_zero
        splits = with_copies(started, load_data(started), quiet)
        model = fresh_model(started, splits)
        if newest_state(folder) is None or started.train.cache_features:
            started = begun(started, model, quiet)
        if is_new(folder, fabric):
            started = pin(started, splits)
        cache = started.train.cache_features
        learnt, val = cached(started, model, splits, quiet) if cache else (splits.train, splits.val)
        heading = f"{started.data.name}: {splits}; "
        again = f"supple train {folder} --resume"
        started, fabric, state = carry_out(started, folder, fabric, model, learnt, val, quiet, again, heading)
        if fabric.is_global_zero:
            parts = splits.train, splits.val, splits.test
            finalize(started, folder, fresh_model(started, splits), *parts, state, quiet)
        fabric.barrier()
    return folder


def fit_model(
    model: FlexibleModel,
    data: Any,
    val: Any,
    folder: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    test: Any = None,
    loss: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Path:
    """Trains a model in place, without a recipe: in the end it has the best epoch's weights, settled, in eval mode.

    `data`, `val` and `test` (None: the validation data) are data sets or loaders (see `data/loaders.py`); a loader has
    a batch size of its own. `settings` are those of a recipe's `train` section, `loss` of its `loss` section (None: the
    task's usual one), `about` of its `data` section, as far as they are known. The folder becomes a run; the same call
    with `resume` goes on with one that was interrupted.
    """
    folder = Path(folder)
    wanted = dict(loss or {"name": usual_loss(model.task)})
    given = checkpoint.recipe_of_model(model, data=dict(about or {}), train=dict(settings or {}), loss=wanted)
    refuse_unused(given.train)
    with claim(folder) if is_main() else nullcontext():
        started = begin(folder, given, resume or not is_main())
        if started is not None:  # else it has finished
            started, fabric = launched(started, quiet)
            quiet = quiet or not fabric.is_global_zero
            again = "make the same call with resume=True"
            started, fabric, state = carry_out(started, folder, fabric, model, data, val, quiet, again)
            if fabric.is_global_zero:
                finalize(started, folder, model, data, val, val if test is None else test, state, quiet)
            fabric.barrier()
    checkpoint.fill(model, checkpoint.read_tensors(folder / checkpoint.WEIGHTS), folder / checkpoint.WEIGHTS)
    model.ladder, model.recipe = checkpoint.load_ladder(folder), checkpoint.read_recipe(folder)
    model.eval()
    return folder


def launched(recipe: Recipe, quiet: bool) -> tuple[Recipe, Fabric]:
    """The recipe in a precision that this processor has, and the processes, devices and precision to train with."""
    settings = settle_precision(recipe.train, quiet or not is_main())
    return recipe.model_copy(update={"train": settings}), make_fabric(settings)


def is_new(folder: Path, fabric: Fabric) -> bool:
    """Whether this process is to write down what the first start of a training chooses."""
    return bool(fabric.is_global_zero) and not (folder / checkpoint.RECIPE).is_file()


def carry_out(
    recipe: Recipe,
    folder: Path,
    fabric: Fabric,
    model: FlexibleModel,
    data: Any,
    val: Any,
    quiet: bool,
    again: str,  # how to go on after an interruption
    heading: str = "",  # what the data are
) -> tuple[Recipe, Fabric, TrainState]:
    """Trains a model: gives the recipe with what the first start chose, the Fabric it took, and the last state."""
    training = Training(
        fabric,
        recipe.train,
        folder,
        model,
        as_batches(data),
        val,
        recipe.loss,
        recipe.data.batch_size,
        quiet,
        again,
    )
    refuse_early(training)
    own = starts_from_data(model.backbone)
    if own is not None and not own.started:
        own.start_from(next(training.train.drawn(STARTED_ON, STARTED_ON, recipe.train.seed))[0])
    if not quiet:
        say(f"{heading}{some(training.steps, 'step')} per epoch")
        for warning in costly_points(profile(model)):
            say(warning)
    if is_new(folder, fabric):
        training = training.with_choices()
        recipe = recipe.model_copy(update={"train": training.settings})
        files.write(folder / checkpoint.RECIPE, recipe.to_yaml())
    recipe = training.fabric.broadcast(recipe)
    with together(training.fabric, again):
        return recipe, training.fabric, fit(replace(training, settings=recipe.train))


def refuse_early(training: Training) -> None:
    """Refuses, before anything is written, what could not be followed later."""
    if training.fabric.world_size > 1 and not training.train.enters_anywhere:
        cause = "several processes cannot share a loader that makes its own batches."
        raise RecipeError(cause, "Give a data set instead, or set devices and nodes to 1.")
    if training.fabric.world_size > 1 and isinstance(training.train, Indexed) and len(training.train) < training.size:
        cause = f"{some(len(training.train), 'sample')} are fewer than a step of all processes takes: {training.size}."
        raise RecipeError(cause, "Lower data.batch_size, which each process has, or train.devices and train.nodes.")
    copy.deepcopy(training.model).add_points(settled_points(training.settings))
    training.objective()
    make_schedule(training.settings, training.steps)


def refuse_unused(settings: Train) -> None:
    for key in ("init", "cache_features"):
        if getattr(settings, key):
            cause = f"train.{key} is set, but the model is given."
            raise RecipeError(cause, "Leave it out: the training starts from the model as it is.")


def fit(training: Training) -> TrainState:
    """All phases of a training (mostly there is one): from the newest state in the folder, if any, to the last."""
    folder, model = training.folder, training.model
    while True:
        found = newest_state(folder)
        state = fit_phase(training, trained_points(training, found[0].get("phase", 0) if found else 0))
        if state.phase + 1 == model.num_phases():
            return state
        checkpoint.fill(model, checkpoint.read_tensors(folder / BEST), folder / BEST)
        state.next_phase()
        if not training.quiet:
            say(f"phase {state.phase + 1} of {model.num_phases()}")
        save(training.fabric, folder, model, None, state)
        training.fabric.barrier()


def trained_points(training: Training, phase: int) -> tuple[Point, ...]:
    """The points that a phase runs, and that choose the epoch to keep: those that learn, and all where larger ones
    teach; of these, the one that is trained where it is one alone. For a group, the full model represents all.
    """
    model, sample = training.model, training.settings.sample
    learning = model.begin_phase(phase)
    if sample in model.groups:
        return (FULL,)
    points = model.points if model.num_phases() == 1 and training.taught else learning
    return {"full": points[-1:], "smallest": points[:1]}.get(sample, points)


def fit_phase(training: Training, points: Sequence[Point]) -> TrainState:
    """The epochs of one phase."""
    fabric, settings, folder, model = training.fabric, training.settings, training.folder, training.model
    group, task, steps = model.groups.get(settings.sample), TASKS[model.task], training.steps
    sample = SAMPLERS[settings.sample] if group is None else from_group(group)
    counted = (model.points, "drawn") if group is None else ((), group.name)
    average = averaged(model, settings)
    wrapped, optimizer = set_up(fabric, settings, model)
    state = restore(fabric, folder, model, optimizer, average)
    factor = make_schedule(settings, steps)
    done = (state.epoch - state.start) * steps + state.step
    kind = "sample" if model.preprocess is None else model.preprocess.kind
    saved = time.monotonic()
    with GracefulInterrupt() as interrupt, Progress(settings.epochs, steps, done, training.quiet, kind) as progress:
        while state.epoch - state.start < settings.epochs and not should_stop(state.history, settings.early_stop):
            model.train()
            began = time.monotonic()
            share = fabric.global_rank, fabric.world_size
            for batch in training.train.training(settings.seed, state.epoch, state.step, training.size, share):
                x, y = to_step(fabric, settings, batch)
                seed = seed_of(settings.seed, state.epoch, state.step)
                own = seed_of(settings.seed, state.epoch, state.step, share[0]) if share[0] else seed
                torch.manual_seed(own)  # dropout and the like: other samples, other draws
                progressed = state.epoch - state.start + state.step / steps
                set_rates(optimizer, factor(progressed, state.history))
                chosen, objective = sample(points, random.Random(seed), model.draw), training.objective(progressed)
                given = mixed(settings, x, y, len(model.classes))
                step = state.epoch * steps + state.step
                outputs, value = training_step(fabric, settings, wrapped, optimizer, objective, given, chosen, step)
                if not math.isfinite(value):
                    bad = [str(output.point) for output in outputs if not task.losses(output, y).isfinite().all()]
                    raise broken(bad, f"at epoch {state.epoch + 1}, step {state.step + 1}", folder)
                state.tally(fabric, outputs, y, value, task, *counted)
                if average is not None:
                    average.update(model, (state.epoch - state.start) * steps + state.step)
                progress.step(state.epoch, value, len(outputs[0].logits) * fabric.world_size)
                ended = fabric.broadcast(interrupt.ended)  # looked at once: a signal from now on ends the next step
                due = ended or time.monotonic() - saved > settings.save_every_s
                if due and training.train.enters_anywhere:
                    state.seconds += time.monotonic() - began
                    save(fabric, folder, model, optimizer, state, average)
                    saved = began = time.monotonic()
                if ended:
                    fabric.barrier()  # Fabric kills what outlasts a process that it has started
                    raise Interrupted(training.resume, training.train.enters_anywhere)
            state.seconds += time.monotonic() - began
            end_epoch(training, group or points, state, progress, optimizer.param_groups[0]["lr"], average)
            save(fabric, folder, model, optimizer, state, average)
            saved = time.monotonic()
    fabric.barrier()  # the best weights are written
    return state


def averaged(model: FlexibleModel, settings: Train) -> Any:
    """timm's moving average of the weights, with a decay that starts low; None: none is wanted."""
    if not settings.ema:
        return None
    from timm.utils.model_ema import ModelEmaV3

    return ModelEmaV3(model, decay=settings.ema, use_warmup=True)


def broken(bad: list[str], when: str, folder: Path) -> TrainError:
    """Says which point's loss is not a number; the last good state stays."""
    state = "The last good state is kept" if newest_state(folder) else "No state was saved yet"
    who = f"point {', '.join(bad)}" if bad else "in the distillation or the penalty"
    return TrainError(
        f"the loss is not a finite number {when} ({who}).",
        f"{state} in {folder}. Lower train.lr, add train.warmup or train.clip, and start a new run.",
    )


def end_epoch(
    training: Training,
    points: Sequence[Point] | Group,
    state: TrainState,
    progress: Progress,
    lr: float,
    average: Any = None,
) -> None:
    """Validates, keeps the weights if they are the best so far, and writes a line of metrics."""
    settings, folder = training.settings, training.folder
    model: FlexibleModel = training.model if average is None else average.module
    how: dict[str, Any] = {
        "batch_size": max(256, training.batch_size),
        "channels_last": settings.memory_format == "channels_last",
    }
    with torch.compiler.set_stance("force_eager"):
        if isinstance(points, Group):  # the same of its points after every epoch
            scores = [evaluate_group(model, training.val, points, VALIDATED, settings.seed, **how)]
        else:
            scores = evaluate(model, training.val, points, **how)
    bad = [score.name for score in scores if not math.isfinite(score.loss)]
    if bad:
        raise broken(bad, f"after epoch {state.epoch + 1}, on the validation data", folder)
    merit = [mean_score(scores), -mean_loss(scores)]  # the second decides a tie
    if settings.select == "loss":
        merit.reverse()
    best = state.best is None or settings.select == "last" or merit > state.best
    state.history.append(training.fabric.broadcast(mean_loss(scores)))
    line: dict[str, Any] = {
        "epoch": state.epoch + 1,
        "step": (state.epoch + 1) * training.steps,
        "lr": lr,  # of the last step
        "precision": settings.precision,  # of the last steps, where a training was resumed in another
        "seconds": round(state.seconds, 3),
        "images_per_s": round(progress.rate, 1),
        "loss": state.joint[0] / state.joint[1],
        "metric": scores[0].metric,
        "higher_is_better": scores[0].higher_is_better,
        "train": state.means(),
        "val": {score.name: {"loss": score.loss, "score": score.score} for score in scores},
        "selected": best,
    }
    if best:
        state.best, state.best_epoch = merit, state.epoch + 1
    if training.fabric.is_global_zero:
        if best:
            files.write(folder / BEST, checkpoint.weights_of(model))
        add_metrics(folder, line)
    progress.epoch(state.epoch, line["loss"], scores, best and settings.select != "last")
    state.next_epoch()
