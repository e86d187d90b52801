"""What goes on inside trained models: pure functions from a model and images to arrays, and pictures of these."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from supple.analysis.dense import analyse_dense
from supple.analysis.finding import Finding, Subject
from supple.analysis.shuffle import analyse_shuffle
from supple.analysis.skip import analyse_skip
from supple.errors import RecipeError
from supple.model import FlexibleModel
from supple.point import Point
from supple.scoring import OnProgress

ANALYSES: dict[str, Callable[..., Finding]] = {
    "shuffle": analyse_shuffle,
    "dense": analyse_dense,
    "skip": analyse_skip,
}
# Of test images: how many are drawn where nobody says it (None: all), and how many are needed.
IMAGES = {"shuffle": (1000, 20), "dense": (256, 1), "skip": (None, 1)}


def method_of(model: FlexibleModel, name: str) -> str:
    """The method of a model, if there is an analysis for it."""
    method = str((model.method_spec or {}).get("name", type(model).__name__.lower()))
    if method not in ANALYSES:
        cure = f"Methods that can be analysed: {', '.join(sorted(ANALYSES))}."
        raise RecipeError(f"{name} is a run of method {method}, which cannot be analysed.", cure)
    return method


def check_options(method: str, **given: object) -> None:
    """Refuses what is meant for another method."""
    for option, value in given.items():
        wanted = "skip" if option == "point" else "shuffle"
        if value is not None and method != wanted:
            cause = f"--{option} is for runs of method {wanted}, and this is one of method {method}."
            raise RecipeError(cause, f"Leave --{option} out.")


def analyse(
    subject: Subject,
    *,
    layer: int | None = None,
    orders: int | None = None,
    base: Subject | None = None,
    points: Sequence[Point] = (),
    on_progress: OnProgress | None = None,
) -> Finding:
    """What there is to see of a model; beside another one (`base`) of the same classes, if it is shuffled."""
    method = method_of(subject.model, subject.name)
    options: dict[str, Any] = {"points": points} if method == "skip" else {}
    if method == "shuffle":
        options = {"layer": layer, "orders": orders}
    if base is not None:
        other = method_of(base.model, base.name)
        if other != "shuffle":
            raise RecipeError(f"--base {base.name} is a run of method {other}.", "Name a run of method shuffle.")
        if base.model.classes != subject.model.classes:
            cause = f"--base {base.name} knows other classes than {subject.name}."
            raise RecipeError(cause, "Name a run that was trained on the same data.")
        options["base"] = base
    found = ANALYSES[method](subject, **options, on_progress=on_progress)
    return replace(found, facts={"method": method, **found.facts})
