"""Trains the pocket twins of IPKD-TA's tables and prints their accuracies as Markdown.

    python benchmarks/pocket.py                      # CIFAR-10, both networks, four objectives, one seed
    python benchmarks/pocket.py --data tiny100 --seeds 0,1,2

Every run can be interrupted and goes on where it stopped; finished runs are only read.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ARMS = {"none": "no distillation", "ipkd": "IPKD", "ta1": "IPKD-TA-1", "tam": "IPKD-TA-M"}


def run(net: str, data: str, arm: str, seed: int, extra: list[str]) -> dict:
    """The ladder and the manifest of one run, trained if need be."""
    name = f"{net}_{data}_{arm}"
    folder = Path("runs/pocket") / (name if seed == 0 else f"{name}_seed{seed}")
    if not (folder / "manifest.json").exists() or (folder / "state").exists():
        changes = [f"train.seed={seed}", *extra]
        command = [sys.executable, "-m", "supple", "train", f"pocket/{name}.yaml", *changes, "--out", str(folder)]
        subprocess.run([*command, "--resume"], check=True, stdout=subprocess.DEVNULL)
    manifest = json.loads((folder / "manifest.json").read_text())
    points = json.loads((folder / "ladder.json").read_text())["points"]
    return {"minutes": manifest["seconds"] / 60, "scores": {row["point"]: 100 * row["score"] for row in points}}


def table(net: str, data: str, seeds: list[int], extra: list[str]) -> str:
    runs = {arm: [run(net, data, arm, seed, extra) for seed in seeds] for arm in ARMS}
    points = list(runs["none"][0]["scores"])
    lines = [f"| {net} | {' | '.join(ARMS.values())} |", "|---|" + "---|" * len(ARMS)]

    def line(name: str, values: list[list[float]]) -> str:
        spread = [f" ± {statistics.stdev(v):.2f}" if len(v) > 1 else "" for v in values]
        return f"| {name} | " + " | ".join(f"{statistics.fmean(v):.2f}{s}" for v, s in zip(values, spread)) + " |"

    for point in points:
        lines.append(line(point, [[r["scores"][point] for r in runs[arm]] for arm in ARMS]))
    lines.append(line("mean", [[statistics.fmean(r["scores"].values()) for r in runs[arm]] for arm in ARMS]))
    lines.append(line("minutes of training", [[r["minutes"] for r in runs[arm]] for arm in ARMS]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("cifar10", "tiny100"), default="cifar10")
    parser.add_argument("--nets", default="msdnet,mobilenet")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("changes", nargs="*", help="changes to every recipe, such as train.threads=1")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for net in given.nets.split(","):
        print(table(net, given.data, seeds, given.changes), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
