"""SiDT's table II in small: a detector overfitted on 16 pictures, its Swin pruned by 0, 20 and 40 %, tuned.

    python benchmarks/pocket_detector.py             # four runs of about 7 minutes on two cores; as Markdown

It must find what it has seen; nothing more is shown by it. Every run can be interrupted and goes on where it stopped.
"""

import argparse
import json
from pathlib import Path

from jobs import finished, supple, train

HOME = Path("runs/pocket/detector")
RATIOS = (0.0, 0.2, 0.4)  # nothing cut: the same training as the others have
KEYS = ("score", "box_ap50", "mask_map", "mask_ap50")


def row(run: Path) -> dict[str, float]:
    [found] = [one for one in json.loads((run / "ladder.json").read_text())["points"] if one["point"] == "full"]
    return {**found, **found.get("extra_metrics", {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    threads = f"train.threads={given.threads}"
    runs = {"after the search": train(HOME / "search", "pocket/detector.yaml", 0, threads)}
    for ratio in RATIOS:
        cut, tuned = HOME / f"cut_{ratio}", HOME / f"pruned_{ratio}"
        if not finished(cut):
            supple("prune", str(HOME / "search"), "--ratio", str(ratio), "--out", str(cut), log=HOME / "prune.log")
        runs[f"{ratio:.0%} pruned, tuned"] = train(tuned, cut / "recipe.yaml", 0, threads)
    print(
        "| detector | params (M) | GMACs | box mAP | box AP50 | mask mAP | mask AP50 |\n|---|---|---|---|---|---|---|"
    )
    for name, run in runs.items():
        found = row(run)
        cells = [f"{found['params'] / 1e6:.2f}", f"{found['macs'] / 1e9:.2f}"]
        print(f"| {name} | {' | '.join(cells + [f'{100 * found[key]:.1f}' for key in KEYS])} |")


if __name__ == "__main__":
    main()
