"""The comparison that decides: one elastic checkpoint next to what people use today, in one table and picture.

    python benchmarks/compare.py --runs DIR [--family convolutional|transformer] [--seeds 0,1,2] [--only A,B]
        [--minutes-per-run 45] [--threads 2] [--init FILE] [section.key=value ...]
    python benchmarks/compare.py --table            # from benchmarks/results/compare/*.json alone

A one elastic checkpoint        B static networks of four of its sizes, trained apart, the same epochs each
C those in int8 (and bf16)      D the elastic points likewise       E calibrated policies on A
F Torch-Pruning of the full static network, and fine-tuning (pip install torch-pruning)
G earlyon on the same backbone (pip install earlyon)      H token merging on the static transformer, without training

A and B with every seed, the others with the first. Same data, machine, engines and threads; all trainings have the
precision and memory format that suit A best here. Whatever needs the weights (int8, exports, times, policies) is done
right after each training. Policies have the smallest budget of MACs that loses half a point at most, as validation
pictures estimate it. An arm whose package is missing is named and left out. DIR lies outside the repository. Started
again, it goes on where it was: trainings, exports and measurements that are there stay. After each run its result is
written: scores of every point on all test pictures, right or wrong of each, times beside a reference, minutes, bytes,
log. section.key=value changes the recipe (recipes/zoo/), as for supple train; such runs are others, with other results.
"""

import argparse
import hashlib
import json
import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import supple
from compare_measure import Bench, measure, measure_early
from compare_networks import early, merging, pruned, shelf, sizes, wrapped
from compare_table import draw, page
from supple import checkpoint, files
from supple.data.loaders import as_batches
from supple.data.splits import Splits
from supple.experiments.jobs import runs_folder
from supple.experiments.results import path_of, write_result
from supple.losses import make_objective
from supple.machine import machine, versions
from supple.methods.static import Static
from supple.model import FlexibleModel
from supple.point import Point
from supple.recipe import Recipe, load_recipe
from supple.sampling import sandwich
from supple.training.autotune import Timing, choose, settle_precision
from supple.training.build import fresh_model, load_data
from supple.training.loop import train

HERE = Path(__file__).parent
RECIPES = {"convolutional": "cifar10_elastic", "transformer": "deit_elastic"}
SHELF = ("exit=1,width=0.5", "width=0.5", "width=0.75", "full")  # the sizes that are also trained apart
PRUNED = (0.75, 0.5)  # shares of the channels that stay
ARMS = {  # in the order that they can be run in: F and H start from the full static network
    "convolutional": ["A", *(f"B {size}" for size in SHELF), *(f"F {share:g}" for share in PRUNED), "G"],
    "transformer": ["A", *(f"B {size}" for size in SHELF), "H"],
}
TUNING = 0.5  # of the epochs, after pruning,
GENTLE = 0.2  # at this share of the rate
RESERVE = 0.85  # of the minutes for steps; the rest for validation, averaging and saving
PACKAGES = {"F": ("torch_pruning", "torch-pruning"), "G": ("earlyon", "earlyon")}  # modules, and what to install
WITHIN = {"C": "B", "D": "A", "E": "A"}  # what is measured in the run of another letter
GONE = ("init", "sample", "settle", "cache_features", "cache_augmented", "precision_chosen")


@dataclass(frozen=True)
class Setup:
    """What all runs of a family share."""

    family: str
    recipe: Recipe  # of A, with the epochs that fit
    splits: Splits
    bench: Bench
    results: Path

    @property
    def runs(self) -> Path:
        return self.bench.runs

    def hash(self, arm: str, seed: int) -> str:
        """Of all that decides what a run is."""
        document = [self.family, arm, seed, self.recipe.resolved()]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]

    def folder(self, arm: str, seed: int) -> Path:
        return self.runs / f"{slug(arm)}-{seed}-{self.hash(arm, seed)[:8]}"

    def result(self, arm: str, seed: int) -> Path:
        return path_of(self.results, "compare", f"{self.family}-{slug(arm)}", seed)


def slug(arm: str) -> str:
    return arm.replace(" ", "-").replace(",", "+")


# --- what there is to do ----------------------------------------------------------------------------------------------


def jobs(family: str, only: Sequence[str], seeds: Sequence[int], missing: Iterable[str] = ()) -> list[tuple[str, int]]:
    """Arms and seeds in order, without letters that cannot be run here. F and H need the full static network: it comes
    before them, asked for or not."""
    letters = {WITHIN.get(letter, letter) for letter in only} or {arm[0] for arm in ARMS[family]}
    unknown = letters - {arm[0] for arm in ARMS[family]}
    if unknown:
        raise SystemExit(f"error: there is no {', '.join(sorted(unknown))} in the {family} family.")
    letters -= {*missing}
    found = []
    for arm in ARMS[family]:
        needed = arm == "B full" and letters & {"F", "H"}
        if arm[0] in letters or needed:
            every = arm[0] in letters and arm[0] in ("A", "B")
            found += [(arm, seed) for seed in (seeds if every else seeds[:1])]
    return found


def missing_packages(family: str, only: Sequence[str]) -> dict[str, str]:
    """The letters that are asked for and cannot be run here, and what they need."""
    asked = {*only} or {arm[0] for arm in ARMS[family]}
    needed = {letter: names for letter, names in PACKAGES.items() if letter in asked}
    return {letter: package for letter, (module, package) in needed.items() if find_spec(module) is None}


def scaled(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe with other epochs; what is given in epochs keeps its share."""
    share = epochs / recipe.train.epochs
    warmup = {"warmup": round(recipe.train.warmup * share, 2)}
    loss = (
        {**recipe.loss, "warmup": round(recipe.loss["warmup"] * share, 2)} if "warmup" in recipe.loss else recipe.loss
    )
    settings = recipe.train.model_copy(update={"epochs": epochs, **warmup})
    return recipe.model_copy(update={"train": settings, "loss": loss})


def timing(recipe: Recipe, splits: Splits) -> tuple[Timing, list[list[Point]]]:
    """The elastic network on a batch of its own, and the points of some steps."""
    model, rng = fresh_model(recipe, splits), random.Random(0)
    drawn = [sandwich(model.points, rng, model.draw) for _ in range(4)]
    batch = next(iter(as_batches(splits.train).in_order(recipe.data.batch_size)))[:2]
    objective = make_objective(recipe.loss, model.points, "classes")
    return Timing(model, drawn[0], objective, batch, time.perf_counter), drawn


def form(recipe: Recipe, splits: Splits) -> dict[str, str]:
    """Precision, memory format and compilation that this machine trains the elastic network best with."""
    one, steps = timing(recipe, splits)[0], recipe.train.epochs * as_batches(splits.train).steps(recipe.data.batch_size)
    settings, device = settle_precision(recipe.train), torch.device("cpu")
    chosen = choose(settings, one.model, one.points, one.batch, steps, one.objective, device, quiet=True)
    return {name: getattr(chosen, name) for name in ("precision", "memory_format", "compile")}


def fitting_epochs(recipe: Recipe, splits: Splits, minutes: float) -> int:
    """How many epochs of the elastic training, in the form that the recipe has, the minutes hold: at least one, at most
    the recipe's own."""
    one, drawn = timing(recipe, splits)
    step_s = statistics.fmean(replace(one, points=points).step_s(recipe.train) for points in drawn)
    epoch_s = as_batches(splits.train).steps(recipe.data.batch_size) * step_s
    return max(1, min(recipe.train.epochs, int(RESERVE * 60 * minutes / epoch_s)))


def planned(given: argparse.Namespace, runs: Path) -> tuple[Recipe, Splits]:
    """The recipe of A with threads, form and epochs: measured once, and kept in plan.json. All arms are trained so."""
    changes = [*given.changes, f"train.threads={given.threads}"] + ([f"train.init={given.init}"] if given.init else [])
    recipe = load_recipe(HERE.parent / f"recipes/zoo/{RECIPES[given.family]}.yaml", changes)
    splits, plan = load_data(recipe), runs / "plan.json"
    about = {"recipe": recipe.resolved(), "minutes": given.minutes_per_run}
    known = json.loads(plan.read_text()) if plan.is_file() else {}
    if known.get("about") != about or "form" not in known:
        torch.set_num_threads(given.threads)
        chosen = form(recipe, splits)
        epochs = fitting_epochs(formed(recipe, chosen), splits, given.minutes_per_run)
        known = {"about": about, "form": chosen, "epochs": epochs}
        files.write(plan, json.dumps(known, indent=1))
    words = ", ".join(known["form"].values())
    print(f"{given.family}: {known['epochs']} epochs of at most {recipe.train.epochs}; {words}; {splits}", flush=True)
    return scaled(formed(recipe, known["form"]), known["epochs"]), splits


def formed(recipe: Recipe, chosen: Mapping[str, str]) -> Recipe:
    """The recipe with nothing of the form left to be measured."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=dict(chosen))})


# --- one run ----------------------------------------------------------------------------------------------------------


def fitted(setup: Setup, model: FlexibleModel, arm: str, seed: int, **changes: Any) -> FlexibleModel:
    """A model in hand trained as A is: by the same loop, with the same settings."""
    recipe = setup.recipe
    settings = {key: value for key, value in recipe.resolved()["train"].items() if key not in GONE}
    loss = {"name": "distill", "smoothing": recipe.loss["smoothing"], **changes.pop("loss", {})}
    train_set = setup.splits.train
    about: dict[str, Any] = {"classes": train_set.classes, "preprocess": train_set.preprocess, "loss": loss}
    about |= {"out": setup.folder(arm, seed), "test": setup.splits.test, "batch_size": recipe.data.batch_size}
    how = settings | {"seed": seed} | changes
    supple.fit(model, train_set, setup.splits.val, **about, resume=True, progress=True, **how)
    return model


def trained(setup: Setup, arm: str, seed: int) -> FlexibleModel:
    """The network of an arm, trained: now, unless it was before."""
    recipe, splits, (letter, _, which) = setup.recipe, setup.splits, arm.partition(" ")
    if letter == "A":
        seeded = recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": seed})})
        return checkpoint.load(train(seeded, setup.folder(arm, seed), resume=True))
    if letter == "B":
        return fitted(setup, shelf(recipe, splits, which, seed), arm, seed)
    if letter == "F":
        epochs = max(1, round(TUNING * recipe.train.epochs))
        tuning = scaled(recipe, epochs).train
        changes = {"epochs": epochs, "warmup": tuning.warmup, "lr": GENTLE * recipe.train.lr}
        return fitted(setup, pruned(trained(setup, "B full", seed), splits, float(which)), arm, seed, **changes)
    if letter == "G":
        return fitted(setup, early(recipe, splits, seed), arm, seed)  # the sum of all losses, as earlyon's trainer has
    return merging(trained(setup, "B full", seed), splits)


def run(setup: Setup, arm: str, seed: int) -> None:
    """Trains, measures and writes the result of one arm and seed."""
    model, folder, letter = trained(setup, arm, seed), setup.folder(arm, seed), arm[0]
    if letter == "G":
        found = measure_early(setup.bench, wrapped(model, setup.splits.train.shape), folder)  # type: ignore[arg-type]
    else:
        found = measure(setup.bench, model, folder, every=letter in "AB", follows=letter == "A")
    source = setup.folder("B full", seed) if letter == "H" else folder
    seconds = checkpoint.read_manifest(source)["seconds"]
    if letter == "F":
        seconds += checkpoint.read_manifest(setup.folder("B full", seed))["seconds"]
    targets = setup.splits.test.targets
    write_result(
        setup.result(arm, seed),
        {
            "family": setup.family,
            "arm": arm,
            "seed": seed,
            "recipe_hash": setup.hash(arm, seed),
            "recipe": setup.recipe.resolved(),
            "minutes": round(seconds / 60, 2),
            "machine": machine(),
            "threads": setup.bench.threads,
            "versions": versions(),
            "test": hashlib.sha256(targets.numpy().tobytes()).hexdigest()[:16],
            "checkpoint_bytes": (source / checkpoint.WEIGHTS).stat().st_size,
            "points": sizes(model),
            "log": log_of(source),
            **found,
        },
    )


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Of every epoch: seconds, loss, and the validation score of the full model."""
    lines = [json.loads(line) for line in (folder / checkpoint.METRICS).read_text().splitlines()]
    return [
        {"epoch": line["epoch"], "seconds": line["seconds"], "loss": round(line["loss"], 4)}
        | {"val": round(line["val"]["full"]["score"], 4)}
        for line in lines
    ]


def is_done(setup: Setup, arm: str, seed: int) -> bool:
    path = setup.result(arm, seed)
    return path.is_file() and json.loads(path.read_text()).get("recipe_hash") == setup.hash(arm, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=RECIPES, default="convolutional")
    parser.add_argument("--runs", help="the folder of runs, outside the repository")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="", help="letters, such as A,B")
    parser.add_argument("--minutes-per-run", type=float, default=45.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=50, help="of the timing")
    parser.add_argument("--init", help="weights of the transformer, if not timm's hub")
    parser.add_argument("--table", action="store_true", help="print the tables and draw the picture, nothing else")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "img" / "compare.png")
    parser.add_argument("changes", nargs="*", metavar="section.key=value")
    given = parser.parse_args()
    if given.table:
        print(page(given.results / "compare"))
        draw(given.results / "compare", given.picture)
        return
    if given.runs is None:
        parser.error("--runs is missing: where trainings are kept, outside the repository.")
    try:
        runs = runs_folder(given.runs) / "compare" / given.family
        recipe, splits = planned(given, runs)
        reference = shelf(recipe.model_copy(update={"train": recipe.train.model_copy(update={"init": None})}),
                          splits, "full", 0)  # fmt: skip
        assert isinstance(reference, Static)
        bench = Bench(splits, given.threads, given.rounds, reference, runs)
        setup = Setup(given.family, recipe, splits, bench, given.results)
        wanted = [letter.strip() for letter in given.only.split(",") if letter.strip()]
        missing = missing_packages(given.family, wanted)
        for letter, package in missing.items():
            print(
                f"{letter} is left out: it needs {package}, which is not installed: pip install {package}", flush=True
            )
        for arm, seed in jobs(given.family, wanted, [int(seed) for seed in given.seeds.split(",")], missing):
            if is_done(setup, arm, seed):
                print(f"{arm}, seed {seed}: done before ({setup.result(arm, seed)})", flush=True)
                continue
            print(f"{arm}, seed {seed}: {setup.folder(arm, seed)}", flush=True)
            run(setup, arm, seed)
        print(page(given.results / "compare"))
    except supple.SuppleError as error:
        raise SystemExit(f"error: {error.cause}\n  {error.cure}") from None


if __name__ == "__main__":
    main()
