"""Which layers run, and in which order: what LayerShuffle trains with and is evaluated on (section 4)."""

import random
from functools import partial

from supple.point import Group, Point

Layers = tuple[int, ...]


def quarters(count: int) -> list[int]:
    """A quarter, half, three quarters and all of the layers, each at least one."""
    return sorted({max(1, round(count * share / 4)) for share in (1, 2, 3, 4)})


def first(kept: int) -> Layers:
    return tuple(range(1, kept + 1))


def spread(kept: int, count: int) -> Layers:
    """So many layers, spread evenly from the first on."""
    return tuple(1 + place * count // kept for place in range(kept))


def fixed(layers: Layers, rng: random.Random) -> Point:
    return Point(layers=layers)


def some(kept: int, count: int, rng: random.Random, arbitrary: bool = False) -> Point:
    drawn = rng.sample(range(1, count + 1), kept)
    return Point(layers=drawn if arbitrary else sorted(drawn))


def shuffled(layers: Layers, rng: random.Random) -> Point:
    return Point(layers=rng.sample(layers, len(layers)))


def dropped(count: int, drop: float, rng: random.Random) -> Point:
    """Each layer is left out with the chance `drop`; one stays in any case."""
    kept = tuple(layer for layer in range(1, count + 1) if rng.random() >= drop)
    return Point(layers=kept or (rng.randint(1, count),))


def groups_of(count: int, drop: float) -> list[Group]:
    """What the paper evaluates: all or fewer layers, in order or in any order."""
    found = [
        Group("arbitrary", partial(shuffled, first(count))),
        Group("layerdrop", partial(dropped, count, drop)),
    ]
    for kept in quarters(count)[:-1]:
        found += [
            Group(f"first {kept}, arbitrary", partial(shuffled, first(kept))),
            Group(f"spread {kept}", partial(fixed, spread(kept, count))),
            Group(f"spread {kept}, arbitrary", partial(shuffled, spread(kept, count))),
            Group(f"any {kept}", partial(some, kept, count)),
            Group(f"any {kept}, arbitrary", partial(some, kept, count, arbitrary=True)),
        ]
    return found
