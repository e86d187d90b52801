"""The one training loop. Every random choice is a function of (seed, epoch, step), so that a resumed run is bit-equal.

Lightning Fabric carries it to other devices, precisions and nodes.
"""

import copy
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
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
from supple.errors import RecipeError, TrainError
from supple.evaluate import evaluate, evaluate_group, mean_loss, mean_score
from supple.features import cached
from supple.finish import finish, settled_points
from supple.initial import initialise
from supple.interrupt import Interrupted, Patience
from supple.losses import Objective, make_objective
from supple.model import FlexibleModel
from supple.point import FULL, Group, Point
from supple.probe import choose, compile_regions, pick_precision
from supple.progress import Progress
from supple.recipe import Recipe, Train
from supple.sampling import SAMPLERS, from_group, generator, seed_of
from supple.schedule import learning_rate, should_stop
from supple.standing import BEST, Standing, add_metrics, begin, claim, newest_state, restore, save, weights
from supple.tasks import TASKS
from supple.text import say, some

OPTIMIZERS: dict[str, Callable[[Any, Train], torch.optim.Optimizer]] = {
    "sgd": lambda p, t: torch.optim.SGD(p, t.lr, t.momentum, nesterov=t.nesterov, weight_decay=t.weight_decay),
    "adam": lambda p, t: torch.optim.Adam(p, t.lr, t.betas, t.eps, weight_decay=t.weight_decay),
    "adamw": lambda p, t: torch.optim.AdamW(p, t.lr, t.betas, t.eps, weight_decay=t.weight_decay),
}
VALIDATED = 4  # points of a group that validation looks at
PRECISIONS: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def train(recipe: Recipe | None, folder: str | Path, *, resume: bool = False, quiet: bool = False) -> Path:
    """Trains a recipe into a run folder and returns it. With `resume`, goes on from the newest valid state there."""
    folder = Path(folder)
    with claim(folder) if is_main() else nullcontext():
        started = begin(folder, recipe, resume or not is_main())
        if started is None:
            if not quiet:
                say(f"{folder} has finished; there is nothing to go on with.")
            return folder
        precision = pick_precision(started.train.precision, started.train.accelerator)
        started = started.model_copy(update={"train": started.train.model_copy(update={"precision": precision})})
        fabric = make_fabric(started.train)
        quiet = quiet or not fabric.is_global_zero
        splits = with_copies(started, load_data(started), quiet)
        model = fresh_model(started, splits)
        if newest_state(folder) is None or started.train.cache_features:
            initialise(model, started, quiet)
        copy.deepcopy(model).admit(settled_points(started))  # refuse now what could not be settled at the end
        objective = make_objective(started.loss, model.points, model.task)
        if not quiet:
            steps = len(splits.train) // started.data.batch_size or 1
            say(f"{started.data.name}: {splits}; {some(steps, 'step')} per epoch")
            for warning in costly_branches(profile(model)):
                say(warning)
        if fabric.is_global_zero and not (folder / checkpoint.RECIPE).is_file():
            started = pin(started, splits)
        data = cached(started, model, splits, quiet) if started.train.cache_features else (splits.train, splits.val)
        if fabric.is_global_zero and not (folder / checkpoint.RECIPE).is_file():
            started = choose(
                started, model, trained_points(started, model, 0), data[0], objective, fabric.device, quiet
            )
            files.write(folder / checkpoint.RECIPE, started.to_yaml())
        started = fabric.broadcast(started)
        standing = fit(fabric, started, folder, model, data, objective, quiet)
        if fabric.is_global_zero:
            finish(started, folder, splits, standing, quiet)
        fabric.barrier()
    return folder


def is_main() -> bool:
    """Whether this is the process that was started first: the only one, or the one that writes."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def make_fabric(settings: Train) -> Fabric:
    many = settings.devices * settings.nodes > 1
    # A step that leaves points out leaves parameters without a gradient.
    strategy = "ddp" if settings.sample == "every" else "ddp_find_unused_parameters_true"
    try:
        fabric = Fabric(
            accelerator=settings.accelerator,
            devices=settings.devices,
            num_nodes=settings.nodes,
            strategy=strategy if many else "auto",
            precision=PRECISIONS[settings.precision],
        )
    except (ValueError, RuntimeError) as error:
        cause = f"train.accelerator={settings.accelerator} cannot be used here: {' '.join(str(error).split())}"
        raise RecipeError(cause, "Use train.accelerator=auto, or cpu.") from None
    if many:
        fabric.launch()
    return fabric


def fit(
    fabric: Fabric,
    recipe: Recipe,
    folder: Path,
    model: FlexibleModel,
    data: tuple[Dataset, Dataset],
    objective: Objective,
    quiet: bool,
) -> Standing:
    """All phases of a training (mostly there is one): from the newest state in the folder, if any, to the last."""
    while True:
        found = newest_state(folder)
        points = trained_points(recipe, model, found[0].get("phase", 0) if found else 0)
        standing = fit_phase(fabric, recipe, folder, model, points, data, objective, quiet)
        if standing.phase + 1 == model.phases():
            return standing
        checkpoint.fill(model, checkpoint.read_tensors(folder / BEST), folder / BEST)
        standing.next_phase()
        if not quiet:
            say(f"phase {standing.phase + 1} of {model.phases()}")
        save(fabric, folder, model, None, standing)
        fabric.barrier()


def trained_points(recipe: Recipe, model: FlexibleModel, phase: int) -> tuple[Point, ...]:
    """The points that a phase runs, and that choose the epoch to keep: those that learn, and all where larger ones
    teach; of these, the one that is trained where it is one alone. For a group, the full model stands for all.
    """
    learning = model.enter(phase)
    if recipe.train.sample in model.groups:
        return (FULL,)
    taught = model.phases() == 1 and recipe.loss.get("teachers", "none") != "none"
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
) -> Standing:
    """The epochs of one phase."""
    settings, group, task = recipe.train, model.groups.get(recipe.train.sample), TASKS[model.task]
    sample = SAMPLERS[settings.sample] if group is None else from_group(group)
    wrapped, optimizer = set_up(fabric, settings, model)
    standing = restore(fabric, folder, model, optimizer)
    batch = recipe.data.batch_size * fabric.world_size
    steps = max(1, len(data[0]) // batch)
    done = (standing.epoch - standing.start) * steps + standing.step
    saved = time.monotonic()
    with (
        Patience() as patience,
        Progress(settings.epochs, steps, batch, done, quiet, model.preprocess.kind) as progress,
    ):
        while standing.epoch - standing.start < settings.epochs and not should_stop(
            standing.history, settings.early_stop
        ):
            model.train()
            began = time.monotonic()
            for x, y in batches(fabric, recipe, data[0], standing, steps):
                seed = seed_of(settings.seed, standing.epoch, standing.step)
                torch.manual_seed(seed)  # dropout and the like
                passed = standing.epoch - standing.start + standing.step / steps
                for part in optimizer.param_groups:
                    part["lr"] = learning_rate(settings, passed, standing.history)

                outputs = wrapped(x, sample(points, random.Random(seed)))
                loss = objective(outputs, y) + model.penalty(outputs)
                value = loss.item()
                if not math.isfinite(value):
                    bad = [str(output.point) for output in outputs if not task.losses(output, y).isfinite().all()]
                    raise broken(bad, f"at epoch {standing.epoch + 1}, step {standing.step + 1}", folder)
                optimizer.zero_grad()
                fabric.backward(loss)
                if settings.clip:
                    fabric.clip_gradients(wrapped, optimizer, max_norm=settings.clip)
                optimizer.step()

                standing.tally(outputs, y, value, task, group.name if group else None)
                progress.step(standing.epoch, value)
                ended = fabric.broadcast(patience.ended)  # looked at once: a signal from now on ends the next step
                if ended or time.monotonic() - saved > settings.save_every_s:
                    standing.seconds += time.monotonic() - began
                    save(fabric, folder, model, optimizer, standing)
                    saved = began = time.monotonic()
                if ended:
                    raise Interrupted(folder)
            standing.seconds += time.monotonic() - began
            end_epoch(fabric, recipe, folder, model, group or points, data[1], standing, progress, steps)
            save(fabric, folder, model, optimizer, standing)
            saved = time.monotonic()
    return standing


def set_up(fabric: Fabric, settings: Train, model: FlexibleModel) -> tuple[Any, torch.optim.Optimizer]:
    """Threads, memory format, optimizer and compilation as the resolved recipe says."""
    torch.set_num_threads(settings.threads)
    if settings.memory_format == "channels_last":
        model.to(memory_format=torch.channels_last)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learning:
        raise RecipeError("nothing in this model may learn.", "Set method.way or method.learn so that something does.")
    free = {id(parameter) for parameter in model.undecayed()}
    groups: list[dict[str, Any]] = [{"params": [parameter for parameter in learning if id(parameter) not in free]}]
    if free:
        groups.append({"params": [parameter for parameter in learning if id(parameter) in free], "weight_decay": 0.0})
    wrapped, optimizer = fabric.setup(model, OPTIMIZERS[settings.optimizer](groups, settings))
    if settings.compile == "on":
        compile_regions(model)
    return wrapped, optimizer


def batches(fabric: Fabric, recipe: Recipe, data: Dataset, standing: Standing, steps: int) -> Iterator[Any]:
    """What is left of the epoch under way, in its own random order; each process of several gets its share."""
    seed, epoch = recipe.train.seed, standing.epoch
    order = torch.randperm(len(data), generator=generator(seed, epoch))
    size = recipe.data.batch_size * fabric.world_size

    def read(step: int) -> tuple[Tensor, Tensor]:
        indices = order[step * size : (step + 1) * size][fabric.global_rank :: fabric.world_size]
        return data.batch(indices, generator(seed, epoch, step))

    for x, y in one_ahead(read, range(standing.step, steps), data.slow):
        if recipe.train.memory_format == "channels_last" and isinstance(x, Tensor):
            x = x.contiguous(memory_format=torch.channels_last)
        yield fabric.to_device((x, y))


def broken(bad: list[str], when: str, folder: Path) -> TrainError:
    """Says which point's loss is no number; the last good state stays."""
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
    held_out: Dataset,
    standing: Standing,
    progress: Progress,
    steps: int,
) -> None:
    """Validates, keeps the weights if they are the best so far, and writes a line of metrics."""
    how: dict[str, Any] = {
        "batch_size": max(256, recipe.data.batch_size),
        "channels_last": recipe.train.memory_format == "channels_last",
    }
    with torch.compiler.set_stance("force_eager"):
        if isinstance(points, Group):  # the same of its points after every epoch
            scores = [evaluate_group(model, held_out, points, VALIDATED, recipe.train.seed, **how)]
        else:
            scores = evaluate(model, held_out, points, **how)
    bad = [score.name for score in scores if not math.isfinite(score.loss)]
    if bad:
        raise broken(bad, f"after epoch {standing.epoch + 1}, on the held-out images", folder)
    merit = [mean_score(scores), -mean_loss(scores)]  # the second decides a tie
    if recipe.train.select == "loss":
        merit.reverse()
    best = standing.best is None or merit > standing.best
    standing.history.append(fabric.broadcast(mean_loss(scores)))
    line: dict[str, Any] = {
        "epoch": standing.epoch + 1,
        "step": (standing.epoch + 1) * steps,
        "lr": learning_rate(recipe.train, standing.epoch - standing.start + (steps - 1) / steps, standing.history[:-1]),
        "seconds": round(standing.seconds, 3),
        "images_per_s": round(progress.rate, 1),
        "loss": standing.joint[0] / standing.joint[1],
        "metric": scores[0].metric,
        "higher_is_better": scores[0].higher_is_better,
        "train": {point: _mean(sums) for point, sums in standing.sums.items()},
        "val": {score.name: {"loss": score.loss, "score": score.score} for score in scores},
        "selected": best,
    }
    if best:
        standing.best, standing.best_epoch = merit, standing.epoch + 1
    if fabric.is_global_zero:
        if best:
            files.write(folder / BEST, weights(model))
        add_metrics(folder, line)
    progress.epoch(standing.epoch, line["loss"], scores, best)
    standing.next_epoch()


def _mean(sums: list[float]) -> dict[str, float]:
    """Loss and, where single samples have one, score of a training epoch."""
    *totals, samples = sums
    return {name: total / samples for name, total in zip(("loss", "score"), totals)}
