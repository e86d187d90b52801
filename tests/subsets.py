"""A model that knows which points it has, and computes nothing: what a search is tried on."""

import itertools
import random
from collections.abc import Iterator

from supple.model import FlexibleModel
from supple.point import FULL, Point


class Subsets(FlexibleModel):
    """Points are any of some layers, with some tokens merged or none."""

    publishes = True
    named = ("layers", "tokens")

    def __init__(self, layers: int, tokens: int = 0) -> None:
        super().__init__()
        self.all, self.most = tuple(range(1, layers + 1)), tokens
        self.points = (self.check(Point(layers=(1,))), FULL)

    @property
    def axes(self):
        return self.named

    def canonical(self, point: Point) -> Point:
        return point._replace(layers=None) if point.layers == self.all else point

    def validate(self, point: Point) -> None:
        pass

    def rank(self, point: Point) -> float:
        return macs(self, point)

    def layers_run(self, point: Point) -> tuple[int, ...]:
        return point.layers or self.all

    def mixtures(self) -> Iterator[Point]:
        for count, tokens in itertools.product(range(1, len(self.all) + 1), range(self.most + 1)):
            for layers in itertools.combinations(self.all, count):
                yield self.canonical(Point(layers=layers, tokens=tokens))

    def draw(self, rng: random.Random) -> Point:
        layers = sorted(rng.sample(self.all, rng.randint(1, len(self.all))))
        return self.canonical(Point(layers=layers, tokens=rng.randint(0, self.most)))

    def publish(self, points) -> None:
        self.points = tuple(self.order((*points, FULL)))


def macs(model: Subsets, point: Point) -> int:
    return 1_000_000 * len(model.layers_run(point)) - 100_000 * point.tokens
