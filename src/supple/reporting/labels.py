"""Where names go on a plot: beside their points or at the ends of their lines, covering nothing."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

MUTED = "#6b7480"
FONT = 9.0
LABELS = 12  # more names than this on one panel cannot be read

Spot = tuple[float, float, str, str]  # x, y, name, colour


def name_spots(
    axes: Axes, spots: Sequence[Spot], paths: Sequence[Sequence[tuple[float, float]]], falling: bool
) -> None:
    """Writes each name beside its point, where it covers no other name, marker or line.

    Every name tries the eight directions at growing distances and takes the place with the smallest penalty; three
    rounds let early names make room for later ones.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    pixel = figure.dpi / 72
    obstacles = np.concatenate([_sampled(axes.transData.transform(path), 3 * pixel) for path in paths])
    frame = np.array(axes.get_window_extent().extents)
    places: dict[int, tuple[np.ndarray, tuple[float, float], float]] = {}  # box (x0, y0, x1, y1), offset, distance
    notes = []
    for x, y, name, colour in spots:
        note = axes.annotate(
            name, (x, y), (0, 0), textcoords="offset points", ha="center", va="center_baseline", fontsize=FONT - 1,
            color=colour, zorder=4,
        )  # fmt: skip
        notes.append(note)
    sizes = [(note.get_window_extent().width + pixel, (FONT - 1) * pixel) for note in notes]
    centres = axes.transData.transform([(x, y) for x, y, _, _ in spots])
    sideways = -1 if falling else 1
    directions = [(1, -1), (-1, 1), (1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (-1, -1)]
    for _ in range(3):
        for i, ((width, height), (cx, cy)) in enumerate(zip(sizes, centres)):
            taken = [box for j, (box, _, _) in places.items() if j != i]
            best = math.inf
            for reach in (6.0, 10.0, 16.0, 24.0, 34.0, 46.0):
                for rank, (right, up) in enumerate(directions):
                    up *= sideways
                    gap = reach * pixel * (0.6 if right and up else 1.0)
                    mx, my = cx + right * (gap + width / 2), cy + up * (gap + height / 2)
                    box = np.array([mx - width / 2, my - height / 2, mx + width / 2, my + height / 2])
                    penalty = 0.5 * reach + 0.6 * rank + _penalty(box, taken, obstacles, frame, pixel)
                    if penalty < best:
                        best = penalty
                        places[i] = (box, ((mx - cx) / pixel, (my - cy) / pixel), reach)
    for i, (box, offset, reach) in places.items():
        notes[i].set_position(offset)
        if reach > 10:  # far enough from its point to need a thread back to it
            edge = (np.clip(centres[i], box[:2] - pixel, box[2:] + pixel) - centres[i]) / pixel
            thread = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 4}
            axes.annotate("", spots[i][:2], tuple(edge), textcoords="offset points", arrowprops=thread, zorder=1)


def _penalty(
    box: np.ndarray, taken: Sequence[np.ndarray], obstacles: np.ndarray, frame: np.ndarray, pixel: float
) -> float:
    wide = box + pixel * np.array([-2.5, -2.5, 2.5, 2.5])
    inside = ((obstacles > wide[:2]) & (obstacles < wide[2:])).all(axis=1).sum()
    clashes = sum(bool((wide[:2] < other[2:]).all() and (wide[2:] > other[:2]).all()) for other in taken)
    outside = bool((box[:2] < frame[:2]).any() or (box[2:] > frame[2:]).any())
    return 1000.0 * clashes + 400.0 * outside + 12.0 * float(inside)


def _sampled(path: np.ndarray, step: float) -> np.ndarray:
    """Points along a path, about `step` pixels apart."""
    pieces = [path[-1:]]
    for start, end in itertools.pairwise(path):
        count = max(1, math.ceil(float(np.hypot(*(end - start))) / step))
        pieces.append(np.linspace(start, end, count, endpoint=False))
    return np.concatenate(pieces)


def name_ends(axes: Axes, ends: Sequence[Spot]) -> Callable[[], None]:
    """Names each line at its right end, outside the axes; names that would touch are pushed apart."""
    step = math.ceil(len(ends) / LABELS) if ends else 1
    ends = sorted([*ends[::-1]][::step], key=lambda end: end[1])  # the full model, which comes last, keeps its name
    texts = [
        axes.text(1.02, y, name, transform=axes.get_yaxis_transform(), va="center", fontsize=FONT - 1, color=colour)
        for _, y, name, colour in ends
    ]

    def push() -> None:
        figure = axes.get_figure(root=True)
        assert figure is not None
        frame, gap = axes.get_window_extent(), 1.25 * (FONT - 1) * figure.dpi / 72
        heights = [float(axes.transData.transform((0, y))[1]) for _, y, _, _ in ends]
        for text, height in zip(texts, _apart(heights, gap, frame.y0, frame.y1)):
            text.set_y(float(axes.transData.inverted().transform((0, height))[1]))

    return push


def _apart(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Rising heights moved as little as needed to lie `gap` apart: clusters spread around their own mean."""
    clusters: list[list[float]] = []
    for height in heights:
        clusters.append([height])
        while len(clusters) > 1 and _start(clusters[-1], gap, low, high) < (
            _start(clusters[-2], gap, low, high) + gap * len(clusters[-2])
        ):
            last = clusters.pop()
            clusters[-1] += last
    return [_start(cluster, gap, low, high) + gap * i for cluster in clusters for i in range(len(cluster))]


def _start(cluster: Sequence[float], gap: float, low: float, high: float) -> float:
    length = gap * (len(cluster) - 1)
    return max(low, min(sum(cluster) / len(cluster) - length / 2, high - length))
