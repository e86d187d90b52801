"""The sample pictures of the page that `supple serve` shows: drawn here, so that anybody may use them (CC0 1.0).

python benchmarks/sample_pictures.py src/supple/server/page/samples
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageChops, ImageDraw, ImageFilter

SIDE, FINE = 224, 4  # pixels of a picture; it is drawn this many times as large, for smooth edges
COLOURS = 96  # of a file: enough for a smooth sky
Canvas = ImageDraw.ImageDraw
Place = tuple[float, float]


def sky(top: str, bottom: str, horizon: float, ground: str) -> Image.Image:
    """From one colour to another down to the horizon (a share of the height), then ground."""
    shades = Image.linear_gradient("L").resize((SIDE * FINE, SIDE * FINE))
    picture = Image.composite(_plain(bottom), _plain(top), shades)
    ImageDraw.Draw(picture).rectangle(_box(0, horizon, 1, 1), ground)
    return picture


def ship() -> Image.Image:
    picture = sky("#8fc0e6", "#e9f1f4", 0.66, "#2f6d8f")
    draw = ImageDraw.Draw(picture)
    _shape(draw, [(0.14, 0.60), (0.88, 0.58), (0.80, 0.73), (0.22, 0.73)], "#3a3f4b")
    _shape(draw, [(0.205, 0.70), (0.815, 0.70), (0.80, 0.73), (0.22, 0.73)], "#a5362c")
    draw.rectangle(_box(0.30, 0.48, 0.70, 0.595), "#f3f1ea")
    draw.rectangle(_box(0.36, 0.40, 0.60, 0.485), "#e4e1d6")
    for left in (0.42, 0.52):
        draw.rectangle(_box(left, 0.26, left + 0.06, 0.41), "#c9503c")
        draw.rectangle(_box(left, 0.26, left + 0.06, 0.30), "#2b2e36")
    for left in range(5):
        draw.ellipse(_box(0.335 + 0.075 * left, 0.525, 0.36 + 0.075 * left, 0.55), "#46607a")
    _line(draw, [(0.80, 0.59), (0.80, 0.36)], "#3a3f4b", 0.010)
    _waves(draw, 0.74, "#5f9bb8")
    return picture


def truck() -> Image.Image:
    picture = sky("#a9cfe8", "#f4efe4", 0.70, "#6d7076")
    draw = ImageDraw.Draw(picture)
    draw.rectangle(_box(0, 0.66, 1, 0.71), "#7f9a5b")
    for left in (0.05, 0.40, 0.75):
        draw.rectangle(_box(left, 0.87, left + 0.18, 0.885), "#e8e4d8")
    draw.rectangle(_box(0.06, 0.30, 0.63, 0.70), "#d9dde2")
    draw.rectangle(_box(0.06, 0.30, 0.63, 0.34), "#b9c0c8")
    for left in range(1, 5):
        _line(draw, [(0.06 + 0.114 * left, 0.34), (0.06 + 0.114 * left, 0.70)], "#c3c9d0", 0.008)
    _shape(draw, [(0.65, 0.40), (0.82, 0.40), (0.90, 0.55), (0.93, 0.57), (0.93, 0.73), (0.65, 0.73)], "#b8382f")
    _shape(draw, [(0.70, 0.44), (0.80, 0.44), (0.86, 0.555), (0.70, 0.555)], "#bfe0ee")
    draw.rectangle(_box(0.06, 0.70, 0.93, 0.745), "#33373f")
    draw.rectangle(_box(0.895, 0.62, 0.93, 0.66), "#f4d98a")
    for middle in (0.19, 0.34, 0.79):
        _wheel(draw, middle, 0.755, 0.072)
    return picture


def airplane() -> Image.Image:
    picture = sky("#3f83c4", "#cfe3f1", 1.0, "#ffffff")
    draw = ImageDraw.Draw(picture)
    for x, y, size in ((0.12, 0.80, 0.13), (0.28, 0.83, 0.10), (0.80, 0.22, 0.09), (0.90, 0.25, 0.07)):
        draw.ellipse(_box(x - size, y - 0.45 * size, x + size, y + 0.45 * size), "#eef5f9")
    _shape(draw, [(0.45, 0.47), (0.60, 0.44), (0.34, 0.15), (0.27, 0.16)], "#aab4be")
    draw.line([_at((0.14, 0.57)), _at((0.80, 0.43))], "#eef0f2", width=round(0.105 * SIDE * FINE))
    _shape(draw, [(0.13, 0.53), (0.15, 0.62), (0.05, 0.60), (0.06, 0.58)], "#eef0f2")
    _shape(draw, [(0.79, 0.378), (0.87, 0.395), (0.905, 0.43), (0.87, 0.455), (0.81, 0.484)], "#eef0f2")
    _shape(draw, [(0.11, 0.575), (0.22, 0.535), (0.10, 0.36), (0.04, 0.37)], "#2c5d9b")
    _shape(draw, [(0.40, 0.545), (0.58, 0.51), (0.50, 0.86), (0.43, 0.88)], "#c9d0d7")
    _shape(draw, [(0.10, 0.605), (0.18, 0.59), (0.14, 0.71), (0.10, 0.72)], "#c9d0d7")
    _shape(draw, [(0.82, 0.39), (0.86, 0.40), (0.875, 0.425), (0.83, 0.425)], "#39485a")
    for step in range(9):
        x = 0.28 + 0.055 * step
        draw.ellipse(_box(x, 0.53 - 0.212 * (x - 0.28), x + 0.016, 0.546 - 0.212 * (x - 0.28)), "#5b7590")
    return picture


def cat() -> Image.Image:
    picture = sky("#d9cdbd", "#efe7da", 0.78, "#b8a184")
    draw = ImageDraw.Draw(picture)
    fur, dark, light = "#c98a4b", "#9c6431", "#f3e6d3"
    draw.ellipse(_box(0.20, 0.62, 0.80, 1.20), fur)
    draw.ellipse(_box(0.36, 0.72, 0.64, 1.15), light)
    for side in (-1, 1):
        _shape(draw, [_flip(place, side) for place in ((0.22, 0.40), (0.26, 0.10), (0.45, 0.27))], fur)
        _shape(draw, [_flip(place, side) for place in ((0.27, 0.33), (0.285, 0.17), (0.39, 0.27))], "#e3a99a")
    draw.ellipse(_box(0.20, 0.22, 0.80, 0.74), fur)
    for shift in (-0.09, 0.0, 0.09):
        _line(draw, [(0.5 + shift, 0.24), (0.5 + 0.7 * shift, 0.345)], dark, 0.022)
    for side in (-1, 1):
        for height in (0.50, 0.56):
            _line(draw, [_flip((0.21, height), side), _flip((0.30, height + 0.01), side)], dark, 0.02)
        left, _ = _flip((0.385, 0), side)
        draw.ellipse(_box(left - 0.060, 0.40, left + 0.060, 0.51), "#dfe6a0")
        draw.ellipse(_box(left - 0.022, 0.405, left + 0.022, 0.505), "#1f2328")
        draw.ellipse(_box(left + 0.002, 0.42, left + 0.022, 0.44), "#ffffff")
    draw.ellipse(_box(0.375, 0.52, 0.625, 0.69), light)
    _shape(draw, [(0.465, 0.545), (0.535, 0.545), (0.50, 0.585)], "#c96f66")
    for side in (-1, 1):
        draw.arc(_box(0.5 - 0.07 * (side < 0), 0.55, 0.5 + 0.07 * (side > 0), 0.635), 10, 170, dark, _px(0.012))
        for height in (0.585, 0.615):
            _line(draw, [_flip((0.40, height), side), _flip((0.14, height - 0.02), side)], "#fbf6ee", 0.006)
    return picture


def seven() -> Image.Image:
    """As handwritten digits are shown to networks: white on black."""
    picture = _plain("#000000")
    draw = ImageDraw.Draw(picture)
    places = [(0.30, 0.24), (0.50, 0.225), (0.70, 0.24), (0.60, 0.42), (0.50, 0.60), (0.44, 0.80)]
    _line(draw, places, "#ffffff", 0.095)
    for x, y in places:
        draw.ellipse(_box(x - 0.047, y - 0.047, x + 0.047, y + 0.047), "#ffffff")
    return picture.filter(ImageFilter.GaussianBlur(FINE))


PICTURES: dict[str, Callable[[], Image.Image]] = {
    "ship": ship, "truck": truck, "airplane": airplane, "cat": cat, "seven": seven,
}  # fmt: skip


def drawn(name: str) -> Image.Image:
    picture = PICTURES[name]().resize((SIDE, SIDE), Image.Resampling.BOX)
    if name != "seven":
        picture = _with_grain(picture)
    return picture.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


def _with_grain(picture: Image.Image) -> Image.Image:
    """A little light from the upper left: flat colours alone are unlike any photograph."""
    light = (
        Image.radial_gradient("L")
        .resize((2 * SIDE, 2 * SIDE))
        .crop((SIDE // 2, SIDE // 2, 3 * SIDE // 2, 3 * SIDE // 2))
    )
    return ImageChops.subtract(picture, Image.merge("RGB", [light.point(lambda value: value // 8)] * 3))


# --- in shares of the side ---


def _plain(colour: str) -> Image.Image:
    return Image.new("RGB", (SIDE * FINE, SIDE * FINE), colour)


def _px(share: float) -> int:
    return round(share * SIDE * FINE)


def _at(place: Place) -> Place:
    return place[0] * SIDE * FINE, place[1] * SIDE * FINE


def _box(left: float, top: float, right: float, bottom: float) -> tuple[float, float, float, float]:
    return (*_at((left, top)), *_at((right, bottom)))


def _flip(place: Place, side: int) -> Place:
    return (place[0] if side < 0 else 1 - place[0]), place[1]


def _shape(draw: Canvas, places: Sequence[Place], colour: str) -> None:
    draw.polygon([_at(place) for place in places], colour)


def _line(draw: Canvas, places: Sequence[Place], colour: str, width: float) -> None:
    draw.line([_at(place) for place in places], colour, _px(width), joint="curve")


def _wheel(draw: Canvas, x: float, y: float, radius: float) -> None:
    for share, colour in ((1.0, "#22252b"), (0.55, "#9aa1aa"), (0.2, "#4b5058")):
        size = share * radius
        draw.ellipse(_box(x - size, y - size, x + size, y + size), colour)


def _waves(draw: Canvas, top: float, colour: str) -> None:
    for row in range(4):
        for step in range(-1, 7):
            left = 0.17 * step + 0.08 * (row % 2) + 0.01 * math.sin(step)
            y = top + 0.06 * row
            draw.arc(_box(left, y, left + 0.10, y + 0.035), 200, 340, colour, _px(0.009))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for one in PICTURES:
        drawn(one).save(folder / f"{one}.png", optimize=True)
        print(folder / f"{one}.png", (folder / f"{one}.png").stat().st_size, "bytes")
