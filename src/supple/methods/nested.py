"""One pruned network for every ratio: sorted by their scores, the dimensions of a smaller one begin those of a larger.

`supple prune RUN --widths 0.2,0.4,0.6,0.8` makes such a checkpoint; train it on with any teacher matrix. Each width has
a network of its own shape that shares all weights.
"""

import copy
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.backbones.dims import Shape, blocks_of, check_shape, cut_block, first, resize, shape_of, sliced
from supple.errors import RecipeError
from supple.methods._trunk import in_turn
from supple.methods.ranking import equal_scores, keep
from supple.model import FlexibleModel, Outputs, as_output
from supple.point import FULL, AnyPoint, Point


class Nested(FlexibleModel):
    """Points `width=0.2` ... `full` over a transformer: the share of all prunable dimensions that a width keeps."""

    backbone: nn.Module

    def __init__(
        self,
        backbone: nn.Module,
        *,
        widths: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8),  # shares of the dimensions, below 1
        shapes: tuple[Shape, ...] = (),  # of each width, as supple prune finds them; none: all blocks alike
    ) -> None:
        super().__init__()
        if list(widths) != sorted(set(widths)) or not widths or not 0 < widths[0] <= widths[-1] < 1:
            raise RecipeError(f"method.widths is {list(widths)}: they must rise, between 0 and 1.", "Say [0.4, 0.8].")
        if shapes and len(shapes) != len(widths):
            raise RecipeError(f"method.shapes has {len(shapes)} shapes for {len(widths)} widths.", "Give one for each.")
        self.backbone = backbone
        full = shape_of(backbone)
        scores = equal_scores(blocks_of(backbone))
        shapes = shapes or tuple(keep(scores, 1 - width).shape for width in widths)
        self.shapes = {width: check_shape(shape, full) for width, shape in zip(widths, shapes)}
        for (less, small), (more, large) in itertools.pairwise([*self.shapes.items(), (1.0, full)]):
            if any(a > b for pair in zip(small, large) for a, b in zip(*pair)):
                cure = "A smaller width keeps no more of any block than a larger one."
                raise RecipeError(f"method.shapes: width {less:g} is larger somewhere than {more:g}.", cure)
        self.points = (*(Point(width=width) for width in widths), FULL)
        self._narrow: dict[float, nn.Module] = {}  # made when first asked for

    def rank(self, point: Point) -> float:
        return point.width

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        yield from in_turn(self.order(points), x, lambda x, p: as_output(p, self.network(p.width)(x)))

    def network(self, width: float) -> nn.Module:
        """The network of a width; it shares its weights with all others."""
        if width == 1:
            return self.backbone
        if width not in self._narrow:
            with torch.inference_mode(False):  # it may be trained later
                self._narrow[width] = narrowed(self.backbone, self.shapes[width])
        return self._narrow[width]

    def plain(self, point: Point) -> nn.Module:
        network = copy.deepcopy(self.backbone)
        if point != FULL:
            resize(network, self.shapes[point.width])
        return network

    def train(self, mode: bool = True) -> "Nested":
        super().train(mode)
        for network in self._narrow.values():
            network.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> "Nested":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._narrow.clear()  # they may hold tensors that were replaced
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Nested":
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        for name, value in self.__dict__.items():
            new.__dict__[name] = {} if name == "_narrow" else copy.deepcopy(value, memo)
        return new


def narrowed(network: nn.Module, shape: Shape) -> nn.Module:
    """A network of another shape that shares every weight of this one."""
    shared = {id(part): part for part in (*network.parameters(), *network.buffers())}
    narrow = copy.deepcopy(network, shared)
    for block, (dims, hidden) in zip(blocks_of(narrow), shape):
        cut_block(block, first(dims), first(hidden), Part)
    return narrow


class Part(nn.Module):
    """Some outputs, or inputs, of a linear layer: sliced where gradients flow, else copied once and kept while the
    weights stay as they are.
    """

    def __init__(self, linear: nn.Linear, **part: Tensor) -> None:  # as of `sliced`
        super().__init__()
        self.linear, self.part = linear, part
        self.out_features = len(part["rows"]) if "rows" in part else linear.out_features
        self.in_features = len(part["columns"]) if "columns" in part else linear.in_features
        self._copy: tuple[tuple[int, ...], Tensor, Tensor | None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear.weight
        if (weight.requires_grad and torch.is_grad_enabled()) or weight.is_inference() or weight.is_meta:
            return F.linear(x, *sliced(self.linear, **self.part))
        bias = self.linear.bias
        state = (weight.data_ptr(), weight._version, 0 if bias is None else bias._version)
        known = self._copy
        if known is None or known[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                known = (state, *sliced(self.linear, **self.part))
            self._copy = known
        return F.linear(x, known[1], known[2])


@torch.no_grad()
def sort_dims(network: nn.Module, orders: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Puts the dimensions of every block in a new order, in place; the network computes what it did."""
    for block, (dims, hidden) in zip(blocks_of(network), orders):
        cut_block(block, dims, hidden)
