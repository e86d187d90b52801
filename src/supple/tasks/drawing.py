"""Boxes and masks on their picture."""

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from supple.scenes import paste

SHADE = 0.45  # how much of a mask's colour lies over the picture


def drawn(
    picture: np.ndarray[Any, Any], objects: Sequence[tuple[str, float, list[float], Tensor]], classes: Sequence[str]
) -> Image.Image:
    """uint8 RGB (height, width, 3) with the objects on it, the best on top; every class has its colour."""
    height, width = picture.shape[:2]
    shaded = picture.astype(np.float32)
    for name, _, box, mask in reversed(objects):
        inside = paste(mask, torch.tensor(box), height, width).numpy()
        shaded[inside] = (1 - SHADE) * shaded[inside] + SHADE * np.array(colour(classes.index(name)), dtype=np.float32)
    image = Image.fromarray(shaded.round().clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    line = max(1, round(max(height, width) / 300))
    font = ImageFont.load_default(max(10, round(max(height, width) / 45)))
    for name, score, box, _ in reversed(objects):
        own = colour(classes.index(name))
        x1, y1, x2, y2 = box
        pen.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=own, width=line)
        text = f"{name} {100 * score:.0f}"
        left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
        across, down = right - left + 6, bottom - top + 6
        x, y = min(max(0, x1), max(0, width - across)), y1 - down if y1 >= down else y1
        pen.rectangle((x, y, x + across, y + down), fill=own)
        pen.text((x + 3 - left, y + 3 - top), text, fill="black", font=font)
    return image


def colour(label: int) -> tuple[int, int, int]:
    """Bright, and far from that of the next label."""
    red, green, blue = colorsys.hsv_to_rgb(label * 0.618034 % 1, 0.75, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)
