"""A count drawn on its picture: where the density is, in the colours of heat, and the number in a corner."""

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from supple.model import FlexibleModel, Output

COLOURS = ((0, 0, 128), (0, 96, 255), (0, 220, 220), (255, 220, 0), (255, 40, 0))  # from few to many
SMALLEST, LARGEST = 160, 4096  # pixels of a side
MOST_VEIL = 0.75  # how much of the picture the densest place hides


def draw(model: FlexibleModel, output: Output, file: Path) -> Image.Image:
    """A point that gives a single number, such as a branch, has no map to draw: only the number is."""
    from supple.data.decode import decode  # data name their task: both ways at once would be a circle

    picture = readable(Image.fromarray(decode(file, model.preprocess.max_pixels)))
    answer = output.logits[0].float()
    if answer.dim() == 3:
        picture = heated(picture, answer[0].clamp(min=0).cpu().numpy())
    return numbered(picture, f"{float(answer.sum()):.1f} {model.classes[0] if model.classes else ''}".strip())


def readable(picture: Image.Image) -> Image.Image:
    """A picture as it is, or larger if a number could not be read on it."""
    scale = min(math.ceil(SMALLEST / min(picture.size)), LARGEST // max(picture.size))
    return picture if scale <= 1 else picture.resize((scale * picture.width, scale * picture.height))


def heated(picture: Image.Image, density: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Image.Image:
    """A picture under a veil, thicker and hotter where the density is higher; the densest place is the hottest."""
    share = Image.fromarray(density / max(float(density.max()), 1e-12)).resize(picture.size, Image.Resampling.BILINEAR)
    heat = np.clip(np.asarray(share), 0, 1)
    steps = np.linspace(0, 1, len(COLOURS))
    veil = np.stack([np.interp(heat, steps, channel) for channel in zip(*COLOURS)], -1)
    thickness = (MOST_VEIL * np.sqrt(heat))[:, :, None]
    mixed = (1 - thickness) * np.asarray(picture) + thickness * veil
    return Image.fromarray(mixed.round().astype(np.uint8))


def numbered(picture: Image.Image, text: str) -> Image.Image:
    """A picture with a line of text on a dark ground in its upper left corner."""
    size = max(10, min(picture.size) // 14)
    font, edge = ImageFont.load_default(size), max(2, size // 4)
    pen = ImageDraw.Draw(picture)
    box = pen.textbbox((2 * edge, 2 * edge), text, font=font)
    pen.rectangle((edge, edge, box[2] + edge, box[3] + edge), fill=(0, 0, 0))
    pen.text((2 * edge, 2 * edge), text, font=font, fill=(255, 255, 255))
    return picture
