"""The pocket twin of SiDT's Table I as Markdown: search, prune, fine-tune, and what that must beat.

    python benchmarks/pocket_sidt.py                 # three seeds, two runs at a time, about two hours
    python benchmarks/pocket_sidt.py --seeds 0

Every run can be interrupted and goes on where it stopped; finished runs are only read. All arms have the same number of
updates in all: search and fine-tuning together as many as the unpruned network and those from scratch.
"""

import argparse
import json
from pathlib import Path

from jobs import Job, do, finished, supple, train
from spread import interval, spread

HOME = Path("runs/pocket/sidt")
RATIOS, COMPARED = (0.2, 0.4, 0.6, 0.8), (0.4, 0.8)
WIDTHS = "0.2,0.4,0.6,0.8"


def run(arm: str, seed: int) -> Path:
    return HOME / f"{arm}-{seed}"


def cut_and_tune(arm: str, seed: int, *words: str) -> None:
    """Prunes the search of a seed, then trains what is left with the search's settings."""
    cut = HOME / f"cut_{arm}-{seed}"
    if not finished(cut):
        supple("prune", str(run("search", seed)), "--out", str(cut), *words, log=HOME / f"{cut.name}.log")
    changes = ["loss.teachers=largest", "train.sample=sandwich"] if arm == "nested" else []
    train(run(arm, seed), cut / "recipe.yaml", seed, *changes)


def from_scratch(ratio: float, seed: int) -> None:
    """The shape that the search found, trained from new weights."""
    recipe = json.loads((HOME / f"cut_score_{ratio}-{seed}" / "manifest.json").read_text())["recipe"]
    shape = HOME / f"shape_{ratio}-{seed}.json"
    shape.write_text(json.dumps(recipe["backbone"]["kept"]))
    train(run(f"scratch_{ratio}", seed), "pocket/sidt_unpruned.yaml", seed, "method.name=prune", f"method.kept={shape}")


def scores(arm: str, seed: int) -> dict[str, dict[str, float]]:
    return {row["point"]: row for row in json.loads((run(arm, seed) / "ladder.json").read_text())["points"]}


def table(seeds: list[int]) -> str:
    lines = ["| network | pruned | accuracy | params (M) | MMACs |", "|---|---|---|---|---|"]
    arms = [("unpruned", "0 %", "unpruned"), ("search", "0 %, after the search", "search")]
    arms += [(f"score_{ratio}", f"{ratio:.0%}", "SiDT") for ratio in RATIOS]
    arms += [(f"{by}_{ratio}", f"{ratio:.0%}", by) for ratio in COMPARED for by in ("random", "magnitude", "scratch")]
    for arm, pruned, name in arms:
        rows = [scores(arm, seed)["full"] for seed in seeds]
        cells = [spread([row[key] * factor for row in rows]) for key, factor in KEYS]
        lines.append(f"| {name} | {pruned} | {' | '.join(cells)} |")
    for width in (*map(float, WIDTHS.split(",")), 1.0):
        rows = [scores("nested", seed)["full" if width == 1 else f"width={width}"] for seed in seeds]
        cells = [spread([row[key] * factor for row in rows]) for key, factor in KEYS]
        lines.append(f"| one checkpoint | {1 - width:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


KEYS = (("score", 100.0), ("params", 1e-6), ("macs", 1e-6))


def differences(seeds: list[int]) -> str:
    """Paired differences over seeds with their 95 % intervals."""
    lines = ["| difference | points |", "|---|---|"]
    pairs = [(f"score_{ratio}", "unpruned", f"{ratio:.0%} pruned - unpruned") for ratio in RATIOS]
    for ratio in COMPARED:
        for by in ("random", "magnitude", "scratch"):
            pairs.append((f"score_{ratio}", f"{by}_{ratio}", f"{ratio:.0%} pruned: by score - {by}"))
    for one, other, said in pairs:
        apart = [100 * (scores(one, seed)["full"]["score"] - scores(other, seed)["full"]["score"]) for seed in seeds]
        lines.append(f"| {said} | {interval(apart)} |")
    for ratio in RATIOS:
        width = f"width={round(1 - ratio, 1)}"
        apart = [
            100 * (scores("nested", seed)[width]["score"] - scores(f"score_{ratio}", seed)["full"]["score"])
            for seed in seeds
        ]
        lines.append(f"| {ratio:.0%} pruned: one checkpoint - a network of its own | {interval(apart)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    HOME.mkdir(parents=True, exist_ok=True)
    jobs: list[Job] = [(train, (run("search", seed), "pocket/sidt_search.yaml", seed), []) for seed in seeds]
    jobs += [(train, (run("unpruned", seed), "pocket/sidt_unpruned.yaml", seed), []) for seed in seeds]
    for seed in seeds:
        need = [run("search", seed)]
        jobs += [(cut_and_tune, (f"score_{r}", seed, "--ratio", str(r)), need) for r in RATIOS]
    for seed in seeds:
        need = [run("search", seed)]
        for ratio in COMPARED:
            for by in ("magnitude", "random"):
                words = ("--ratio", str(ratio), "--by", by, "--seed", str(seed))
                jobs.append((cut_and_tune, (f"{by}_{ratio}", seed, *words), need))
            jobs.append((from_scratch, (ratio, seed), [run(f"score_{ratio}", seed)]))
        jobs.append((cut_and_tune, ("nested", seed, "--widths", WIDTHS), need))
    do(jobs, arguments.jobs)
    print(f"{table(seeds)}\n\n{differences(seeds)}")


if __name__ == "__main__":
    main()
