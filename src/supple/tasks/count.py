"""How many: whatever a network gives (a density map, or one number) sums to the count."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from supple.tasks.task import Answer, Array, Metric, Task

if TYPE_CHECKING:
    from torch import Tensor

    from supple.model import Output

COLOURS = ((0, 0, 128), (0, 96, 255), (0, 220, 220), (255, 220, 0), (255, 40, 0))  # from few to many
SMALLEST, LARGEST = 160, 4096  # pixels of a side
MOST_VEIL = 0.75  # how much of the picture the densest place hides


class Crowd(NamedTuple):
    """What is true of a batch of pictures."""

    heads: "Tensor"  # (batch,)
    density: "Tensor"  # (batch, 1, height, width); each map sums to the number of heads


def apart(output: "Output", target: Any) -> "Tensor":
    """How far each count is from the true one."""
    true = target.heads if isinstance(target, Crowd) else target
    return (output.logits.float().flatten(1).sum(1) - true.flatten()).abs()


def squared(output: "Output", target: Any) -> "Tensor":
    return apart(output, target).square()


def answer(logits: Array, classes: Sequence[str]) -> list[Answer]:
    counts = logits.astype(np.float32).reshape(len(logits), -1).sum(1).tolist()
    return [Answer(in_words(count, classes), {}, {"count": count}) for count in counts]


def in_words(count: float, classes: Sequence[str]) -> str:
    return f"{count:.1f} {classes[0] if classes else 'people'}"


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(picture: Array, logits: Array, aux: Mapping[str, Array], classes: Sequence[str]) -> Image.Image:
    """Where the density is, in the colours of heat, and the number in a corner. A point that gives a single number,
    such as a branch, has no map to draw: only the number is.
    """
    image = readable(Image.fromarray(picture))
    if logits.ndim == 3:
        image = heated(image, np.maximum(logits[0].astype(np.float32), 0))
    return numbered(image, in_words(float(logits.sum()), classes))


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


COUNT = Task(
    "count",
    (
        Metric("mae", "MAE", higher_is_better=False, each=apart),
        Metric("mse", "MSE", higher_is_better=False, each=squared),
    ),
    losses=apart,
    answer=answer,
    objectives=("count", "density"),
    output="density",
    draw=draw,
)
