"""Makes the network that comes with supple of a finished run.

    supple train recipes/zoo/cifar10_small.yaml --out runs/cifar10_small
    python benchmarks/ship.py runs/cifar10_small          # into src/supple/networks/cifar10_small

The weights are rounded to fp16. The scores of all points on all test pictures, and the thresholds of a policy (for 0.6
of the MACs), are computed anew of these stored weights. No times and no paths of this machine go along.
"""

import argparse
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from supple import checkpoint, cost, files, networks
from supple.errors import CheckpointError
from supple.inference.calibration import calibrate
from supple.ladder import TIMES, Ladder
from supple.policy.fitting import Target
from supple.scoring import evaluate
from supple.text import size
from supple.training.build import data_of

BUDGET = "0.6x"  # of the full network's MACs, on average
LARGEST = 2_000_000  # bytes of all files
KEPT = ("format", "recipe", "task", "classes", "input_shape", "preprocess", "points", "settled", "versions", "imports")
KEPT += ("epoch", "epochs")
_PLACE = re.compile(r'"(?:/|~|[A-Za-z]:\\|\\\\)')  # how a path of a machine begins, in JSON


def ship(run: Path, out: Path, budget: str = BUDGET) -> Ladder:
    """Writes the folder that ships, in place of what was there; gives the ladder of the stored weights."""
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder)
        store(run, part)
        model, splits = checkpoint.load(part), data_of(part)
        model.ladder = Ladder(cost.profile(model))
        for score in evaluate(model, splits.test):
            model.ladder.update(score.name, **score.facts())
        checkpoint.save_ladder(part, model.ladder)
        seed = checkpoint.read_recipe(part).train.seed
        policy = calibrate(model, splits.val, Target.parse("budget_macs", budget), seed=seed)
        checkpoint.save_policy(part, policy)
        must_be_fit_to_ship(part)
        if out.exists():
            replaceable(out)
            shutil.rmtree(out)
        shutil.copytree(part, out)
        out.chmod(0o755)  # the temporary folder is private
    return model.ladder


def store(run: Path, out: Path) -> None:
    """The weights of a run in fp16, and what of its manifest holds everywhere."""
    manifest = checkpoint.read_manifest(run)
    tensors = {name: _rounded(name, value) for name, value in checkpoint.read_tensors(run / checkpoint.WEIGHTS).items()}
    files.write(out / checkpoint.WEIGHTS, tensors)
    kept: dict[str, Any] = {key: manifest[key] for key in KEPT if key in manifest}
    if "root" in kept["recipe"]["data"]:
        kept["recipe"]["data"]["root"] = None  # where the pictures lay; they are found through $SUPPLE_DATA
    kept["files"] = {checkpoint.WEIGHTS: files.sha256(out / checkpoint.WEIGHTS)}
    files.write(out / checkpoint.MANIFEST, json.dumps(kept, indent=1))


def _rounded(name: str, value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    half = value.half()
    if not torch.isfinite(half).all():
        raise CheckpointError(f"{name} has values that fp16 cannot hold.", "Train with less extreme weights.")
    return half


def must_be_fit_to_ship(folder: Path) -> None:
    """Small enough, and nothing in it of the machine that made it."""
    total = sum(path.stat().st_size for path in folder.iterdir())
    if total > LARGEST:
        raise CheckpointError(f"the files take {size(total)}.", f"At most {size(LARGEST)} ship.")
    for path in folder.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        if place := _PLACE.search(text):
            found = text[place.start() : place.start() + 60].splitlines()[0]
            raise CheckpointError(f"{path.name} holds a path: {found}.", "Nothing of this machine ships.")
    rows = checkpoint.load_ladder(folder).rows
    if any(row.machine is not None or any(getattr(row, name) is not None for name in TIMES) for row in rows):
        raise CheckpointError("the ladder holds times of a machine.", "Leave them out.")


def replaceable(out: Path) -> None:
    """Nothing is removed but a network that ships."""
    others = sorted(path.name for path in out.iterdir() if path.name not in networks.PARTS)
    if others:
        raise CheckpointError(f"{out} also holds {', '.join(others)}.", "Give another --out, or remove them first.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, help="default: the folder of the run's name among supple's networks")
    parser.add_argument("--budget-macs", default=BUDGET, help="of the policy, on average")
    given = parser.parse_args()
    out = given.out or networks.FOLDER / given.run.name
    before = {row.point: row.score for row in checkpoint.load_ladder(given.run).where(precision="fp32")}
    ladder = ship(given.run, out, given.budget_macs)
    print(f"{ladder}\n")
    for row in ladder:
        known = before.get(row.point)
        if row.score is not None and known is not None:
            print(f"{row.point}: {100 * (row.score - known):+.2f} points by rounding, on {row.n:,} pictures")
    parts = ", ".join(f"{path.name} {size(path.stat().st_size)}" for path in sorted(out.iterdir()))
    print(f"{out}: {parts}")


if __name__ == "__main__":
    main()
