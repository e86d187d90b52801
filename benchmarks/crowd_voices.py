"""Crowds with sound, constructed: degraded photographs, and one voice for about every second head.

    python benchmarks/crowd_voices.py OUT [--crowds crowd-mini.zip] [--voices spoken-digits.zip]

No photographs of crowds with their sound can be had here. So of every head in a picture it is drawn whether it speaks
(probability 1/2) in that second; a recording of a spoken digit stands for each that does, at a moment, and as loud, as
chance has it. Pictures are made small, dark and noisy, so that not everything can be seen. Recordings 0 to 4 of each
speaker are heard beside test pictures alone. OUT/crowd-voices is a data set of the kind `crowd`, always the same; it is
what recipes/claims/crowd_voices.yaml is trained on. $SUPPLE_DATA is searched for both files.
"""

import argparse
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image
from soxr import resample

from supple.data._io.paths import find

SPEAKS = 0.5  # probability of a head
RATE = 16_000  # samples of the one second of each sound
LEVEL = 0.05  # of one voice, at most 1: a hundred of them hardly ever reach full scale
HEIGHT, WIDTH = 160, 256
LIGHT, NOISE = 0.25, 12.0  # share of the light that is left, and the deviation of the noise, of 255
TESTED = 5  # recordings of each speaker and digit that are kept for test pictures

Array = np.ndarray[Any, Any]


def voices(path: Path) -> dict[bool, list[Array]]:
    """All recordings at RATE, scaled to the same energy; True: those for test pictures."""
    found: dict[bool, list[Array]] = {False: [], True: []}
    with zipfile.ZipFile(path) as archive:
        for name in sorted(one for one in archive.namelist() if one.endswith(".wav")):
            wave, rate = soundfile.read(io.BytesIO(archive.read(name)), dtype="float32")
            wave = resample(wave, rate, RATE)[:RATE]
            found[int(Path(name).stem.rpartition("_")[2]) < TESTED].append(wave / (np.abs(wave).max() + 1e-6))
    return found


def choir(count: int, among: list[Array], rng: np.random.Generator) -> Array:
    """A second of so many voices."""
    second = np.zeros(RATE, np.float32)
    for number in rng.integers(len(among), size=count):
        wave = among[number]
        start = int(rng.integers(-len(wave) // 2, RATE - len(wave) // 2))  # some begin before it, some end after it
        first, last = max(0, start), min(RATE, start + len(wave))
        second[first:last] += LEVEL * rng.uniform(0.5, 1.0) * wave[first - start : last - start]
    return np.clip(second, -1, 1)


def degraded(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    small = np.asarray(picture.convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BOX), np.float32)
    return Image.fromarray(np.clip(LIGHT * small + rng.normal(0, NOISE, small.shape), 0, 255).astype(np.uint8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--crowds", default="crowd-mini.zip")
    parser.add_argument("--voices", default="spoken-digits.zip")
    given = parser.parse_args()
    folder = given.out / "crowd-voices"
    for name in ("images", "sounds"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    among = voices(find(given.voices))
    with zipfile.ZipFile(find(given.crowds)) as archive:
        entries = json.loads(archive.read("points.json"))["images"]
        listed = {}
        for number, (name, entry) in enumerate(sorted(entries.items())):
            rng = np.random.default_rng(number)
            picture = Image.open(io.BytesIO(archive.read(f"images/{name}")))
            stem = Path(name).stem
            degraded(picture, rng).save(folder / "images" / f"{stem}.png")
            spoken = int(rng.binomial(len(entry["points"]), SPEAKS))
            soundfile.write(
                folder / "sounds" / f"{stem}.wav", choir(spoken, among[entry["split"] == "test"], rng), RATE
            )
            scale = np.array([WIDTH / entry["width"], HEIGHT / entry["height"]])
            points = (np.array(entry["points"], float).reshape(-1, 2) * scale).round(2).tolist()
            listed[f"{stem}.png"] = {"points": points, "split": entry["split"], "voices": spoken}
    (folder / "points.json").write_text(json.dumps({"images": listed}))
    print(f"{folder}: {len(listed)} pictures with {sum(len(one['points']) for one in listed.values()):,} heads")


if __name__ == "__main__":
    main()
