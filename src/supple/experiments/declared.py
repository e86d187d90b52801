"""Experiments: one YAML file says which arms are trained, on which seeds, and which difference decides which claim.

A file of recipes/claims/ is the whole story: a recipe, the arms as changes to it, and the claims, each with the one
difference that decides it, named before anything was run.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from supple.errors import RecipeError
from supple.experiments.verdict import Expect
from supple.recipe import EXPERIMENTS, STRICT, read_document, recipe_folders, with_changes
from supple.text import did_you_mean, first, nearest

FIXED = ("precision", "memory_format", "compile", "threads")  # settings that every experiment states
Names = Annotated[tuple[str, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class Term(BaseModel):
    """What an arm scores: the mean over these points, groups of points or measures."""

    model_config = STRICT
    arm: str
    at: Names = ("full",)
    sources: bool = False  # the mean of the runs that it is merged from, instead of it
    macs: bool = False  # what these points cost, earlier exits included, in MMACs, instead of what they score


Side = (
    float | Annotated[tuple[Term, ...], BeforeValidator(lambda given: [given] if isinstance(given, dict) else given)]
)  # several terms are added


class Difference(BaseModel):
    model_config = STRICT
    of: Side
    minus: Side = 0.0

    def terms(self) -> list[tuple[int, Term]]:
        """The terms, each with its sign."""
        sides = ((1, self.of), (-1, self.minus))
        return [(sign, term) for sign, side in sides if not isinstance(side, float) for term in side]

    def constant(self) -> float:
        sides = ((1, self.of), (-1, self.minus))
        return sum(sign * side for sign, side in sides if isinstance(side, float))


class Condition(Difference):
    """A difference, and what is expected of it."""

    expect: Expect  # above or below 0; within the margin around 0; at_least: not below minus the margin
    margin: float = Field(1.0, gt=0)  # points, or whatever the unit of the claim is


class Claim(Condition):
    """A claim and the primary difference that decides it."""

    text: str
    published: float | None = None  # the same difference in the paper, in the same unit
    unit: str = "points"  # of the scores, if not percentage points: people
    figures: str = ""  # as the paper prints them
    requires: dict[str, Condition] = {}  # the second half of a claim such as "at lower cost": without it, it fails
    also: dict[str, Difference] = {}  # shown with their intervals; they decide nothing
    note: str = ""

    def differences(self) -> list[Difference]:
        return [self, *self.requires.values(), *self.also.values()]


class Weights(BaseModel):
    """A file to start from, looked for as data are; its content is part of what a run is."""

    model_config = STRICT
    file: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Pool(BaseModel):
    """Runs of one arm that become one model, by the number that the model has as its seed."""

    model_config = STRICT
    of: str
    pools: dict[int, tuple[int, ...]]


class Arm(BaseModel):
    model_config = STRICT
    changes: tuple[str, ...] = ()  # to the recipe: train.sample=arbitrary
    sections: dict[str, dict[str, Any]] = {}  # of the recipe, replaced as a whole before that
    after: str | None = None  # starts from this arm's run of the same seed, or from its only run
    prune: float | None = Field(None, ge=0, lt=1)  # share cut from that run first; its recipe is then the one changed
    merge: Pool | None = None  # instead of a training: layers of several runs in one model
    ensemble: Pool | None = None  # instead of a training: the mean logits of several runs
    seeds: tuple[int, ...] | None = None  # others than the experiment's
    evaluate: tuple[str, ...] | None = None  # others than the experiment's; []: it is only a start for others

    @property
    def pool(self) -> Pool | None:
        return self.merge or self.ensemble


class Experiment(BaseModel):
    model_config = STRICT
    title: str
    regime: str  # how size, epochs and rate were chosen, on the baseline arm alone
    order: int = Field(100, ge=1)  # of `--all`: hours are spent on the first ones
    hours: float = Field(2.0, gt=0)  # of a core, the most that one run may take: training, validation and evaluation
    core_hours: float = Field(gt=0)  # what all of it takes, about
    seeds: tuple[int, ...]
    by_seed: tuple[str, ...] = ()  # settings of the data that are the seed, too: data.fold
    evaluate: tuple[str, ...] = ("full",)  # points, groups of points and measures (see evaluation.py)
    weights: Weights | None = None  # that arms without `after` start from
    recipe: dict[str, Any]
    arms: dict[str, Arm]
    claims: dict[str, Claim]

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        one = self.arms[arm]
        return tuple(one.pool.pools) if one.pool else one.seeds if one.seeds is not None else self.seeds

    def evaluated(self, arm: str) -> tuple[str, ...]:
        own = self.arms[arm].evaluate
        return self.evaluate if own is None else own

    def needs(self, arm: str, seed: int) -> list[tuple[str, int]]:
        """The runs that a run is made from."""
        one = self.arms[arm]
        if one.pool is not None:
            return [(one.pool.of, member) for member in one.pool.pools[seed]]
        return [self.run_of(other, seed) for other in self.above(arm)]

    def above(self, arm: str) -> list[str]:
        """The arms that an arm is made from: what is merged; or what it starts from, and who labels copied images."""
        one = self.arms[arm]
        named = [one.pool.of] if one.pool else [one.after, self.labeller(arm)]
        return [other for other in dict.fromkeys(named) if other is not None]

    def labeller(self, arm: str) -> str | None:
        """The arm whose run labels the copied images of another (copycat)."""
        found = (self.document(arm).get("copycat") or {}).get("labeller")
        return None if found is None else str(found)

    def run_of(self, arm: str, seed: int) -> tuple[str, int]:
        """The run of an arm that others of a seed are made from: that of the same seed, or its only one."""
        seeds = self.seeds_of(arm)
        return arm, seeds[0] if len(seeds) == 1 else seed

    def arms_of(self, claims: Iterable[str]) -> list[str]:
        """The arms that claims compare, and those that these are made from; what comes first stands first."""
        found: dict[str, None] = {}

        def add(arm: str) -> None:
            for other in self.above(arm):
                add(other)
            found.setdefault(arm)

        for claim in (self.claims[name] for name in claims):
            for difference in claim.differences():
                for _, term in difference.terms():
                    add(term.arm)
        return list(found)

    def document(self, arm: str) -> dict[str, Any]:
        """The recipe of an arm as plain data, but for its seed and where it starts from."""
        one = self.arms[arm]
        recipe = self.recipe
        if one.prune is not None and one.after in self.arms:
            recipe = {**self.document(one.after), "method": {"name": "static"}}
        return with_changes({**recipe, **one.sections}, one.changes)

    def hash(self, arm: str, seed: int) -> str:
        """Of all that decides a run: recipe, seed, and the runs that it is made from. Neither of paths nor of defaults,
        so that a setting added to supple later leaves it as it is.
        """
        one, before = self.arms[arm], [self.hash(*other) for other in self.needs(arm, seed)]
        facts: dict[str, Any] = {"before": before}
        if one.pool is not None:
            facts |= {"make": "merge" if one.merge else "ensemble", "pool": seed}
        else:
            facts |= {"recipe": self.document(arm), "seed": seed, "prune": one.prune}
            facts |= {"weights": self.weights.sha256 if self.weights and one.after is None else None}
            facts |= {"by_seed": self.by_seed} if self.by_seed else {}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# --- reading ----------------------------------------------------------------------------------------------------------


def experiment_files() -> dict[str, Path]:
    """The experiments that come with supple, by name."""
    return {path.stem: path for root in recipe_folders()[:1] for path in sorted((root / EXPERIMENTS).glob("*.yaml"))}


def load_experiment(name: str | Path) -> Experiment:
    """An experiment that comes with supple, by its name; or a file."""
    known = experiment_files()
    path = known.get(str(name), Path(name))
    if not path.is_file():
        close = nearest(str(name), known)
        guess = f'Did you mean "{close}"? ' if close else ""
        raise RecipeError(f"there is no experiment {name}.", f"{guess}There are: {first(list(known), 30)}.")
    document = read_document(path)
    if not isinstance(document, dict):
        raise RecipeError(f"{path} has no keys.", f"An experiment has: {', '.join(Experiment.model_fields)}.")
    try:
        experiment = Experiment.model_validate(document)
    except ValidationError as error:
        raise RecipeError(*_invalid(error, str(path))) from None
    check(experiment, str(path))
    return experiment


def _invalid(error: ValidationError, where: str) -> tuple[str, str]:
    found = error.errors()[0]
    key = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden" and len(found["loc"]) == 1:
        return f'{where}: unknown key "{key}".', did_you_mean(key, Experiment.model_fields)
    if found["type"] == "missing":
        return f'{where}: "{key}" is missing.', "Add it; see recipes/claims/ for examples."
    return f'{where}: "{key}" is {str(found["input"])[:60]!r}.', f"{found['msg']}. See recipes/claims/ for examples."


def check(experiment: Experiment, where: str) -> None:
    """Refuses what could not be run, or not be judged."""
    for key in experiment.by_seed:
        if not key.startswith("data."):
            raise RecipeError(f"{where}: by_seed has {key}.", "Name settings of the data, such as data.fold.")
    for name, arm in experiment.arms.items():
        _check_arm(experiment, name, arm, f"{where}: arms.{name}")
    for name, claim in experiment.claims.items():
        if not re.fullmatch(r"C\d{1,3}", name):
            raise RecipeError(f'{where}: "{name}" is not the number of a claim.', "Write C16; see docs/claims.md.")
        for difference in claim.differences():
            _check_terms(experiment, difference, f"{where}: claims.{name}")


def _check_arm(experiment: Experiment, name: str, arm: Arm, where: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise RecipeError(f"{where}: the name of an arm is part of file names.", "Use small letters, digits and _.")
    ways = [way for way in ("prune", "merge", "ensemble") if getattr(arm, way) is not None]
    if len(ways) > 1 or (arm.pool and (arm.after or arm.changes or arm.sections or arm.seeds)):
        raise RecipeError(f"{where} is made in several ways.", "A merge or an ensemble takes no other keys.")
    if arm.prune is not None and arm.after is None:
        raise RecipeError(f"{where}: there is nothing to prune.", "Say which arm was searched: after: search.")
    earlier = list(experiment.arms)[: list(experiment.arms).index(name)]
    for before in experiment.above(name):
        if before not in earlier:
            cause = f"{where} is made from {before}, which is not declared above it."
            raise RecipeError(cause, did_you_mean(before, earlier))
    for own in experiment.seeds_of(name):
        for before, seed in experiment.needs(name, own):
            if seed not in experiment.seeds_of(before):
                cause = f"{where} needs {before} with seed {seed}, which is not trained."
                raise RecipeError(cause, f"The seeds of {before} are {list(experiment.seeds_of(before))}.")
            if experiment.by_seed and seed != own:
                cause = f"{where} is made from {before} with seed {seed}, which has other data: by_seed is set."
                raise RecipeError(cause, f"Give {before} the seeds of {name}.")
    if arm.pool is None:
        check_fixed(experiment.document(name), where)


def check_fixed(document: Mapping[str, Any], where: str) -> None:
    """Refuses settings that a clock or a machine would choose, and anything but all test images."""
    train = document.get("train") or {}
    for key in FIXED:
        given = train.get(key, "auto")
        if given in ("auto", 0):
            cure = "The regime states it for all arms: precision: fp32, memory_format: channels_first, compile: off,"
            raise RecipeError(f"{where}: train.{key} is {given}.", f"{cure} threads: 1.")
    limit = (document.get("data") or {}).get("test_limit")
    if limit is not None:
        raise RecipeError(f"{where}: data.test_limit is {limit}.", "Leave it out: a claim is decided on all images.")
    for key, value in (("seed", train.get("seed")), ("init", train.get("init"))):
        if value is not None and not (key == "init" and value == "pretrained"):
            cure = "Use seeds, weights and after." if key == "init" else "Use seeds."
            raise RecipeError(f"{where}: train.{key} is {value}.", cure)


def _check_terms(experiment: Experiment, difference: Difference, where: str) -> None:
    if not difference.terms():
        raise RecipeError(f"{where} compares nothing.", "Say which arm: of: {arm: shuffle, at: arbitrary}.")
    for _, term in difference.terms():
        if term.arm not in experiment.arms:
            raise RecipeError(
                f'{where}: there is no arm "{term.arm}".',
                did_you_mean(term.arm, experiment.arms),
            )
        pool = experiment.arms[term.arm].pool
        if term.sources and pool is None:
            cause = f"{where}: {term.arm} is merged from nothing: it has no sources."
            raise RecipeError(cause, "Leave sources out.")
        for name in term.at:
            known = experiment.evaluated(pool.of if pool and term.sources else term.arm)
            if name not in known:
                cause = f'{where}: "{name}" of {term.arm} is not evaluated.'
                raise RecipeError(cause, f"{did_you_mean(name, known)} Or add it to evaluate.")


# --- seeds ------------------------------------------------------------------------------------------------------------


def parse_seeds(text: str) -> tuple[int, ...]:
    """`3,4,5` as numbers."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise RecipeError(f'--seeds is "{text}".', "Give different whole numbers joined by commas: 3,4,5.")
    return tuple(map(int, parts))


def with_seeds(experiment: Experiment, seeds: Sequence[int]) -> Experiment:
    """The experiment on other seeds. Arms that have more than it go on with the numbers behind them; an arm with a
    single run keeps it.
    """
    if len(seeds) != len(experiment.seeds):
        cause = f"{len(seeds)} seeds are given, and the experiment has {len(experiment.seeds)}."
        raise RecipeError(cause, f"Give {len(experiment.seeds)}: --seeds 10,11,12.")
    several = [arm.seeds for arm in experiment.arms.values() if arm.seeds and len(arm.seeds) > 1]
    further = sorted({seed for own in several for seed in own} - set(experiment.seeds))
    new = dict(zip([*experiment.seeds, *further], [*seeds, *(max(seeds) + 1 + k for k in range(len(further)))]))

    def moved(arm: Arm) -> Arm:
        change: dict[str, Any] = {}
        if arm.seeds and len(arm.seeds) > 1:
            change["seeds"] = tuple(new[seed] for seed in arm.seeds)
        for way in ("merge", "ensemble"):
            pool = getattr(arm, way)
            if pool is not None:
                pools = {new[seed]: tuple(new[member] for member in pool.pools[seed]) for seed in pool.pools}
                change[way] = pool.model_copy(update={"pools": pools})
        return arm.model_copy(update=change)

    arms = {name: moved(arm) for name, arm in experiment.arms.items()}
    return experiment.model_copy(update={"seeds": tuple(seeds), "arms": arms})


# --- claims -----------------------------------------------------------------------------------------------------------


def parse_claims(text: str, known: Iterable[str]) -> list[str]:
    """`C16-C21,C26` as claims; a range takes those of it that there are."""
    order = sorted(set(known), key=number)
    found: list[str] = []
    for part in filter(None, re.split(r"[,\s]+", text)):
        ends = re.fullmatch(r"C?(\d+)(?:-C?(\d+))?", part, re.IGNORECASE)
        if ends is None:
            raise RecipeError(f'"{part}" is not a valid claim.', "Write C16, C16-C21, or both joined by commas.")
        low, high = int(ends[1]), int(ends[2] or ends[1])
        inside = [claim for claim in order if low <= number(claim) <= high]
        if not inside:
            raise RecipeError(f"no experiment decides {part}.", f"There are: {first(order, 30)}.")
        found += [claim for claim in inside if claim not in found]
    if not found:
        raise RecipeError("no claim is named.", f"There are: {first(order, 30)}.")
    return found


def number(claim: str) -> int:
    return int(claim[1:])


def chosen(
    names: Sequence[str | Path], claims: str | None, everything: bool
) -> list[tuple[str, Experiment, tuple[str, ...]]]:
    """The experiments that are asked for, each with its claims."""
    if everything and names:
        raise RecipeError("--all does not go with a name.", "Leave one of them out.")
    if not (names or claims or everything):
        cure = f"Name an experiment ({first(list(experiment_files()), 30)}), or give --claims C16 or --all."
        raise RecipeError("nothing is named to reproduce.", cure)
    opened = {Path(name).stem: load_experiment(name) for name in names or experiment_files()}
    if not names:
        opened = dict(sorted(opened.items(), key=lambda entry: entry[1].order))
    if claims is None:
        return [(name, one, tuple(one.claims)) for name, one in opened.items()]
    wanted = parse_claims(claims, [claim for one in opened.values() for claim in one.claims])
    picked = [(name, one, tuple(c for c in one.claims if c in wanted)) for name, one in opened.items()]
    return [entry for entry in picked if entry[2]]
