"""Verbs that make a flexible model, or another one of it: train, fit, extract, prune, merge."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from supple import checkpoint
from supple.checkpoint import Run, Source
from supple.data.preprocess import saved_preprocess
from supple.data.registry import load as load_set
from supple.errors import DataError, RecipeError
from supple.methods.ranking import Ranking
from supple.model import FlexibleModel
from supple.opening import Path_, check_targets, class_names, input_settings, must_take, open_source
from supple.point import AnyPoint
from supple.recipe import Recipe, load_recipe
from supple.surgery.extract import extract_to
from supple.surgery.merge import merge as merge_models
from supple.surgery.merge import merge_to, plan_merge
from supple.surgery.prune import Plan, cut
from supple.surgery.prune import save as save_pruned
from supple.tasks import get_task
from supple.training.loop import fit_model
from supple.training.loop import train as train_recipe
from supple.training.optim import fine_tuning
from supple.training.propose import is_pictures, train_pictures


def train(
    recipe: Recipe | Path_,
    out: Path_,
    changes: Iterable[str] = (),
    *,
    resume: bool = False,
    progress: bool = False,
    **asked: Any,
) -> Run:
    """Trains a recipe, given as a file or an object, into a run folder; changes such as "train.epochs=3".

    Or pictures: a folder, a zip or a .csv, for which a recipe is made up. asked, for pictures: minutes=30,
    network="deit_tiny_patch16_224", weights=FILE, method="exits".
    """
    if not isinstance(recipe, Recipe) and is_pictures(os.fspath(recipe)):
        how: dict[str, Any] = {"resume": resume, "quiet": not progress, **asked}
        folder = train_pictures(os.fspath(recipe), Path(out), tuple(changes), **how)
        return Run(folder, checkpoint.load(folder))
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(os.fspath(recipe), changes)
    elif changes := tuple(changes):
        recipe = checkpoint.changed(recipe.resolved(), changes)
    if asked:
        raise RecipeError(
            f"{next(iter(asked))} is for pictures, not for a recipe.", "Leave it out, or change the recipe."
        )
    folder = train_recipe(recipe, Path(out), resume=resume, quiet=not progress)
    return Run(folder, checkpoint.load(folder))


def fit(
    model: FlexibleModel,
    data: Any,
    val: Any = None,
    *,
    out: Path_,
    epochs: int = 10,
    test: Any = None,
    batch_size: int = 64,
    classes: Sequence[str] | None = None,
    preprocess: Any = None,
    task: str | None = None,
    loss: str | Mapping[str, Any] | None = None,
    resume: bool = False,
    progress: bool = False,
    **train: Any,
) -> Run:
    """Trains a model in place, and writes it as a run: in the end it has the weights of the best epoch.

    data, val, test: data sets, or loaders, which have a batch size of their own; or data alone, a path of pictures,
    which is split. `val` chooses the epoch; the run's scores are on `test` or, without one, on `val`. classes (names)
    and preprocess (a mapping with size, channels, mean and std) are needed for answers from files; pictures bring their
    own. task: what the model is for, if not what it was built for. loss and the further keywords are those of a
    recipe's sections `loss` and `train`: lr=0.01, optimizer="adamw". A model that started from trained weights is
    fine-tuned (AdamW, averaged weights), if neither lr nor optimizer is given. `resume=True` goes on with a training
    that was interrupted, with a loader from the last whole epoch on.
    """
    about: dict[str, Any] = {"batch_size": batch_size}
    if task is not None:
        model.task = get_task(task).name
    if isinstance(data, (str, os.PathLike)):
        if val is not None or test is not None:
            raise DataError("data is a path, which is split: val and test do not go with it.", "Leave them out.")
        shape = model.input_shape or (3, 0, 0)
        settings = {"root": os.fspath(data), **input_settings(model), "size": shape[1], "channels": shape[0]}
        splits = load_set("folder", **settings)
        data, val, test = splits.train, splits.val, splits.test
        classes, preprocess = splits.train.classes, splits.train.preprocess
        about |= {"name": "folder", **settings, **preprocess.facts()}
        about |= {"classes": len(classes), "fingerprint": splits.fingerprint}
    if val is None:
        raise DataError("val is missing: the best epoch is chosen with it.", "Give samples that are not trained on.")
    must_take(model, data)
    model.classes = class_names(model, data, classes)
    check_targets(model, data)
    if preprocess is not None:
        found = preprocess if hasattr(preprocess, "arrays") else saved_preprocess(model.task, dict(preprocess))
        model.preprocess = found
    usual = fine_tuning(model) if model.expected_input and not train.keys() & {"lr", "optimizer"} else {}
    settings = {**usual, "epochs": epochs, **train}
    loss = {"name": loss} if isinstance(loss, str) else loss
    how: dict[str, Any] = {"loss": loss, "about": about, "resume": resume, "quiet": not progress}
    return Run(fit_model(model, data, val, Path(out), settings, test=test, **how), model)


def extract(source: Source, out: Path_, point: AnyPoint = "full", *, deploy: bool = False) -> Path:
    """One point as an ordinary network in a new folder, for `torch.export.load`; see also `model.extract`."""
    extract_to(open_source(source).model, point, Path(out), deploy)
    return Path(out)


def prune(
    source: Source,
    ratio: float | None = None,
    *,
    widths: Sequence[float] | None = None,
    ranking: Ranking = "global",
    by: str = "score",
    multiple: int = 1,
    seed: int = 0,
    out: Path_ | None = None,
    data: Any = None,
) -> FlexibleModel:
    """A transformer without the share `ratio` of its dimensions that matter least; or, with `widths`, one model for
    several shares kept. out: a new run folder for it, scored on `data`.
    """
    opened = open_source(source)
    small = cut(opened.model, ratio, widths, Plan(ranking, by, multiple, seed)).model
    if out is not None:
        checkpoint.check_out(Path(out))
        save_pruned(Path(out), small, opened.data(data, "test"))
    return small


def merge(
    sources: Sequence[Source],
    plan: Sequence[int] | None = None,
    *,
    ends: int | Literal["mean"] = 1,
    seed: int = 0,
    out: Path_ | None = None,
    data: Any = None,
) -> FlexibleModel:
    """One model of the layers of several. plan: for every layer its source, from 1; None: a random one that takes no
    source twice. ends: whose stem, norm and head. out: a new run folder for it, scored on `data`.
    """
    planned = plan_merge(sources, plan, ends, seed)
    if out is None:
        return merge_models(planned.models, planned.plan, planned.owner)
    checkpoint.check_out(Path(out))
    return merge_to(Path(out), planned, open_source(sources[0]).data(data, "test"))
