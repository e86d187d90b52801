"""SL-ViT's table 8 in small: people counted by exits of a small CSRNet, CNN against SL-ViT branches, as Markdown.

    python benchmarks/pocket_crowd.py                # three seeds, two runs at a time, about half an hour
    python benchmarks/pocket_crowd.py --seeds 0
    python benchmarks/pocket_crowd.py --draw docs/img/crowd.png   # maps of test pictures: what is marked, what is seen

Twice: seen alone, and with a sound for each picture. These pictures have none; the sounds are clips of ESC-10 drawn by
lot, so that nothing can be heard of the crowd: the second half shows that the machinery runs, and what useless sound
costs. Every run can be interrupted and goes on where it stopped; finished runs are only read.
"""

import argparse
import json
import random
import statistics
import zipfile
from pathlib import Path

import torch
from PIL import Image

from jobs import Job, do, train
from spread import interval, spread
from supple import load
from supple.data._io.paths import find
from supple.tasks.count import heated, numbered
from supple.training.build import data_of

HOME = Path("runs/pocket/crowd")
PAIRED = HOME / "paired"  # the pictures, with a sound each
HEARS = (
    f"data.root={PAIRED}",
    "backbone.use_audio=true",
    "backbone.audio_channels=[8, 16, 32, 64]",
)
GAP = 6  # pixels between drawn maps
EXITS = "method.at=[vision, audio, fusion1]"
BEFORE = {"backbone": "density", "cnn": "backbone", "sl_vit": "backbone"}
EARLY = {
    "seen": {"exit=1": "V1", "exit=2": "behind the first dilated block"},
    "heard": {"exit=1": "V1", "exit=2": "AV1", "exit=3": "AV2"},
}


def run(way: str, arm: str, seed: int) -> Path:
    return HOME / f"{way}_{arm}-{seed}"


def begin(way: str, arm: str, seed: int) -> None:
    changes = list(HEARS) if way == "heard" else []
    if arm in BEFORE:
        changes.append(f"train.init={run(way, BEFORE[arm], seed)}")
    if way == "heard" and arm in ("cnn", "sl_vit"):
        changes.append(EXITS)
    train(run(way, arm, seed), f"pocket/crowd_{arm}.yaml", seed, *changes)


def pair() -> None:
    """Unpacks the pictures and puts a clip of ESC-10 beside each, drawn by lot."""
    if (PAIRED / "points.json").exists():
        return
    with zipfile.ZipFile(find("crowd-mini.zip")) as crowds, zipfile.ZipFile(find("esc10-16k.zip")) as clips:
        crowds.extractall(PAIRED.with_suffix(".part"))
        sounds = sorted(name for name in clips.namelist() if name.endswith(".wav"))
        lot, folder = random.Random(0), PAIRED.with_suffix(".part") / "sounds"
        folder.mkdir(exist_ok=True)
        for name in sorted(json.loads(crowds.read("points.json"))["images"]):
            (folder / f"{Path(name).stem}.wav").write_bytes(clips.read(lot.choice(sounds)))
    PAIRED.with_suffix(".part").rename(PAIRED)


def rows(way: str, arm: str, seed: int) -> dict[str, dict[str, float]]:
    points = json.loads((run(way, arm, seed) / "ladder.json").read_text())["points"]
    return {row["point"]: row for row in points}


def table(way: str, seeds: list[int]) -> str:
    lines = ["| branch | exit | GMACs | MAE |", "|---|---|---|---|"]
    for arm, said, points in (
        ("cnn", "CNN", EARLY[way]),
        ("sl_vit", "SL-ViT", EARLY[way]),
        ("cnn", "-", {"full": "all"}),
    ):
        for point, name in points.items():
            found = [rows(way, arm, seed)[point] for seed in seeds]
            scores = spread([row["score"] for row in found])
            lines.append(f"| {said} | {name} | {found[0]['macs'] / 1e9:.3f} | {scores} |")
    splits = data_of(run(way, "cnn", seeds[0]))
    usual = statistics.fmean(scene_count(splits.train))
    blind = statistics.fmean(abs(count - usual) for count in scene_count(splits.test))
    lines += [f"| - | none: always the mean of the training pictures, {usual:.1f} | 0 | {blind:.2f} |", ""]
    for point, name in EARLY[way].items():
        apart = [rows(way, "sl_vit", seed)[point]["score"] - rows(way, "cnn", seed)[point]["score"] for seed in seeds]
        lines.append(f"SL-ViT - CNN, {name}: {interval(apart)} (less is better).")
    if way == "heard":  # C15: what sound inside an exit brings, and an exit behind the fusion
        for arm in ("cnn", "sl_vit"):
            for one, other in (("exit=2", "exit=1"), ("exit=3", "exit=2")):
                found = [rows(way, arm, seed) for seed in seeds]
                apart = [row[one]["score"] - row[other]["score"] for row in found]
                lines.append(f"{arm}, {EARLY[way][one]} - {EARLY[way][other]}: {interval(apart)}.")
    return "\n".join(lines)


def scene_count(part) -> list[float]:
    return [float(len(sample.points)) for sample in part.samples]


def draw(to: Path, shown: tuple[int, ...] = (0, 24, 48, 72)) -> None:
    """Maps alone, without the photographs: above as marked, below as the first stage sees them."""
    home = run("seen", "density", 0)
    x, marked = data_of(home).test.batch(torch.tensor(shown))
    with torch.inference_mode():
        seen = load(home)(x)
    height, width = x.shape[-2:]
    sheet = Image.new("RGB", (len(shown) * (width + GAP) - GAP, 2 * (height + GAP) - GAP), "white")
    for row, maps in enumerate((marked.density, seen)):
        for column, density in enumerate(maps.clamp(min=0)):
            one = heated(Image.new("RGB", (width, height), (235, 235, 235)), density[0].numpy())
            told = numbered(one, f"{float(maps[column].sum()):.1f}")
            sheet.paste(told, (column * (width + GAP), row * (height + GAP)))
    sheet.save(to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--draw", type=Path, help="draw maps into this file, from runs that are finished")
    given = parser.parse_args()
    if given.draw:
        draw(given.draw)
        return
    seeds = [int(seed) for seed in given.seeds.split(",")]
    HOME.mkdir(parents=True, exist_ok=True)
    pair()
    jobs: list[Job] = []
    for way in EARLY:
        for arm in ("density", "backbone", "cnn", "sl_vit"):
            need = {seed: [run(way, BEFORE[arm], seed)] if arm in BEFORE else [] for seed in seeds}
            jobs += [(begin, (way, arm, seed), need[seed]) for seed in seeds]
    do(jobs, given.jobs)
    for way in EARLY:
        print(f"### {way}\n\n{table(way, seeds)}\n")


if __name__ == "__main__":
    main()
