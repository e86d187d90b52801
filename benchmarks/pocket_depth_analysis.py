"""Looks into the networks that pocket_depth.py has trained, and prints what it finds as Markdown tables.

    python benchmarks/pocket_depth_analysis.py                      # three seeds, a few minutes
    python benchmarks/pocket_depth_analysis.py --pictures docs/img  # and keeps the pictures of the first seed, smaller

Where layers contribute (C21), whether they know their position (C18), what dense layers read (C24), what is skipped,
and the paired differences of the Dynamic Transformers (C22, C23, C25).
"""

import argparse
import io
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from jobs import kept, supple
from pocket_depth import DYNAMIC, HOME, overfit
from spread import interval, spread

PICTURES = {  # of which run, which picture, under which name
    "shuffle": {"layer-4.png": "shuffle-positions.png", "contributions.png": "shuffle-contributions.png"},
    "dynamic_wdc": {"dependencies.png": "wdc-dependencies.png"},
    "dynamic_wsdc": {"dependencies.png": "wsdc-dependencies.png"},
    "dynamic_dt": {"classes.png": "dt-classes.png", "histogram.png": "dt-layers.png"},
}
COLOURS = 96  # of a picture that is kept: a third of the size


def analysed(arm: str, seed: int) -> Any:
    """What `supple analyse` says of a run; a refinement by shuffling beside the one in order."""
    run, out = HOME / f"{arm}-{seed}", HOME / f"analysis_{arm}-{seed}"
    beside = ("--base", str(HOME / f"baseline-{seed}")) if arm == "shuffle" else ()
    words = ("analyse", str(run), *beside, "--out", str(out), "--json")
    return kept(HOME / f"analysis_{arm}-{seed}.json", lambda: json.loads(supple(*words)))


def contributions(seeds: list[int]) -> str:
    """Figure 4 of LayerShuffle in figures: shares of the class token's change, at home and elsewhere."""
    lines = ["| refined | at home | elsewhere | difference | strongest within one position of home |", "|---" * 5 + "|"]
    for place, name in enumerate(("LayerShuffle", "plain")):
        found = [at_home(analysed("shuffle", seed)["runs"][place]["layers"]) for seed in seeds]
        home, away, near = ([one[i] for one in found] for i in range(3))
        apart = interval([a - b for a, b in zip(home, away)])
        lines.append(f"| {name} | {spread(home)} | {spread(away)} | {apart} | {statistics.fmean(near):.1f} of 8 |")
    return "\n".join(lines)


def at_home(layers: list[dict[str, Any]]) -> tuple[float, float, int]:
    """Mean share (%) of layers in their own position, in the others, and how many are strongest next to their own."""
    layers = [row for row in layers if row["in_place"] is not None]  # else no order that was drawn had it there
    home = statistics.fmean(100 * row["in_place"] for row in layers)
    others = [
        [share for place, share in enumerate(row["positions"], 1) if place != row["layer"] and share is not None]
        for row in layers
    ]
    away = statistics.fmean(100 * statistics.fmean(values) for values in others)
    return home, away, sum(abs(row["most_at"] - row["layer"]) <= 1 for row in layers)


def positions(seeds: list[int]) -> str:
    found = [100 * analysed("predict", seed)["runs"][0]["predicted"] for seed in seeds]
    return f"Positions that the layers of LayerShuffle-predict say correctly: {spread(found)} %."


def reading(seeds: list[int]) -> str:
    """What the upper half of the layers read: the one before, the patches, the most read of the others."""
    lines = ["| model | layers 5 to 8: the one before | patch encoding | others |", "|---|---|---|---|"]
    for arm in ("wdc", "wsdc"):
        upper = [analysed(f"dynamic_{arm}", seed)["maps"]["all"]["weights"][4:] for seed in seeds]
        before = [statistics.fmean(100 * row[-1] for row in rows) for rows in upper]
        patches = [statistics.fmean(100 * row[0] for row in rows) for rows in upper]
        others = [100 - a - b for a, b in zip(before, patches)]
        lines.append(f"| {DYNAMIC[arm]} | {' | '.join(map(spread, (before, patches, others)))} |")
    return "\n".join(lines)


def differences(seeds: list[int]) -> str:
    """Paired differences of the Dynamic Transformers from the plain network."""
    lines = ["| claim | difference from base | points |", "|---|---|---|"]

    def row(claim: str, name: str, figure: Callable[[int], float]) -> None:
        lines.append(f"| {claim} | {name} | {interval([figure(seed) for seed in seeds])} |")

    for arm in ("wsdc", "wdc"):
        row("C22", DYNAMIC[arm], lambda seed, arm=arm: score(arm, seed, 1.0) - score("base", seed, 1.0))  # type: ignore[misc]
    for arm in ("dt", "dt_straight"):
        for share in (0.25, 0.5, 0.75, 1.0):
            name = f"{DYNAMIC[arm]}, about {100 * share:.0f} % of the MACs"
            row("C23", name, lambda seed, arm=arm, share=share: score(arm, seed, share) - score("base", seed, 1.0))  # type: ignore[misc]
    for arm in ("wdc", "wsdc", "dt"):
        gap = lambda seed, arm=arm: overfit(run(arm, seed)) - overfit(run("base", seed))
        row("C25", f"{DYNAMIC[arm]}, train - validation accuracy", gap)
    return "\n".join(lines)


def run(arm: str, seed: int) -> Path:
    return HOME / f"dynamic_{arm}-{seed}"


def score(arm: str, seed: int, share: float) -> float:
    """Test accuracy of the point whose mean cost is nearest to a share of the plain network's."""
    whole = max(row["macs"] for row in ladder("base", seed))
    return 100 * min(ladder(arm, seed), key=lambda row: abs(row["macs"] - share * whole))["score"]


def ladder(arm: str, seed: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((run(arm, seed) / "ladder.json").read_text())["points"]
    return rows


def keep_pictures(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for arm, names in PICTURES.items():
        analysed(arm, seed)
        for name, new in names.items():
            buffer = io.BytesIO()
            picture = Image.open(HOME / f"analysis_{arm}-{seed}" / name).convert("RGB")
            picture.quantize(COLOURS, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
            (folder / new).write_bytes(buffer.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--pictures", type=Path)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for found in (contributions, positions, reading, differences):
        print(f"{found(seeds)}\n")
    if arguments.pictures:
        keep_pictures(arguments.pictures, seeds[0])


if __name__ == "__main__":
    main()
