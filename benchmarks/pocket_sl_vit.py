"""Trains the pocket twins of SL-ViT's tables and prints accuracies, differences and the anytime experiment as Markdown.

    python benchmarks/pocket_sl_vit.py                     # three seeds, two places, eleven arms, two runs at a time
    python benchmarks/pocket_sl_vit.py --seeds 0 --only cnn,sl_vit

Every run can be interrupted and goes on where it stopped; finished runs are only read. The backbone is trained once per
seed, what the branches read is computed once per seed (runs/pocket/sl_vit/features, some GB, removed at the end).
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from spread import interval, spread
from supple.checkpoint import load
from supple.cost import profile
from supple.training.build import data_of

HOME = Path("runs/pocket/sl_vit")
ARMS = {
    "cnn": "CNN",
    "sl_vit": "SL-ViT",
    "cnn_distilled": "CNN, distilled",
    "heads_1": "SL-ViT, 1 head",
    "heads_4": "SL-ViT, 4 heads",
    "layers_2": "SL-ViT, 2 layers",
    "no_residual": "SL-ViT, no last residual",
    "kernel_11": "CNN, 11x11",
    "dilation_2": "CNN, dilation 2",
    "longer": "SL-ViT, trained on",
    "copycat": "SL-ViT, copycat",
}
AFTER = {"longer": "sl_vit", "copycat": "sl_vit"}  # these start from another arm, all others from the backbone
PAIRS = (
    ("C5", "sl_vit", "cnn"),
    ("C7", "sl_vit", "heads_1"),
    ("C7", "heads_4", "heads_1"),
    ("C8", "kernel_11", "cnn"),
    ("C8", "sl_vit", "kernel_11"),
    ("C8", "dilation_2", "cnn"),
    ("C9", "layers_2", "sl_vit"),
    ("C10", "copycat", "longer"),
    ("C10", "copycat", "sl_vit"),
    ("C11", "sl_vit", "cnn_distilled"),
    ("C13", "no_residual", "sl_vit"),
)


def folder(arm: str, seed: int) -> Path:
    return HOME / f"{arm}-{seed}"


def run(arm: str, seed: int) -> None:
    """Trains one arm with one thread, if it has not finished."""
    out = folder(arm, seed)
    if (out / "manifest.json").exists() and not (out / "state").exists():
        return
    changes = [f"train.seed={seed}", "train.threads=1"]
    if arm != "backbone":
        changes.append(f"train.init={folder(AFTER.get(arm, 'backbone'), seed)}")
    if arm == "copycat":
        changes.append(f"copycat.labeller={folder('backbone', seed)}")
    command = [sys.executable, "-m", "supple", "train", f"pocket/sl_vit_{arm}.yaml", *changes, "--out", str(out)]
    with (HOME / f"{out.name}.log").open("a") as log:
        subprocess.run([*command, "--resume"], check=True, stdout=log, stderr=log)
    print(f"{out} finished", file=sys.stderr, flush=True)


def scores(arm: str, seed: int) -> dict[str, float]:
    points = json.loads((folder(arm, seed) / "ladder.json").read_text())["points"]
    return {row["point"]: 100 * row["score"] for row in points}


def accuracies(arms: list[str], seeds: list[int]) -> str:
    lines = ["| branch | params | MMACs exit 1 | exit 1 | MMACs exit 2 | exit 2 |", "|---|---|---|---|---|---|"]
    for arm in arms:
        rows = {row.point: row for row in profile(load(folder(arm, seeds[0])))}
        found = [scores(arm, seed) for seed in seeds]
        cells = [ARMS[arm], f"{rows['exit=1'].branch_params:,}"]
        for point in ("exit=1", "exit=2"):
            cells += [f"{rows[point].macs / 1e6:.2f}", spread([one[point] for one in found])]
        lines.append(f"| {' | '.join(cells)} |")
    full = spread([scores("cnn" if "cnn" in arms else arms[0], seed)["full"] for seed in seeds])
    return "\n".join([*lines, "", f"The whole network: {full}."])


def differences(arms: list[str], seeds: list[int]) -> str:
    """Paired differences over seeds with their 95 % intervals."""
    lines = ["| claim | difference | exit 1 | exit 2 | mean of both |", "|---|---|---|---|---|"]
    for claim, one, other in PAIRS:
        if one in arms and other in arms:
            pairs = [(scores(one, seed), scores(other, seed)) for seed in seeds]
            apart = {p: [a[p] - b[p] for a, b in pairs] for p in ("exit=1", "exit=2")}
            apart["mean"] = [statistics.fmean(both) for both in zip(*apart.values())]
            lines.append(f"| {claim} | {ARMS[one]} - {ARMS[other]} | {' | '.join(map(interval, apart.values()))} |")
    if {"cnn", "sl_vit"} <= set(arms):
        gains = [[scores("sl_vit", s)[p] - scores("cnn", s)[p] for p in ("exit=1", "exit=2")] for s in seeds]
        lines.append(f"| C6 | gain at exit 1 - gain at exit 2 | {interval([a - b for a, b in gains])} | | |")
    return "\n".join(lines)


def random_budgets(right: torch.Tensor, costs: list[float], rng: torch.Generator) -> tuple[float, float]:
    """Mean score and mean cost when every sample is stopped at an exit drawn uniformly from all: SL-ViT, Table 13.

    right: (samples, exits), a score each; costs: of each exit alone. As in the paper, only the exit that answers is
    paid for, not the branches passed on the way.
    """
    drawn = torch.randint(right.shape[1], (len(right),), generator=rng)
    score = right.double().gather(1, drawn[:, None]).mean()
    return float(score), float(torch.tensor(costs, dtype=torch.float64)[drawn].mean())


@torch.inference_mode()
def anytime(arm: str, seed: int, draws: int = 5) -> tuple[float, float]:
    """Table 13: every test image is stopped at an exit drawn at random. Mean accuracy in %, mean MMACs."""
    model, test = load(folder(arm, seed)), data_of(folder(arm, seed)).test
    rights = []
    for indices in torch.split(torch.arange(len(test)), 500):
        x, y = test.batch(indices)
        rights.append(torch.stack([output.logits.argmax(1) == y for output in model.run(x, model.points)], dim=1))
    costs = [float(row.macs or 0) for row in profile(model)]
    found = [random_budgets(torch.cat(rights), costs, torch.Generator().manual_seed(draw)) for draw in range(draws)]
    return 100 * statistics.fmean(f[0] for f in found), statistics.fmean(f[1] for f in found) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default=",".join(ARMS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep-features", action="store_true")
    given = parser.parse_args()
    seeds, arms = [int(seed) for seed in given.seeds.split(",")], given.only.split(",")
    HOME.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        for level in (["backbone"], [a for a in arms if a not in AFTER], [a for a in arms if a in AFTER]):
            list(pool.map(lambda job: run(*job), [(arm, seed) for arm in level for seed in seeds]))
    if not given.keep_features:
        shutil.rmtree(HOME / "features", ignore_errors=True)
    print(accuracies(arms, seeds), differences(arms, seeds), sep="\n\n", end="\n\n")
    print("| anytime, random budgets | accuracy | MMACs |\n|---|---|---|")
    for arm in (arm for arm in ("cnn", "sl_vit") if arm in arms):
        found = [anytime(arm, seed) for seed in seeds]
        print(f"| {ARMS[arm]} | {spread([f[0] for f in found])} | {statistics.fmean(f[1] for f in found):.2f} |")
    if {"cnn", "sl_vit"} <= set(arms):
        apart = [anytime("sl_vit", seed)[0] - anytime("cnn", seed)[0] for seed in seeds]
        print(f"\nC12: {interval(apart)} points.")


if __name__ == "__main__":
    main()
