"""Trains the pocket twins of LayerShuffle and the Dynamic Transformer and prints their tables as Markdown.

    python benchmarks/pocket_depth.py                       # three seeds, two runs at a time, two and a half hours
    python benchmarks/pocket_depth.py --seeds 0 --only shuffle,dt --no-merging

Every run can be interrupted and goes on where it stopped; finished runs and evaluations are only read. First comes what
matters most: order and fewer layers (C16, C19), skipping (C23), merging (C20), then the variants.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from spread import interval, spread

HOME = Path("runs/pocket/depth")
REFINED = {
    "baseline": "in order",
    "shuffle": "LayerShuffle",
    "layerdrop": "LayerDrop",
    "position": "LayerShuffle, position",
    "predict": "LayerShuffle, predict",
}
DYNAMIC = {"base": "base", "dt": "DT", "wsdc": "WSDC", "wdc": "WDC", "dt_straight": "DT, straight-through"}
POOL, MERGES, MERGED_ON, POOL_EPOCHS = 8, 50, 2000, 2
DRAWS = 5

Jobs = list[tuple[Callable[..., Any], tuple[Any, ...]]]


def supple(*words: str, log: Path | None = None) -> str:
    command = [sys.executable, "-m", "supple", *words]
    if log is None:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    with log.open("a") as file:
        subprocess.run(command, check=True, stdout=file, stderr=file)
    return ""


def train(recipe: str, name: str, seed: int, *changes: str) -> Path:
    """Trains into a folder with one thread, if it has not finished."""
    out = HOME / name
    if not (out / "manifest.json").exists() or (out / "state").exists():
        words = [f"pocket/{recipe}.yaml", f"train.seed={seed}", "train.threads=1", *changes]
        supple("train", *words, "--out", str(out), "--resume", log=HOME / f"{name}.log")
        print(f"{out} finished", file=sys.stderr, flush=True)
    return out


def refine(arm: str, seed: int) -> None:
    out = train(f"shuffle_{arm}", f"{arm}-{seed}", seed, f"train.init={HOME / f'base-{seed}'}")
    kept(groups_of(arm, seed), lambda: json.loads(supple("evaluate", str(out), "--draws", str(DRAWS), "--json")))


def groups_of(arm: str, seed: int) -> Path:
    """Where the scores of a refinement's groups are kept."""
    return HOME / f"groups_{arm}-{seed}.json"


def pooled(arm: str, pool: int, member: int) -> None:
    """One of the short refinements of a base that are merged with each other."""
    changes = [f"train.init={HOME / f'base-{pool}'}", f"train.epochs={POOL_EPOCHS}"]
    train(f"shuffle_{arm}", f"pool_{arm}-{pool}-{member}", 100 * pool + member, *changes)


def merge(arm: str, pool: int) -> None:
    runs = [str(HOME / f"pool_{arm}-{pool}-{member}") for member in range(POOL)]
    limit = f"data.test_limit={MERGED_ON}"
    others = [word for run in runs[1:] for word in ("--ensemble", run)]
    asked = {
        "merged": ("merge", *runs, "--count", str(MERGES), "--json", limit),
        "ensemble": ("evaluate", runs[0], limit, *others, "--json"),
    }
    for what, words in asked.items():
        kept(HOME / f"{what}_{arm}-{pool}.json", lambda words=words: json.loads(supple(*words)))
    for run in runs:
        kept(Path(run) / "alone.json", lambda run=run: json.loads(supple("evaluate", run, limit, "--json")))


def kept(path: Path, compute: Callable[[], Any]) -> Any:
    """What a file holds, or what is computed and then kept in it."""
    if not path.exists():
        path.write_text(json.dumps(compute()))
    return json.loads(path.read_text())


def rows_of(document: Any) -> dict[str, dict[str, Any]]:
    return {row["point"]: row for row in document["points"]}


# --- tables -----------------------------------------------------------------------------------------------------------


def orders(arms: Iterable[str], seeds: list[int]) -> str:
    """Table 1 and figure 1 of LayerShuffle: accuracy in order and in any order, with all and with fewer layers."""
    kinds = {"all layers": ("full", "arbitrary")}
    for k in (6, 4, 2):
        first = "-".join(map(str, range(1, k + 1)))
        kinds[f"first {k}"] = (f"layers={first}", f"first {k}, arbitrary")
        kinds[f"spread {k}"] = (f"spread {k}", f"spread {k}, arbitrary")
        kinds[f"any {k}"] = (f"any {k}", f"any {k}, arbitrary")
    lines = [
        "| refined | " + " | ".join(f"{kind}, {how}" for kind in kinds for how in ("in order", "any order")) + " |"
    ]
    lines.append("|---" * (1 + 2 * len(kinds)) + "|")
    for arm in arms:
        found = [rows_of(json.loads(groups_of(arm, seed).read_text())) for seed in seeds]
        cells = [spread([100 * one[row]["score"] for one in found]) for pair in kinds.values() for row in pair]
        lines.append(f"| {REFINED[arm]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(arms: Iterable[str], seeds: list[int]) -> str:
    """Paired differences over seeds with their 95 % intervals."""
    lines = ["| claim | difference | points |", "|---|---|---|"]
    pairs = (
        ("C16", ("shuffle", "arbitrary"), ("baseline", "arbitrary")),
        ("C16", ("shuffle", "full"), ("baseline", "full")),
        ("C17", ("position", "arbitrary"), ("shuffle", "arbitrary")),
        ("C17", ("predict", "arbitrary"), ("shuffle", "arbitrary")),
        ("C19", ("shuffle", "any 4, arbitrary"), ("layerdrop", "any 4, arbitrary")),
        ("C19", ("shuffle", "any 4"), ("layerdrop", "any 4")),
    )
    for claim, (one, row), (other, other_row) in pairs:
        if {one, other} <= set(arms):
            apart = []
            for seed in seeds:
                a, b = (
                    rows_of(json.loads((HOME / f"{arm}-{seed}" / "groups.json").read_text())) for arm in (one, other)
                )
                apart.append(100 * (a[row]["score"] - b[other_row]["score"]))
            lines.append(f"| {claim} | {REFINED[one]} - {REFINED[other]}, {row} | {interval(apart)} |")
    return "\n".join(lines)


def merging(seeds: list[int]) -> str:
    """Table 2 of LayerShuffle: single models, random merges of them, and their ensemble."""
    lines = ["| refined | order | alone | merged | ensemble |", "|---|---|---|---|---|"]
    for arm in ("baseline", "shuffle"):
        for order, row in (("sequential", "full"), ("arbitrary", "arbitrary")):
            alone, merged, together = [], [], []
            for pool in seeds:
                runs = [HOME / f"pool_{arm}-{pool}-{member}" for member in range(POOL)]
                scores = [rows_of(json.loads((run / "alone.json").read_text()))[row]["score"] for run in runs]
                alone.append(100 * sum(scores) / len(scores))
                merged.append(100 * top1(json.loads((HOME / f"merged_{arm}-{pool}.json").read_text()), order))
                together.append(100 * top1(json.loads((HOME / f"ensemble_{arm}-{pool}.json").read_text()), order))
            lines.append(f"| {REFINED[arm]} | {order} | {spread(alone)} | {spread(merged)} | {spread(together)} |")
    return "\n".join(lines)


def top1(document: Any, order: str) -> float:
    return float(next(row["top1"] for row in document["points"] if row["point"] == order))


def dynamic(arms: Iterable[str], seeds: list[int]) -> str:
    """Table 1 of the Dynamic Transformer, with the share of the MACs that is really spent."""
    lines = ["| model | point | accuracy | MACs of full | train - held-out accuracy |", "|---|---|---|---|---|"]
    for arm in arms:
        runs = [HOME / f"dynamic_{arm}-{seed}" for seed in seeds]
        found = [json.loads((run / "ladder.json").read_text())["points"] for run in runs]
        gaps = [overfit(run) for run in runs]
        for place in range(len(found[0])):
            rows = [sorted(one, key=lambda row: row["macs"])[place] for one in found]
            share = [
                row["macs"] / next(r["macs"] for r in one if r["point"] == "full") for row, one in zip(rows, found)
            ]
            cells = [spread([100 * row["score"] for row in rows]), spread([100 * one for one in share])]
            point = rows[0]["point"] if arm in ("base", "wdc", "wsdc") or rows[0]["point"] == "full" else f"{place + 1}"
            lines.append(f"| {DYNAMIC[arm]} | {point} | {' | '.join(cells)} | {spread(gaps)} |")
    return "\n".join(lines)


def overfit(run: Path) -> float:
    """Accuracy on training images minus held-out ones in the last epoch, in points."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    (name, seen), *_ = last["train"].items()
    return 100 * (seen["score"] - last["val"][name]["score"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default=",".join((*REFINED, *DYNAMIC)))
    parser.add_argument("--no-merging", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    seeds, wanted = [int(seed) for seed in arguments.seeds.split(",")], arguments.only.split(",")
    HOME.mkdir(parents=True, exist_ok=True)
    refined, scratch = ([arm for arm in arms if arm in wanted] for arms in (REFINED, DYNAMIC))
    pools = [] if arguments.no_merging else [(arm, pool) for pool in seeds for arm in ("baseline", "shuffle")]

    def scratched(arms: Iterable[str]) -> Jobs:
        return [(train, (f"dynamic_{arm}", f"dynamic_{arm}-{s}", s)) for s in seeds for arm in scratch if arm in arms]

    def refinements(arms: Iterable[str]) -> Jobs:
        return [(refine, (arm, seed)) for seed in seeds for arm in refined if arm in arms]

    first = ("baseline", "shuffle", "layerdrop")
    steps: list[Jobs] = [
        [(train, ("shuffle_base", f"base-{seed}", seed)) for seed in seeds if refined or pools],
        refinements(first) + scratched(("base", "dt")),
        [(pooled, (arm, pool, member)) for arm, pool in pools for member in range(POOL)],
        [(merge, pair) for pair in pools] + refinements(REFINED) + scratched(DYNAMIC),
    ]
    for step in steps:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for done in [pool.submit(work, *given) for work, given in step]:
                done.result()
    for table in (
        orders(refined, seeds) if refined else "",
        differences(refined, seeds) if refined else "",
        merging(seeds) if pools else "",
        dynamic(scratch, seeds) if scratch else "",
    ):
        print(f"{table}\n")


if __name__ == "__main__":
    main()
