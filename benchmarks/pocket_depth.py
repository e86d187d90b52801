"""Trains the pocket twins of LayerShuffle and the Dynamic Transformer and prints their tables as Markdown.

    python benchmarks/pocket_depth.py                       # three seeds, two runs at a time, two and a half hours
    python benchmarks/pocket_depth.py --seeds 0 --only shuffle,dt --no-merging

Every run can be interrupted and goes on where it stopped; finished runs and evaluations are only read. First comes what
matters most: order and fewer layers (C16, C19), skipping (C23), merging (C20), then the variants.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from jobs import Job, do, kept, supple, train
from spread import interval, spread
from supple.checkpoint import load
from supple.opening import recipe_of
from supple.point import FULL
from supple.scoring import evaluate, evaluate_group
from supple.training.build import load_data

HOME = Path("runs/pocket/depth")
REFINED = {
    "baseline": "plain",
    "shuffle": "LayerShuffle",
    "layerdrop": "LayerDrop",
    "position": "LayerShuffle, position",
    "predict": "LayerShuffle, predict",
}
SHORTENED = ("baseline", "shuffle", "layerdrop")  # those that are also run with fewer layers
DYNAMIC = {"base": "base", "dt": "DT", "wsdc": "WSDC", "wdc": "WDC", "dt_straight": "DT, straight-through"}
POOL, MERGES, POOL_EPOCHS = 8, 50, 1
DRAWS, SCORED_ON = 5, 2000  # orders of a group, and test images, where many models are scored


def base(seed: int) -> Path:
    return HOME / f"base-{seed}"


def refine(arm: str, seed: int) -> None:
    train(HOME / f"{arm}-{seed}", f"pocket/shuffle_{arm}.yaml", seed, f"train.init={base(seed)}")
    groups(arm, seed) if arm in SHORTENED else both_orders(arm, seed)


def groups(arm: str, seed: int) -> dict[str, float]:
    """Accuracy of every point and group of a refinement."""
    words = ("evaluate", str(HOME / f"{arm}-{seed}"), f"data.test_limit={SCORED_ON}", "--draws", str(DRAWS), "--json")
    document = kept(HOME / f"groups_{arm}-{seed}.json", lambda: json.loads(supple(*words)))
    return {row["point"]: 100 * row["score"] for row in document["points"]}


def both_orders(arm: str, seed: int) -> dict[str, float]:
    """Accuracy of a refinement with all of its layers, in sequence and in any order."""
    if arm in SHORTENED:
        found = groups(arm, seed)
        return {"sequential": found["full"], "arbitrary": found["arbitrary"]}
    run = str(HOME / f"{arm}-{seed}")
    scored: dict[str, float] = kept(HOME / f"orders_{arm}-{seed}.json", lambda: alone([run]))
    return scored


def pooled(arm: str, pool: int, member: int) -> None:
    """One of the short refinements of a base that are merged with each other."""
    changes = [f"train.init={base(pool)}", f"train.epochs={POOL_EPOCHS}", f"data.test_limit={SCORED_ON}"]
    train(members(arm, pool)[member], f"pocket/shuffle_{arm}.yaml", 100 * pool + member, *changes)


def members(arm: str, pool: int) -> list[Path]:
    return [HOME / f"pool_{arm}-{pool}-{member}" for member in range(POOL)]


def merge(arm: str, pool: int) -> dict[str, dict[str, float]]:
    """Accuracy in sequential and in arbitrary order: of the members alone (mean), merged (mean), and as an ensemble."""
    runs = [str(run) for run in members(arm, pool)]
    others = [word for run in runs[1:] for word in ("--ensemble", run)]
    merged = kept(
        HOME / f"merged_{arm}-{pool}.json", lambda: json.loads(supple("merge", *runs, "--count", str(MERGES), "--json"))
    )
    together = kept(
        HOME / f"ensemble_{arm}-{pool}.json", lambda: json.loads(supple("evaluate", runs[0], *others, "--json"))
    )
    single = kept(HOME / f"alone_{arm}-{pool}.json", lambda: alone(runs))
    by_order = lambda document: {row["order"]: 100 * row["top1"] for row in document["points"]}
    return {"alone": single, "merged": by_order(merged), "ensemble": by_order(together)}


def alone(runs: list[str]) -> dict[str, float]:
    found: dict[str, list[float]] = {"sequential": [], "arbitrary": []}
    for run in runs:
        model, test = load(run), load_data(recipe_of(run, [f"data.test_limit={SCORED_ON}"])).test
        found["sequential"].append(evaluate(model, test, [FULL])[0].score)
        found["arbitrary"].append(evaluate_group(model, test, model.groups["arbitrary"], DRAWS).score)
    return {order: 100 * statistics.fmean(scores) for order, scores in found.items()}


# --- tables -----------------------------------------------------------------------------------------------------------


def refined_ways(arms: Iterable[str], seeds: list[int]) -> str:
    """Table 1 of LayerShuffle: accuracy in order and in any order."""
    lines = ["| refined | in order | any order |", "|---|---|---|"]
    for arm in arms:
        found = [both_orders(arm, seed) for seed in seeds]
        cells = [spread([one[order] for one in found]) for order in ("sequential", "arbitrary")]
        lines.append(f"| {REFINED[arm]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def orders(arms: Iterable[str], seeds: list[int]) -> str:
    """Figure 1 of LayerShuffle: accuracy in order and in any order with all and with fewer layers."""
    kinds = {"all layers": ("full", "arbitrary")}
    for k in (6, 4, 2):
        first = "-".join(map(str, range(1, k + 1)))
        kinds[f"first {k}"] = (f"layers={first}", f"first {k}, arbitrary")
        kinds[f"spread {k}"] = (f"spread {k}", f"spread {k}, arbitrary")
        kinds[f"any {k}"] = (f"any {k}", f"any {k}, arbitrary")
    arms = list(arms)
    lines = ["| layers | " + " | ".join(f"{REFINED[arm]}: in order | any order" for arm in arms) + " |"]
    lines.append("|---" * (1 + 2 * len(arms)) + "|")
    found = {arm: [groups(arm, seed) for seed in seeds] for arm in arms}
    for kind, pair in kinds.items():
        cells = [spread([one[row] for one in found[arm]]) for arm in arms for row in pair]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(arms: Iterable[str], seeds: list[int]) -> str:
    """Paired differences over seeds with their 95 % intervals."""
    lines = ["| claim | difference | points |", "|---|---|---|"]
    pairs = (
        ("C16", "shuffle", "baseline", "arbitrary"),
        ("C16", "shuffle", "baseline", "sequential"),
        ("C17", "position", "shuffle", "arbitrary"),
        ("C17", "predict", "shuffle", "arbitrary"),
        ("C19", "shuffle", "layerdrop", "arbitrary"),
        ("C19", "shuffle", "layerdrop", "any 4, arbitrary"),
        ("C19", "shuffle", "layerdrop", "any 4"),
        ("C19", "shuffle", "layerdrop", "any 2, arbitrary"),
    )
    for claim, one, other, row in pairs:
        if {one, other} <= set(arms):
            scored = both_orders if row in ("sequential", "arbitrary") else groups
            apart = [scored(one, seed)[row] - scored(other, seed)[row] for seed in seeds]
            lines.append(f"| {claim} | {REFINED[one]} - {REFINED[other]}, {row} | {interval(apart)} |")
    return "\n".join(lines)


def merging(seeds: list[int]) -> str:
    """Table 2 of LayerShuffle: single models, random merges of them, and their ensemble."""
    lines = ["| refined | order | alone | merged | ensemble |", "|---|---|---|---|---|"]
    for arm in ("baseline", "shuffle"):
        for order in ("sequential", "arbitrary"):
            found = [merge(arm, pool) for pool in seeds]
            cells = [spread([one[kind][order] for one in found]) for kind in ("alone", "merged", "ensemble")]
            lines.append(f"| {REFINED[arm]} | {order} | {' | '.join(cells)} |")
    return "\n".join(lines)


def merged_differences(seeds: list[int]) -> str:
    """Paired differences over the pools: merged and ensemble from the members alone (C20)."""
    lines = ["| C20 | order | merged - alone | ensemble - alone |", "|---|---|---|---|"]
    for arm in ("baseline", "shuffle"):
        found = [merge(arm, pool) for pool in seeds]
        for order in ("sequential", "arbitrary"):
            cells = [
                interval([one[kind][order] - one["alone"][order] for one in found]) for kind in ("merged", "ensemble")
            ]
            lines.append(f"| {REFINED[arm]} | {order} | {' | '.join(cells)} |")
    return "\n".join(lines)


def dynamic(arms: Iterable[str], seeds: list[int]) -> str:
    """Table 1 of the Dynamic Transformer, with the share of the MACs that is really spent."""
    lines = ["| model | point | accuracy | MACs of full | train - validation accuracy |", "|---|---|---|---|---|"]
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
    """Accuracy on training images minus validation ones in the last epoch, in points."""
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

    def scratched(arms: Iterable[str]) -> list[Job]:
        chosen = [(arm, seed) for seed in seeds for arm in scratch if arm in arms]
        return [(train, (HOME / f"dynamic_{a}-{seed}", f"pocket/dynamic_{a}.yaml", seed), []) for a, seed in chosen]

    def refinements(arms: Iterable[str]) -> list[Job]:
        chosen = [(arm, seed) for seed in seeds for arm in refined if arm in arms]
        return [(refine, (arm, seed), [base(seed)]) for arm, seed in chosen]

    jobs: list[Job] = [
        *((train, (base(seed), "pocket/shuffle_base.yaml", seed), []) for seed in seeds if refined or pools),
        *refinements(SHORTENED),
        *scratched(("base", "dt")),
        *((pooled, (arm, pool, m), [base(pool)]) for arm, pool in pools for m in range(POOL)),
        *((merge, pair, members(*pair)) for pair in pools),
        *scratched(("wdc", "wsdc")),
        *refinements(set(REFINED) - {*SHORTENED}),
        *scratched(("dt_straight",)),
    ]
    do(jobs, arguments.jobs)
    for table in (
        refined_ways(refined, seeds) if refined else "",
        orders([arm for arm in refined if arm in SHORTENED], seeds) if {*refined} & {*SHORTENED} else "",
        differences(refined, seeds) if refined else "",
        merging(seeds) if pools else "",
        merged_differences(seeds) if pools else "",
        dynamic(scratch, seeds) if scratch else "",
    ):
        print(f"{table}\n")


if __name__ == "__main__":
    main()
