"""Repeatable chance: which points a training step runs, and random sources that are functions of seed, epoch, step."""

import random
from collections.abc import Callable, Sequence

import torch

from supple.point import Group, Point

Draw = Callable[[random.Random], Point | None]  # a random one of all points that a model can run; None: of those known
Sampler = Callable[[Sequence[Point], random.Random, Draw], Sequence[Point]]


def nothing(rng: random.Random) -> None:
    """Of a model that can run the points it publishes and no others."""


def every(points: Sequence[Point], rng: random.Random, draw: Draw = nothing) -> list[Point]:
    """All points, every step."""
    return list(points)


def sandwich(points: Sequence[Point], rng: random.Random, draw: Draw = nothing, middle: int = 2) -> list[Point]:
    """The smallest, the largest, and `middle` random ones (the sandwich rule, Yu & Huang 2019): any mixtures of the
    axes where a model has several, else published ones."""
    drawn = [point for point in (draw(rng) for _ in range(middle)) if point is not None]
    if not drawn:
        between = list(points[1:-1])
        drawn = rng.sample(between, min(middle, len(between)))
        drawn.sort(key=points.index)
    return list(dict.fromkeys([points[0], *drawn, points[-1]]))


def one(points: Sequence[Point], rng: random.Random, draw: Draw = nothing) -> list[Point]:
    """One random point."""
    return [rng.choice(list(points))]


def full(points: Sequence[Point], rng: random.Random, draw: Draw = nothing) -> list[Point]:
    """The full model alone: ordinary training."""
    return [points[-1]]


def smallest(points: Sequence[Point], rng: random.Random, draw: Draw = nothing) -> list[Point]:
    """The cheapest point alone."""
    return [points[0]]


SAMPLERS: dict[str, Sampler] = {
    "every": every,
    "sandwich": sandwich,
    "one": one,
    "full": full,
    "smallest": smallest,
}


def from_group(group: Group) -> Sampler:
    """One point of a group, whatever points the model publishes."""
    return lambda points, rng, draw: [group.sample(rng)]


def seed_of(*parts: int) -> int:
    """A number that depends on these alone."""
    return random.Random("/".join(map(str, parts))).getrandbits(62)


def generator(*parts: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*parts))
