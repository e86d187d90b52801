"""Results: one small JSON file per arm and seed, from which verdicts are computed with neither data nor runs at hand.

`benchmarks/results/<experiment>/<arm>-<seed>.json` says what was run (hash of the recipe, minutes, machine, versions)
and, for every point, group or measure, what each test image gave: a bit (right or wrong) or a number of 16 bits.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from supple import files
from supple.errors import CheckpointError
from supple.experiments.declared import Difference, Experiment
from supple.experiments.verdict import Array, Effect, Sample, combine, effect

Result = dict[str, Any]
Results = Mapping[tuple[str, int], Result]  # by arm and seed
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
    """The results that fit the experiment as it is declared now, and the names of those that do not: they are stale."""
    found: dict[tuple[str, int], Result] = {}
    stale: list[str] = []
    for arm in experiment.arms:
        for seed in experiment.seeds_of(arm):
            path = path_of(folder, name, arm, seed)
            if path.is_file():
                result = files.read_json(path, f"Remove it, and run it again: supple reproduce {name}.")
                if result.get("recipe") == experiment.hash(arm, seed):
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


def usable_seeds(experiment: Experiment, results: Results, difference: Difference) -> tuple[list[int], list[str]]:
    """The seeds of which all that a difference compares is there, on one kind of machine and the same images; and what
    is wrong with others.
    """
    terms = [term for _, term in difference.terms()]
    shared = set.intersection(*(set(experiment.seeds_of(term.arm)) for term in terms))
    seeds, problems = [], []
    for seed in sorted(shared):
        there = [results.get((term.arm, seed)) for term in terms]
        if any(one is None or not set(term.at) <= set(one["points"]) for one, term in zip(there, terms)):
            continue
        machines, tests = ({one[key] for one in there if one} for key in ("machine", "test"))
        if len(machines) > 1:
            problems.append(f"seed {seed} mixes machines")
        elif len(tests) > 1:
            problems.append(f"seed {seed} mixes test images")
        else:
            seeds.append(seed)
    return seeds, problems


def effect_of(experiment: Experiment, results: Results, difference: Difference) -> tuple[Effect | None, list[str]]:
    """A declared difference over the seeds that are there; None: there is none."""
    seeds, problems = usable_seeds(experiment, results, difference)
    per_seed = [
        combine(
            [(sign, sample(results[term.arm, seed], term.at)) for sign, term in difference.terms()],
            difference.constant(),
        )
        for seed in seeds
    ]
    return (effect(per_seed) if per_seed else None), problems
