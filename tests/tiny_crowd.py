"""A small generated crowd: bright dots on a dark ground, and a louder sound the more there are."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 36, 44  # of the files; they are resized


def make_crowd(folder: Path, count: int = 24, sounds: str | None = "images", splits: bool = True) -> Path:
    """images/N.png, points.json, and a wav for each in `sounds` (images, sounds, or None)."""
    rng = np.random.default_rng(0)
    entries: dict[str, Any] = {}
    for place in ("images", *([sounds] if sounds else [])):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        heads = int(rng.integers(0, 12))
        points = [[float(x), float(y)] for x, y in rng.uniform((0, 0), (WIDTH, HEIGHT), (heads, 2))]
        pixels = rng.integers(0, 40, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        for x, y in points:
            pixels[max(0, int(y) - 1) : int(y) + 2, max(0, int(x) - 1) : int(x) + 2] = 255
        name = f"{number:02}.png"
        Image.fromarray(pixels).save(folder / "images" / name)
        entries[name] = {"width": WIDTH, "height": HEIGHT, "points": points}
        if splits:
            entries[name]["split"] = ("train", "train", "val", "test")[number % 4]
        if sounds:
            write_wave(folder / sounds / f"{number:02}.wav", heads / 12)
    (folder / "points.json").write_text(json.dumps({"images": entries}))
    return folder


def write_wave(path: Path, loud: float, rate: int = 16_000) -> None:
    noise = np.random.default_rng(1).uniform(-1, 1, rate)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((32767 * loud * noise).astype("<i2").tobytes())
