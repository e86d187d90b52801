"""Repeatable chance: which points a training step runs, and random sources that are functions of seed, epoch, step."""

import random
from collections.abc import Callable, Sequence

import torch

from supple.point import Group, Point

Sampler = Callable[[Sequence[Point], random.Random], list[Point]]


def every(points: Sequence[Point], rng: random.Random) -> list[Point]:
    """All points, every step."""
    return list(points)


def sandwich(points: Sequence[Point], rng: random.Random, middle: int = 2) -> list[Point]:
    """The smallest, the largest, and `middle` random ones between (the sandwich rule, Yu & Huang 2019)."""
    between = list(points[1:-1])
    chosen = set(rng.sample(between, min(middle, len(between)))) | {points[0], points[-1]}
    return [point for point in points if point in chosen]


def one(points: Sequence[Point], rng: random.Random) -> list[Point]:
    """One random point."""
    return [rng.choice(list(points))]


def full(points: Sequence[Point], rng: random.Random) -> list[Point]:
    """The full model alone: ordinary training."""
    return [points[-1]]


def smallest(points: Sequence[Point], rng: random.Random) -> list[Point]:
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
    return lambda points, rng: [group.sample(rng)]


def seed_of(*parts: int) -> int:
    """A number that depends on these alone."""
    return random.Random("/".join(map(str, parts))).getrandbits(62)


def generator(*parts: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*parts))
