"""SL-ViT's table 6 in small: CNN against SL-ViT branches on sounds, as Markdown.

    python benchmarks/pocket_sound.py                      # spoken digits: three seeds; ESC-10: five folds, a seed each
    python benchmarks/pocket_sound.py --only spoken --seeds 0

Every run can be interrupted and goes on where it stopped; finished runs are only read. About half an hour of two cores.
"""

import argparse
import json
import statistics
from pathlib import Path

from jobs import Job, do, train
from spread import interval, spread
from supple.checkpoint import load
from supple.cost import profile

HOME = Path("runs/pocket/sound")
SETS = {"spoken": (0, 1, 2), "esc10": (0, 1, 2, 3, 4)}  # by seed; ESC-10 is tested on another fold with each
BRANCHES = {"cnn": "CNN", "sl_vit": "SL-ViT"}
EXITS = ("exit=1", "exit=2")


def run(kind: str, arm: str, seed: int) -> Path:
    return HOME / f"{kind}_{arm}-{seed}"


def begin(kind: str, arm: str, seed: int) -> None:
    changes = [f"data.fold={seed + 1}"] if kind == "esc10" else [f"data.seed={seed}"]
    if arm != "backbone":
        changes.append(f"train.init={run(kind, 'backbone', seed)}")
    train(run(kind, arm, seed), f"pocket/{kind}_{arm}.yaml", seed, *changes)


def scores(kind: str, arm: str, seed: int) -> dict[str, float]:
    points = json.loads((run(kind, arm, seed) / "ladder.json").read_text())["points"]
    return {row["point"]: 100 * row["score"] for row in points}


def table(kind: str, seeds: list[int]) -> str:
    lines = ["| branch | params | MMACs exit 1 | exit 1 | MMACs exit 2 | exit 2 |", "|---|---|---|---|---|---|"]
    for arm, name in BRANCHES.items():
        rows = {row.point: row for row in profile(load(run(kind, arm, seeds[0])))}
        cells = [name, f"{rows['exit=1'].branch_params:,}"]
        for point in EXITS:
            cells += [f"{rows[point].macs / 1e6:.2f}", spread([scores(kind, arm, seed)[point] for seed in seeds])]
        lines.append(f"| {' | '.join(cells)} |")
    apart = {
        point: [scores(kind, "sl_vit", seed)[point] - scores(kind, "cnn", seed)[point] for seed in seeds]
        for point in EXITS
    }
    mean = [statistics.fmean(both) for both in zip(*apart.values())]
    lines += ["", f"The whole network: {spread([scores(kind, 'cnn', seed)['full'] for seed in seeds])}."]
    said = ", ".join(f"{interval(found)} at {point}" for point, found in apart.items())
    return "\n".join([*lines, f"C14, SL-ViT - CNN: {said}; {interval(mean)} in the mean of both."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(SETS), help="of the two sets")
    parser.add_argument("--seeds", help="such as 0,1")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    wanted = {
        kind: [int(seed) for seed in given.seeds.split(",")] if given.seeds else list(seeds)
        for kind, seeds in SETS.items()
        if given.only in (None, kind)
    }
    pairs = [(kind, seed) for kind, seeds in wanted.items() for seed in seeds]
    jobs: list[Job] = [(begin, (kind, "backbone", seed), []) for kind, seed in pairs]
    for kind, seed in pairs:
        jobs += [(begin, (kind, arm, seed), [run(kind, "backbone", seed)]) for arm in BRANCHES]
    do(jobs, given.jobs)
    for kind, seeds in wanted.items():
        print(f"### {kind}\n\n{table(kind, seeds)}\n")


if __name__ == "__main__":
    main()
