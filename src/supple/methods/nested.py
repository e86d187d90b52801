"""One pruned network for every ratio: sorted by their scores, the dimensions of a smaller one begin those of a larger.

`supple prune RUN --widths 0.2,0.4,0.6,0.8` makes such a checkpoint; train it on with any teacher matrix. Each width has
a network of its own shape that shares all weights.
"""

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.backbones.dims import Shape, blocks_of, check_shape, cut_block, first, resize, shape_of, sliced
from supple.errors import RecipeError
from supple.methods.ranking import equal_scores, keep
from supple.methods.static import Static
from supple.methods.widths import Widths
from supple.model import FlexibleModel


class Nested(Widths):
    """Points `width=0.2` ... `full` over a transformer: the share of all prunable dimensions that a width keeps."""

    backbone: nn.Module

    def __init__(
        self,
        backbone: nn.Module,
        *,
        widths: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8),  # shares of the dimensions, below 1
        shapes: tuple[Shape, ...] = (),  # of each width, as supple prune finds them; none: all blocks alike
    ) -> None:
        if not widths:
            raise RecipeError("method.widths is []: there is nothing to narrow to.", "Say [0.4, 0.8].")
        dimensions = Dimensions(backbone, widths, shapes)
        super().__init__(Static(backbone), widths, dimensions)
        self.shapes = dimensions.shapes


class Dimensions:
    """The narrowing of transformers: what each width keeps of every block, the first dimensions."""

    def __init__(
        self, network: nn.Module, widths: Sequence[float], shapes: Sequence[Shape] = (), multiple: int = 1
    ) -> None:
        if list(widths) != sorted(set(widths)) or (widths and not 0 < widths[0] <= widths[-1] < 1):
            raise RecipeError(f"method.widths is {list(widths)}: they must rise, between 0 and 1.", "Say [0.4, 0.8].")
        if shapes and len(shapes) != len(widths):
            raise RecipeError(f"method.shapes has {len(shapes)} shapes for {len(widths)} widths.", "Give one for each.")
        full = shape_of(network)
        scores = equal_scores(blocks_of(network))
        shapes = shapes or tuple(keep(scores, 1 - width, multiple=multiple).shape for width in widths)
        self.shapes = {float(width): check_shape(shape, full) for width, shape in zip(widths, shapes)}
        for (less, small), (more, large) in itertools.pairwise([*self.shapes.items(), (1.0, full)]):
            if any(a > b for pair in zip(small, large) for a, b in zip(*pair)):
                cure = "A smaller width keeps no more of any block than a larger one."
                raise RecipeError(f"method.shapes: width {less:g} is larger somewhere than {more:g}.", cure)

    def view(self, model: FlexibleModel, width: float) -> FlexibleModel:
        shared: dict[int, Any] = {id(part): part for part in (*model.parameters(), *model.buffers())}
        narrow = copy.deepcopy(model, shared)
        for block, (dims, hidden) in zip(blocks_of(narrow), self.shapes[width]):
            cut_block(block, first(dims), first(hidden), Part)
        narrow.refresh()
        return narrow

    def cut(self, model: FlexibleModel, width: float) -> FlexibleModel:
        narrow = copy.deepcopy(model)
        resize(narrow, self.shapes[width])
        narrow.refresh()
        return narrow

    def start(self, model: FlexibleModel, fresh: Sequence[str]) -> None:
        """The dimensions are in the order that their network was given in: `supple prune` has sorted them."""


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
