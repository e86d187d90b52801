"""One network, several axes: exits and widths of a convolutional network; exits, widths, layers and tokens of a ViT.

Each axis is the one that stands alone elsewhere. A width is a view of the network that shares its weights (`slim.py`
for convolutions, `nested.py` for transformers); exits, layers and tokens act on whatever view they are given
(`exits.py`, `depth.py`). A point may name several axes: `exit=2,width=0.5`.
"""

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from supple.backbones.dims import blocks_of, shape_of
from supple.backbones.protocols import as_exits, as_trunk
from supple.errors import PointError, RecipeError
from supple.methods.depth import Depth
from supple.methods.exits import Exits, Wanted
from supple.methods.nested import Dimensions, sort_dims
from supple.methods.ranking import best_first, magnitudes
from supple.methods.slim import Channels, check_widths, rates_of_norms, settle_norms
from supple.methods.static import Static
from supple.methods.widths import Narrowing, Widths
from supple.model import Batches, FlexibleModel, Shape
from supple.point import FULL, AnyPoint, Point

PUBLISHED = 12  # points at most, unless they are named
MULTIPLE = 8  # of a transformer's dimensions: others take longer for each


class Elastic(Widths):
    """Points that mix axes. A dozen of them are published; `check` says which others can be run."""

    sorted: Tensor
    publishes = True

    def __init__(
        self,
        backbone: nn.Module,
        *,
        widths: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0),  # the last one 1
        at: tuple[str, ...] = (),  # layers with an exit behind them, unless the network has exits of its own
        branch: Wanted | tuple[Wanted, ...] = "linear",  # what answers there: one for all, or one for each
        layers: bool = False,  # of a transformer: whether points may leave layers out
        tokens: tuple[int, ...] = (),  # of a transformer: how many tokens points merge in every layer
        divisor: int = 8,  # of a convolutional network: kept channels are a multiple of this
        points: tuple[str, ...] = (),  # those to publish, such as exit=2,width=0.5; none: a dozen of all
        num_classes: int = 0,
        input_shape: Shape = (),
    ) -> None:
        check_widths(widths)
        facts = {"num_classes": num_classes, "input_shape": input_shape}
        inner: FlexibleModel
        narrowing: Narrowing
        if as_trunk(backbone) is not None:
            inner = Depth(backbone, at=at, branch=branch, layers=layers, tokens=tokens, **facts)  # type: ignore[arg-type]
            narrowing = Sorted(backbone, widths[:-1])
            norms = None
        else:
            if layers or tokens:
                cause = f"method.{'layers' if layers else 'tokens'} is for transformers, not for this "
                cure = "Leave it out, or use the backbone vit (any plain ViT or DeiT of timm)."
                raise RecipeError(f"{cause}{type(backbone).__name__}.", cure)
            cut = bool(at) or as_exits(backbone) is not None
            inner = Exits(backbone, at=at, branch=branch, **facts) if cut else Static(backbone)  # type: ignore[arg-type]
            narrowing = Channels(inner, widths[:-1], divisor, input_shape)
            norms = narrowing.norms
        super().__init__(inner, widths[:-1], narrowing)
        self.norms = norms
        self.input_shape = input_shape
        self.register_buffer("sorted", torch.tensor(False))  # whether the dimensions of a transformer are
        self.points = tuple(map(self.check, points)) or self._some()
        if self.points[-1] != FULL or list(self.points) != self.order(self.points):
            right = ", ".join(str(point) for point in self.order({*self.points, FULL}))
            raise RecipeError("method.points must rise in cost, and end with full.", f"Give {right}.")

    def _some(self) -> tuple[Point, ...]:
        """Each axis alone, then mixtures, the cheapest among them; of too many, some that spread over the costs."""
        full = self.rank(FULL)
        pairs = itertools.product(self.widths, self.inner.points[:-1])
        mixed = self.order(point._replace(width=width) for width, point in pairs)
        alone = self.order((*(Point(width=width) for width in self.widths), *self.inner.points[:-1]))
        alone = _evenly(alone, PUBLISHED - (2 if mixed else 1))
        mixed = _evenly(mixed, PUBLISHED - 1 - len(alone))
        return tuple(self.order((*(point for point in (*alone, *mixed) if self.rank(point) < full), FULL)))

    def rank(self, point: Point) -> float:
        return super().rank(self.inner.alike(point) if isinstance(self.inner, Depth) else point)

    def draw(self, rng: random.Random) -> Point:
        point = self.inner.draw(rng) or rng.choice(self.inner.points)
        return point._replace(width=rng.choice((*self.widths, 1.0)))

    def publish(self, points: Iterable[AnyPoint]) -> None:
        """The full model is always among them."""
        chosen = self.order((*points, FULL))
        if chosen[-1] != FULL:
            raise PointError(f"{chosen[-1]} costs more than the full model.", "Leave it out.")
        self.points = tuple(chosen)
        if self.method_spec is not None:
            self.method_spec = {**self.method_spec, "points": tuple(map(str, chosen))}

    def rates(self) -> Mapping[str, float]:
        return super().rates() if self.norms is None else rates_of_norms(super().rates(), self.norms)

    def start(self, fresh: Sequence[str]) -> None:
        super().start(fresh)
        self.sorted.fill_(True)

    def settle(self, loader: Batches, points: Iterable[AnyPoint] = ()) -> None:
        """The statistics of every width, all its exits included: a training that draws points meets each of them now
        and then, and averaged weights have met none."""
        self.add_points(points)
        if self.norms is not None:
            pairs = itertools.product((*self.widths, 1.0), self.inner.points)
            settle_norms(self, loader, [point._replace(width=width) for width, point in pairs])


def _evenly(points: list[Point], count: int) -> list[Point]:
    """At most so many of them, at even distances from the first on."""
    return points if len(points) <= count else [points[place * len(points) // count] for place in range(count)]


class Sorted(Dimensions):
    """The narrowing of transformers whose dimensions are sorted by the size of their weights before a training."""

    def __init__(self, network: nn.Module, widths: Sequence[float]) -> None:
        super().__init__(network, widths, multiple=MULTIPLE)
        sizes = [*self.shapes.items(), (1.0, shape_of(network))]
        for (less, small), (more, large) in itertools.pairwise(sizes):
            if small == large:
                cause = f"method.widths: {less:g} and {more:g} keep the same dimensions of every block."
                raise RecipeError(cause, f"Leave one of them out: dimensions are kept in multiples of {MULTIPLE}.")

    def start(self, model: FlexibleModel, fresh: Sequence[str]) -> None:
        if "sorted" in fresh:
            scores = magnitudes(blocks_of(model))
            sort_dims(model, [(best_first(heads), best_first(hidden)) for heads, hidden in scores])
