"""Results: one small JSON file per arm and seed, from which verdicts are computed with neither data nor runs at hand.

`benchmarks/results/<experiment>/<arm>-<seed>.json` says what was run (hash of the recipe, minutes, machine, versions)
and, for every point, group or measure, what each test image gave: a bit (right or wrong) or a number of 16 bits.
"""

import base64
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from supple import files
from supple.errors import CheckpointError
from supple.experiments.declared import Claim, Difference, Experiment, Term
from supple.experiments.verdict import Array, Effect, Sample, combine, effect, judge

Result = dict[str, Any]
Results = Mapping[tuple[str, int], Result]  # by arm and seed
EVALUATION = 1  # of the code that evaluates: one more whenever evaluation.py gives other figures of the same run
LARGEST = 200_000  # bytes of a file
TEST, TRAIN = "test", "train"  # sets of images


# --- packing ----------------------------------------------------------------------------------------------------------


def pack(each: Array, images: str = TEST) -> dict[str, Any]:
    """Right or wrong as bits, other values as 16-bit floats; both as base64. `images`: the set that they are of."""
    if each.dtype == bool:
        return {"images": images, "n": len(each), "bits": _text(np.packbits(each).tobytes())}
    return {"images": images, "n": len(each), "values": _text(each.astype("<f2").tobytes())}


def unpack(entry: Mapping[str, Any]) -> Array:
    """What was packed, in percentage points: 0 or 100 for bits."""
    if "bits" in entry:
        bits = np.unpackbits(np.frombuffer(base64.b64decode(entry["bits"]), np.uint8), count=entry["n"])
        return bits.astype(float) * 100
    values = np.frombuffer(base64.b64decode(entry["values"]), "<f2").astype(float)
    if len(values) != entry["n"]:
        raise ValueError(f"{len(values)} values, not {entry['n']}")
    return values


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


# --- files ------------------------------------------------------------------------------------------------------------


def path_of(folder: Path, experiment: str, arm: str, seed: int) -> Path:
    return folder / experiment / f"{arm}-{seed}.json"


def write_result(path: Path, result: Result) -> None:
    content = json.dumps(result, indent=1)
    if len(content) > LARGEST:
        cause = f"{path} would have {len(content):,} bytes; results are kept in the repository."
        raise CheckpointError(cause, "Evaluate fewer points: `evaluate` of the experiment.")
    files.write(path, content)


def read_results(folder: Path, name: str, experiment: Experiment) -> tuple[dict[tuple[str, int], Result], list[str]]:
    """The results that fit the experiment and the evaluation of today, and the names of others: they are stale."""
    found: dict[tuple[str, int], Result] = {}
    stale: list[str] = []
    for arm in experiment.arms:
        for seed in experiment.seeds_of(arm):
            path = path_of(folder, name, arm, seed)
            if path.is_file():
                result = files.read_json(path, f"Remove it, and run it again: supple reproduce {name}.")
                if (result.get("recipe"), result.get("evaluation")) == (experiment.hash(arm, seed), EVALUATION):
                    found[arm, seed] = result
                else:
                    stale.append(f"{arm}-{seed}")
    return found, stale


def complete(experiment: Experiment, arm: str, result: Result | None) -> bool:
    """Whether everything that is to be evaluated was."""
    return result is not None and set(experiment.evaluated(arm)) <= set(result["points"])


# --- differences ------------------------------------------------------------------------------------------------------


def sample(result: Result, at: Sequence[str]) -> Sample:
    """The mean over points, of every image."""
    parts = [(entry["images"], unpack(entry)) for entry in (result["points"][name] for name in at)]
    return combine([(1 / len(at), Sample({images: values})) for images, values in parts])


def cost(result: Result, at: Sequence[str]) -> Sample:
    """The mean over points of what they cost, earlier exits included, in MMACs: the same on every image."""
    return Sample({}, statistics.fmean(result["costs"][name]["macs_through"] / 1e6 for name in at))


def runs_of(experiment: Experiment, term: Term, seed: int) -> list[tuple[str, int]]:
    """The runs whose mean a term is."""
    return experiment.needs(term.arm, seed) if term.sources else [(term.arm, seed)]


def figure(experiment: Experiment, results: Results, term: Term, seed: int) -> Sample:
    """What a term is on one seed. Where the data change with the seed, so do the images."""
    runs, measured = runs_of(experiment, term, seed), cost if term.macs else sample
    found = combine([(1 / len(runs), measured(results[run], term.at)) for run in runs])
    if experiment.by_seed:
        return Sample({f"{images} {seed}": values for images, values in found.each.items()}, found.constant)
    return found


def declared_seeds(experiment: Experiment, difference: Difference) -> list[int]:
    """The seeds that all arms of a difference have."""
    shared = set.intersection(*(set(experiment.seeds_of(term.arm)) for _, term in difference.terms()))
    return sorted(shared)


def usable_seeds(experiment: Experiment, results: Results, difference: Difference) -> tuple[list[int], list[str]]:
    """The seeds of which all that a difference compares is there, on one kind of processor and the same images; and
    what is wrong with others.
    """
    terms = [term for _, term in difference.terms()]
    seeds, problems = [], []
    for seed in declared_seeds(experiment, difference):
        there = [(results.get(run), term) for term in terms for run in runs_of(experiment, term, seed)]
        if not all(_has(result, term) for result, term in there):
            continue
        processors, tests = ({one[key] for one, _ in there if one} for key in ("machine", "test"))
        if len(processors) > 1:
            problems.append(f"seed {seed} was run on several kinds of processors, and counts as missing")
        elif len(tests) > 1:
            problems.append(f"seed {seed} was tested on several sets of images, and counts as missing")
        else:
            seeds.append(seed)
    return seeds, problems


def _has(result: Result | None, term: Term) -> bool:
    return result is not None and set(term.at) <= set(result["costs"] if term.macs else result["points"])


def effect_of(experiment: Experiment, results: Results, difference: Difference) -> tuple[Effect | None, list[str]]:
    """A declared difference over the seeds that are there; None: there is none."""
    seeds, problems = usable_seeds(experiment, results, difference)
    per_seed = [
        combine(
            [(sign, figure(experiment, results, term, seed)) for sign, term in difference.terms()],
            difference.constant(),
        )
        for seed in seeds
    ]
    return (effect(per_seed) if per_seed else None), problems


def decide(experiment: Experiment, results: Results, claim: Claim) -> str:
    """`holds`, `fails` or `undecided`, when all declared seeds are there: a look at some of them decides nothing.

    What a claim requires beside its primary difference must hold for it to hold, and its failure is the claim's.
    """
    verdicts = []
    for condition in (claim, *claim.requires.values()):
        found, _ = effect_of(experiment, results, condition)
        whole = found is not None and found.seeds == len(declared_seeds(experiment, condition))
        verdicts.append(judge(found if whole else None, condition.expect, condition.margin))
    if "fails" in verdicts:
        return "fails"
    return "holds" if set(verdicts) == {"holds"} else "undecided"
