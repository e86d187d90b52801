"""The one training loop. Every random choice is a function of (seed, epoch, step), so that a resumed run is bit-equal.

Lightning Fabric carries it to other devices, precisions and nodes.
"""

import copy
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from supple import checkpoint, files
from supple.assemble import fresh_model, load_data, pin, with_copies
from supple.cost import costly_branches, profile
from supple.data.images import one_ahead
from supple.data.samples import Dataset
from supple.errors import TrainError
from supple.evaluate import evaluate, evaluate_group, mean_loss, mean_score
from supple.features import cached
from supple.finish import finalize, settled_points
from supple.initial import initialise
from supple.interrupt import GracefulInterrupt, Interrupted
from supple.losses import Objective, make_objective
from supple.model import FlexibleModel
from supple.optim import set_rates
from supple.point import FULL, Group, Point
from supple.probe import choose, settle_precision
from supple.progress import Progress
from supple.recipe import Recipe
from supple.sampling import SAMPLERS, from_group, generator, seed_of
from supple.schedule import make_schedule, should_stop
from supple.standing import BEST, TrainState, add_metrics, begin, claim, newest_state, restore, save, weights
from supple.step import make_fabric, set_up, to_step, training_step
from supple.tasks import TASKS
from supple.text import say, some

VALIDATED = 4  # points of a group that validation looks at


def train(recipe: Recipe | None, folder: str | Path, *, resume: bool = False, quiet: bool = False) -> Path:
    """Trains a recipe into a run folder and returns it. With `resume`, goes on from the newest valid state there."""
    folder = Path(folder)
    with claim(folder) if is_main() else nullcontext():
        started = begin(folder, recipe, resume or not is_main())
        if started is None:
            if not quiet:
                say(f"{folder} has finished; there is nothing to resume.")
            return folder
        started = settle_precision(started, quiet or not is_main())
        fabric = make_fabric(started.train)
        quiet = quiet or not fabric.is_global_zero
        splits = with_copies(started, load_data(started), quiet)
        model = fresh_model(started, splits)
        if newest_state(folder) is None or started.train.cache_features:
            initialise(model, started, quiet)
        copy.deepcopy(model).add_points(settled_points(started))  # refuse now what could not be settled at the end
        objective = make_objective(started.loss, model.points, model.task)
        make_schedule(
            started.train, steps_of(started, splits.train, fabric)
        )  # refused now, not once it is written down
        if not quiet:
            steps = steps_of(started, splits.train, fabric)
            say(f"{started.data.name}: {splits}; {some(steps, 'step')} per epoch")
            for warning in costly_branches(profile(model)):
                say(warning)
        if fabric.is_global_zero and not (folder / checkpoint.RECIPE).is_file():
            started = pin(started, splits)
        data = cached(started, model, splits, quiet) if started.train.cache_features else (splits.train, splits.val)
        if fabric.is_global_zero and not (folder / checkpoint.RECIPE).is_file():
            points = trained_points(started, model, 0)
            chosen = choose(started, model, points, data[0], objective, fabric.device, quiet)
            if started.train.precision == "auto":  # measured only where this process is the only one
                fabric = make_fabric(chosen.train)
            started = chosen
            files.write(folder / checkpoint.RECIPE, started.to_yaml())
        started = fabric.broadcast(started)
        state = fit(fabric, started, folder, model, data, objective, quiet)
        if fabric.is_global_zero:
            finalize(started, folder, splits, state, quiet)
        fabric.barrier()
    return folder


def steps_of(recipe: Recipe, data: Dataset, fabric: Fabric) -> int:
    """Steps of an epoch; what is left over waits for the next."""
    return max(1, len(data) // (recipe.data.batch_size * fabric.world_size))


def is_main() -> bool:
    """Whether this is the process that was started first: the only one, or the one that writes."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def fit(
    fabric: Fabric,
    recipe: Recipe,
    folder: Path,
    model: FlexibleModel,
    data: tuple[Dataset, Dataset],
    objective: Objective,
    quiet: bool,
) -> TrainState:
    """All phases of a training (mostly there is one): from the newest state in the folder, if any, to the last."""
    while True:
        found = newest_state(folder)
        points = trained_points(recipe, model, found[0].get("phase", 0) if found else 0)
        state = fit_phase(fabric, recipe, folder, model, points, data, objective, quiet)
        if state.phase + 1 == model.num_phases():
            return state
        checkpoint.fill(model, checkpoint.read_tensors(folder / BEST), folder / BEST)
        state.next_phase()
        if not quiet:
            say(f"phase {state.phase + 1} of {model.num_phases()}")
        save(fabric, folder, model, None, state)
        fabric.barrier()


def trained_points(recipe: Recipe, model: FlexibleModel, phase: int) -> tuple[Point, ...]:
    """The points that a phase runs, and that choose the epoch to keep: those that learn, and all where larger ones
    teach; of these, the one that is trained where it is one alone. For a group, the full model stands for all.
    """
    learning = model.begin_phase(phase)
    if recipe.train.sample in model.groups:
        return (FULL,)
    taught = model.num_phases() == 1 and recipe.loss.get("teachers", "none") != "none"
    points = model.points if taught else learning
    return {"full": points[-1:], "smallest": points[:1]}.get(recipe.train.sample, points)


def fit_phase(
    fabric: Fabric,
    recipe: Recipe,
    folder: Path,
    model: FlexibleModel,
    points: Sequence[Point],
    data: tuple[Dataset, Dataset],
    objective: Objective,
    quiet: bool,
) -> TrainState:
    """The epochs of one phase."""
    settings, group, task = recipe.train, model.groups.get(recipe.train.sample), TASKS[model.task]
    sample = SAMPLERS[settings.sample] if group is None else from_group(group)
    wrapped, optimizer = set_up(fabric, settings, model)
    state = restore(fabric, folder, model, optimizer)
    batch, steps = recipe.data.batch_size * fabric.world_size, steps_of(recipe, data[0], fabric)
    done = (state.epoch - state.start) * steps + state.step
    factor = make_schedule(settings, steps)
    saved = time.monotonic()
    with (
        GracefulInterrupt() as interrupt,
        Progress(settings.epochs, steps, batch, done, quiet, model.preprocess.kind) as progress,
    ):
        while state.epoch - state.start < settings.epochs and not should_stop(state.history, settings.early_stop):
            model.train()
            began = time.monotonic()
            for x, y in batches(fabric, recipe, data[0], state, steps):
                seed = seed_of(settings.seed, state.epoch, state.step)
                torch.manual_seed(seed)  # dropout and the like
                set_rates(optimizer, factor(state.epoch - state.start + state.step / steps, state.history))
                chosen = sample(points, random.Random(seed))
                outputs, value = training_step(fabric, settings, wrapped, optimizer, objective, (x, y), chosen)
                if not math.isfinite(value):
                    bad = [str(output.point) for output in outputs if not task.losses(output, y).isfinite().all()]
                    raise broken(bad, f"at epoch {state.epoch + 1}, step {state.step + 1}", folder)
                state.tally(outputs, y, value, task, group.name if group else None)
                progress.step(state.epoch, value)
                ended = fabric.broadcast(interrupt.ended)  # looked at once: a signal from now on ends the next step
                if ended or time.monotonic() - saved > settings.save_every_s:
                    state.seconds += time.monotonic() - began
                    save(fabric, folder, model, optimizer, state)
                    saved = began = time.monotonic()
                if ended:
                    raise Interrupted(folder)
            state.seconds += time.monotonic() - began
            rate = optimizer.param_groups[0]["lr"]  # of the last step
            end_epoch(fabric, recipe, folder, model, group or points, data[1], state, progress, steps, rate)
            save(fabric, folder, model, optimizer, state)
            saved = time.monotonic()
    return state


def batches(fabric: Fabric, recipe: Recipe, data: Dataset, state: TrainState, steps: int) -> Iterator[Any]:
    """What is left of the epoch under way, in its own random order; each process of several gets its share."""
    seed, epoch = recipe.train.seed, state.epoch
    order = torch.randperm(len(data), generator=generator(seed, epoch))
    size = recipe.data.batch_size * fabric.world_size

    def read(step: int) -> tuple[Tensor, Tensor]:
        indices = order[step * size : (step + 1) * size][fabric.global_rank :: fabric.world_size]
        return data.batch(indices, generator(seed, epoch, step))

    for batch in one_ahead(read, range(state.step, steps), data.slow):
        yield to_step(fabric, recipe.train, batch)


def broken(bad: list[str], when: str, folder: Path) -> TrainError:
    """Says which point's loss is not a number; the last good state stays."""
    state = "The last good state is kept" if newest_state(folder) else "No state was saved yet"
    who = f"point {', '.join(bad)}" if bad else "in the distillation or the penalty"
    return TrainError(
        f"the loss is not a finite number {when} ({who}).",
        f"{state} in {folder}. Lower train.lr, add train.warmup or train.clip, and start a new run.",
    )


def end_epoch(
    fabric: Fabric,
    recipe: Recipe,
    folder: Path,
    model: FlexibleModel,
    points: Sequence[Point] | Group,
    val: Dataset,
    state: TrainState,
    progress: Progress,
    steps: int,
    lr: float,
) -> None:
    """Validates, keeps the weights if they are the best so far, and writes a line of metrics."""
    how: dict[str, Any] = {
        "batch_size": max(256, recipe.data.batch_size),
        "channels_last": recipe.train.memory_format == "channels_last",
    }
    with torch.compiler.set_stance("force_eager"):
        if isinstance(points, Group):  # the same of its points after every epoch
            scores = [evaluate_group(model, val, points, VALIDATED, recipe.train.seed, **how)]
        else:
            scores = evaluate(model, val, points, **how)
    bad = [score.name for score in scores if not math.isfinite(score.loss)]
    if bad:
        raise broken(bad, f"after epoch {state.epoch + 1}, on the validation data", folder)
    merit = [mean_score(scores), -mean_loss(scores)]  # the second decides a tie
    if recipe.train.select == "loss":
        merit.reverse()
    best = state.best is None or merit > state.best
    state.history.append(fabric.broadcast(mean_loss(scores)))
    line: dict[str, Any] = {
        "epoch": state.epoch + 1,
        "step": (state.epoch + 1) * steps,
        "lr": lr,
        "precision": recipe.train.precision,  # of the last steps, where a training went on in another
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
    if fabric.is_global_zero:
        if best:
            files.write(folder / BEST, weights(model))
        add_metrics(folder, line)
    progress.epoch(state.epoch, line["loss"], scores, best)
    state.next_epoch()


def _mean(sums: list[float]) -> dict[str, float]:
    """Loss and, where single samples have one, score of a training epoch."""
    *totals, samples = sums
    return {name: total / samples for name, total in zip(("loss", "score"), totals)}
