"""The outlines of COCO files as pixels: polygons, and run lengths (plain or compressed)."""

from typing import Any

import numpy as np

Mask = np.ndarray[Any, Any]  # bool (height, width)


def mask_of(segmentation: Any, height: int, width: int) -> Mask:
    """The pixels of an object; ValueError says what is wrong with its segmentation."""
    if isinstance(segmentation, dict):
        return _runs(segmentation, height, width)
    mask = np.zeros((height, width), dtype=bool)
    for polygon in segmentation:
        mask |= _filled(np.asarray(polygon, dtype=np.float64).reshape(-1, 2), height, width)
    return mask


def check(segmentation: Any, height: int, width: int) -> Any:
    """The segmentation of an object, compact; ValueError if it is none."""
    if isinstance(segmentation, dict):
        if list(segmentation.get("size", ())) != [height, width]:
            raise ValueError(f"its run lengths are for {segmentation.get('size')}, the picture is {[height, width]}")
        counts = segmentation.get("counts")
        counts = _decompressed(counts) if isinstance(counts, str) else counts
        counts = counts if isinstance(counts, list) else []
        if not all(isinstance(count, int) and count >= 0 for count in counts) or sum(counts) != height * width:
            raise ValueError("its run lengths do not cover the picture")
        return {"counts": np.asarray(counts, dtype=np.int32)}
    if not isinstance(segmentation, list) or not segmentation:
        raise ValueError("it has no segmentation")
    polygons = [np.asarray(polygon, dtype=np.float32) for polygon in segmentation]
    for polygon in polygons:
        if polygon.ndim != 1 or len(polygon) < 6 or len(polygon) % 2 or not np.isfinite(polygon).all():
            raise ValueError("a polygon of it is not a list of three or more points: [x1, y1, x2, y2, x3, y3, ...]")
    return polygons


def _filled(points: Mask, height: int, width: int) -> Mask:
    """The pixels whose centres lie inside a polygon: those with an odd number of its edges to their left."""
    x, y = points[:, 0], points[:, 1]
    following_x, following_y = np.roll(x, -1), np.roll(y, -1)
    rows = np.arange(height)[:, None] + 0.5
    row, edge = np.nonzero((y <= rows) != (following_y <= rows))
    along = (row + 0.5 - y[edge]) / (following_y[edge] - y[edge])
    crossing = x[edge] + along * (following_x[edge] - x[edge])
    column = np.clip(np.ceil(crossing - 0.5), 0, width).astype(np.int64)
    crossed = np.zeros((height, width + 1), dtype=np.int64)
    np.add.at(crossed, (row, column), 1)
    inside: Mask = np.cumsum(crossed, 1)[:, :width] % 2 == 1
    return inside


def _runs(segmentation: dict[str, Any], height: int, width: int) -> Mask:
    """Lengths of runs of 0 and 1 in turn, column by column."""
    counts = segmentation["counts"]
    flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    mask: Mask = flat.reshape(width, height).T
    return mask


def _decompressed(text: str) -> list[int]:
    """Run lengths from COCO's text: five bits in a character, the sixth says that more follow; from the fourth number
    on, each is the difference to the one two places before.
    """
    counts: list[int] = []
    place = 0
    while place < len(text):
        value, shift, more = 0, 0, True
        while more:
            if place >= len(text):
                raise ValueError("its run lengths are cut off")
            bits = ord(text[place]) - 48
            if not 0 <= bits < 64:
                raise ValueError("its run lengths are not COCO text")
            value |= (bits & 31) << shift
            more, shift, place = bool(bits & 32), shift + 5, place + 1
            if not more and bits & 16:
                value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
    return counts
