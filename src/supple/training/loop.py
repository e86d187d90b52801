"""The one training loop. Every random choice is a function of (seed, epoch, step), so that a resumed run is bit-equal.

Lightning Fabric carries it to other devices, precisions and nodes.
"""

import copy
import json
import math
import os
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
from supple.cost import costly_branches, profile
from supple.data.loaders import Batches, as_batches
from supple.errors import RecipeError, TrainError
from supple.losses import OBJECTIVES, Objective, make_objective, usual_loss
from supple.model import FlexibleModel
from supple.point import FULL, Group, Point
from supple.progress import Progress
from supple.recipe import Recipe, Train, make_train, named_settings
from supple.sampling import SAMPLERS, from_group, seed_of
from supple.scoring import evaluate, evaluate_group, mean_loss, mean_score
from supple.tasks import TASKS
from supple.text import say, some
from supple.training.autotune import choose, settle_precision
from supple.training.build import fresh_model, load_data, pin, with_copies
from supple.training.feature_cache import cached
from supple.training.finalize import finalize, settle, settled_points
from supple.training.init import initialise
from supple.training.optim import set_rates
from supple.training.schedule import make_schedule, should_stop
from supple.training.state import (
    BEST,
    FIT,
    GracefulInterrupt,
    Interrupted,
    TrainState,
    add_metrics,
    begin,
    begin_fit,
    claim,
    newest_state,
    restore,
    save,
    weights,
)
from supple.training.step import make_fabric, set_up, to_step, training_step

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
    objective: Objective
    batch_size: int  # of each process
    taught: bool  # whether larger points teach smaller ones
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

    def with_choices(self) -> "Training":
        """With what only a clock can choose, see `probe`; another precision needs another Fabric."""
        points, example = trained_points(self, 0), self.train.example(self.batch_size)
        total = self.settings.epochs * self.steps
        chosen = choose(
            self.settings, self.model, points, example, total, self.objective, self.fabric.device, self.quiet
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
        settings = settle_precision(started.train, quiet or not is_main())
        started = started.model_copy(update={"train": settings})
        fabric = make_fabric(settings)
        quiet = quiet or not fabric.is_global_zero
        splits = with_copies(started, load_data(started), quiet)
        model = fresh_model(started, splits)
        if newest_state(folder) is None or settings.cache_features:
            initialise(model, started, quiet)
        objective = make_objective(started.loss, model.points, model.task)
        first = fabric.is_global_zero and not (folder / checkpoint.RECIPE).is_file()
        if first:
            started = pin(started, splits)
        learnt, val = cached(started, model, splits, quiet) if settings.cache_features else (splits.train, splits.val)
        again = f"supple train {folder} --resume"
        taught, size = teaches(started.loss), started.data.batch_size
        batches = as_batches(learnt)
        training = Training(fabric, settings, folder, model, batches, val, objective, size, taught, quiet, again)
        refuse_early(training)
        if not quiet:
            say(f"{started.data.name}: {splits}; {some(training.steps, 'step')} per epoch")
            for warning in costly_branches(profile(model)):
                say(warning)
        if first:
            training = training.with_choices()
            started = started.model_copy(update={"train": training.settings})
            files.write(folder / checkpoint.RECIPE, started.to_yaml())
        fabric = training.fabric
        started = fabric.broadcast(started)
        state = fit(replace(training, settings=started.train))
        if fabric.is_global_zero:
            finalize(started, folder, splits, state, quiet)
        fabric.barrier()
    return folder


def fit_model(
    model: FlexibleModel,
    data: Any,
    val: Any,
    folder: str | Path,
    settings: Train | Mapping[str, Any] | None = None,
    *,
    loss: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    resume: bool = False,
    quiet: bool = False,
) -> TrainState:
    """Trains a model in place, without a recipe: in the end it has the best epoch's weights, settled, in eval mode.

    `data` and `val` are data sets or loaders (see `data/loaders.py`); a loader has a batch size of its own. `settings`
    are those of a recipe's `train` section, `loss` of its `loss` section (None: the task's usual one). The folder
    gets the metrics and the states from which the same call with `resume` goes on.
    """
    folder, where = Path(folder), "fit_model"
    settings = settings if isinstance(settings, Train) else make_train(settings or {}, where)
    refuse_unused(settings)
    wanted = named_settings("loss", dict(loss or {"name": usual_loss(model.task)}), OBJECTIVES, where)
    with claim(folder) if is_main() else nullcontext():
        sections = {"train": settings.model_dump(mode="json"), "loss": wanted, "data": {"batch_size": batch_size}}
        sections = begin_fit(folder, sections, resume or not is_main())
        settings = settle_precision(make_train(sections["train"], where), quiet or not is_main())
        fabric = make_fabric(settings)
        quiet = quiet or not fabric.is_global_zero
        objective, taught = make_objective(wanted, model.points, model.task), teaches(wanted)
        batches, again = as_batches(data), "make the same call with resume=True"
        training = Training(fabric, settings, folder, model, batches, val, objective, batch_size, taught, quiet, again)
        refuse_early(training)
        if fabric.is_global_zero and not (folder / FIT).is_file():
            training = training.with_choices()
            sections["train"] = training.settings.model_dump(mode="json")
            files.write(folder / FIT, json.dumps(sections, indent=1))
        state = fit(replace(training, settings=training.fabric.broadcast(training.settings)))
        checkpoint.fill(model, checkpoint.read_tensors(folder / BEST), folder / BEST)
        settle(model, data, val, settled_points(settings), settings.seed)
    model.eval()
    return state


def is_main() -> bool:
    """Whether this is the process that was started first: the only one, or the one that writes."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def refuse_early(training: Training) -> None:
    """Refuses, before anything is written, what could not be followed later."""
    if training.fabric.world_size > 1 and not training.train.enters_anywhere:
        cause = "several processes cannot share a loader that makes its own batches."
        raise RecipeError(cause, "Give a data set instead, or set devices and nodes to 1.")
    copy.deepcopy(training.model).add_points(settled_points(training.settings))
    make_schedule(training.settings, training.steps)


def refuse_unused(settings: Train) -> None:
    for key in ("init", "cache_features"):
        if getattr(settings, key):
            cause = f"train.{key} is set, but the model is given."
            raise RecipeError(cause, "Leave it out: the training starts from the model as it is.")


def teaches(loss: Mapping[str, Any]) -> bool:
    return bool(loss.get("teachers", "none") != "none")


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
    wrapped, optimizer = set_up(fabric, settings, model)
    state = restore(fabric, folder, model, optimizer)
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
                torch.manual_seed(seed)  # dropout and the like
                set_rates(optimizer, factor(state.epoch - state.start + state.step / steps, state.history))
                chosen = sample(points, random.Random(seed))
                outputs, value = training_step(fabric, settings, wrapped, optimizer, training.objective, (x, y), chosen)
                if not math.isfinite(value):
                    bad = [str(output.point) for output in outputs if not task.losses(output, y).isfinite().all()]
                    raise broken(bad, f"at epoch {state.epoch + 1}, step {state.step + 1}", folder)
                state.tally(outputs, y, value, task, group.name if group else None)
                progress.step(state.epoch, value, len(outputs[0].logits) * fabric.world_size)
                ended = fabric.broadcast(interrupt.ended)  # looked at once: a signal from now on ends the next step
                due = ended or time.monotonic() - saved > settings.save_every_s
                if due and training.train.enters_anywhere:
                    state.seconds += time.monotonic() - began
                    save(fabric, folder, model, optimizer, state)
                    saved = began = time.monotonic()
                if ended:
                    raise Interrupted(training.resume, training.train.enters_anywhere)
            state.seconds += time.monotonic() - began
            end_epoch(training, group or points, state, progress, optimizer.param_groups[0]["lr"])
            save(fabric, folder, model, optimizer, state)
            saved = time.monotonic()
    return state


def broken(bad: list[str], when: str, folder: Path) -> TrainError:
    """Says which point's loss is not a number; the last good state stays."""
    state = "The last good state is kept" if newest_state(folder) else "No state was saved yet"
    who = f"point {', '.join(bad)}" if bad else "in the distillation or the penalty"
    return TrainError(
        f"the loss is not a finite number {when} ({who}).",
        f"{state} in {folder}. Lower train.lr, add train.warmup or train.clip, and start a new run.",
    )


def end_epoch(
    training: Training, points: Sequence[Point] | Group, state: TrainState, progress: Progress, lr: float
) -> None:
    """Validates, keeps the weights if they are the best so far, and writes a line of metrics."""
    settings, model, folder = training.settings, training.model, training.folder
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
    best = state.best is None or merit > state.best
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
        "train": {point: _mean(sums) for point, sums in state.sums.items()},
        "val": {score.name: {"loss": score.loss, "score": score.score} for score in scores},
        "selected": best,
    }
    if best:
        state.best, state.best_epoch = merit, state.epoch + 1
    if training.fabric.is_global_zero:
        if best:
            files.write(folder / BEST, weights(model))
        add_metrics(folder, line)
    progress.epoch(state.epoch, line["loss"], scores, best)
    state.next_epoch()


def _mean(sums: list[float]) -> dict[str, float]:
    """Loss and, where single samples have one, score of a training epoch."""
    *totals, samples = sums
    return {name: total / samples for name, total in zip(("loss", "score"), totals)}
