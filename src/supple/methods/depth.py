"""A transformer that can stop early, leave layers out and merge tokens: what acts on its stem, blocks and head.

A point is a way through the trunk: which layers run, how many tokens are merged in each, and which head answers. It is
the part of `elastic.py` that knows nothing of widths.
"""

import copy
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from supple.backbones._cut.tap import Tap, find_tokens
from supple.backbones.merging import must_merge, run_block
from supple.backbones.protocols import Trunk
from supple.cost import PointCosts
from supple.errors import PointError, RecipeError
from supple.methods._trunk import Ends, in_steps, run_stem, stem_alone, trunk_of, with_blocks, without_blocks
from supple.methods.branches import make_branch
from supple.methods.exits import Wanted, one_each
from supple.methods.shuffle import quarters, spread
from supple.model import FlexibleModel, Output, Outputs, Shape, Stage, State
from supple.point import FULL, AnyPoint, Point
from supple.text import did_you_mean

Layers = tuple[int, ...]
LEAST_DRAWN = 0.4  # of the layers that are there to run, points that are drawn have at least this share


class Step(NamedTuple):
    """One layer of a way, which counts from 1, and the tokens that are merged in it."""

    layer: int
    merged: int


class Depth(FlexibleModel):
    """Points in `exit`, `layers` (any of them, in order) and `tokens` (so many fewer after each layer)."""

    backbone: nn.Module

    def __init__(
        self,
        backbone: nn.Module,
        *,
        at: tuple[str, ...] = (),  # blocks with an exit behind them: blocks.2
        branch: Wanted | tuple[Wanted, ...] = "linear",  # what answers there
        layers: bool = False,  # whether points may leave layers out
        tokens: tuple[int, ...] = (),  # tokens that points merge in every layer
        num_classes: int = 0,
        input_shape: Shape = (),
        method: str = "elastic",  # for messages
    ) -> None:
        super().__init__()
        trunk = trunk_of(backbone, method)
        self.backbone, self.input_shape = backbone, input_shape
        self.count = len(trunk.blocks)
        self.ends = (*_ends(at, self.count), self.count)  # layers before each exit
        taps = [_tap(backbone, input_shape)] * len(at) if at else []
        made = [make_branch(one, tap, num_classes) for one, tap in zip(one_each(branch, len(at)), taps)]
        self.heads = nn.ModuleList(made)
        self.prefix = int(getattr(getattr(backbone, "network", None), "num_prefix_tokens", trunk.class_token))
        if list(tokens) != sorted(set(tokens)) or any(count < 1 for count in tokens):
            raise RecipeError(f"method.tokens is {list(tokens)}.", "Give rising numbers from 1, such as 4, 8.")
        if tokens:
            must_merge(backbone)
        self.tokens, self.may_skip = tuple(tokens), layers
        self.costs = PointCosts()
        alone = [Point(exit=k) for k in range(1, len(self.ends))]
        if layers:
            alone += [Point(layers=spread(kept, self.count)) for kept in quarters(self.count)[1:-1]]
        alone += [Point(tokens=count) for count in tokens]
        self.points = tuple(self.order((*alone, FULL)))

    @property
    def trunk(self) -> Trunk:
        return trunk_of(self.backbone, "elastic")

    # --- points ---------------------------------------------------------------------------------------------------

    @property
    def axes(self) -> tuple[str, ...]:
        own = {"exit": len(self.ends) > 1, "layers": self.may_skip, "tokens": bool(self.tokens)}
        return tuple(name for name, there in own.items() if there)

    def canonical(self, point: Point) -> Point:
        if point.exit == len(self.ends):
            point = point._replace(exit=None)
        if point.layers == tuple(range(1, self._end(point) + 1)):
            point = point._replace(layers=None)
        return point

    def validate(self, point: Point) -> None:
        if point.exit is not None and point.exit > len(self.ends):
            cause = f"this model cannot run {point!r}: it has {len(self.ends)} exits."
            raise PointError(cause, f"Use exit=1 to exit={len(self.ends)} (the last one is full).")
        if point.layers is not None:
            last = self._end(point)
            if list(point.layers) != sorted(set(point.layers)) or point.layers[-1] > last:
                cause = f"this model cannot run {point!r}: its layers run in order, each once, from 1 to {last} here."
                raise PointError(cause, "Name some of these, rising: layers=1-2-4.")

    def rank(self, point: Point) -> float:
        return self.costs.macs(self, self.alike(point))

    def alike(self, point: Point) -> Point:
        """The point, or one that costs the same and is soon known: of equal blocks it only matters how many run. Nearly
        every point that a training draws has layers of its own, and to count each takes up to a tenth of a step.
        """
        shapes = {tuple(parameter.shape for parameter in block.parameters()) for block in self.trunk.blocks}
        if point.layers is None or len(shapes) > 1:
            return point
        return self.canonical(point._replace(layers=range(1, len(point.layers) + 1)))

    def draw(self, rng: random.Random) -> Point:
        """A random mixture of the axes."""
        exit = rng.randint(1, len(self.ends))
        point = self.canonical(Point(exit=exit))
        end = self._end(point)
        if self.may_skip:
            kept = rng.randint(_least(end), end)
            point = self.canonical(point._replace(layers=sorted(rng.sample(range(1, end + 1), kept))))
        return point._replace(tokens=rng.choice((0, *self.tokens)))

    def mixtures(self) -> Iterator[Point]:
        """Those that `draw` may give."""
        for exit, tokens in itertools.product(range(1, len(self.ends) + 1), (0, *self.tokens)):
            point = self.canonical(Point(exit=exit, tokens=tokens))
            end = self._end(point)
            for kept in range(_least(end) if self.may_skip else end, end + 1):
                for layers in itertools.combinations(range(1, end + 1), kept):
                    yield self.canonical(point._replace(layers=layers))

    def layers_run(self, point: Point) -> tuple[int, ...]:
        return tuple(step.layer for step in self.steps(point))

    def _end(self, point: Point) -> int:
        return self.ends[min(point.exit or len(self.ends), len(self.ends)) - 1]

    def steps(self, point: Point) -> tuple[Step, ...]:
        layers = point.layers or range(1, self._end(point) + 1)
        return tuple(Step(layer, point.tokens) for layer in layers)

    # --- running --------------------------------------------------------------------------------------------------

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        asked = [(point, self.steps(point)) for point in self.order(points)]
        return in_steps(asked, lambda: (self.trunk.stem(x), None, None), self._step, self._answer)

    def _step(self, state: State, step: Step, position: int) -> State:
        return walked(self.trunk.blocks[step.layer - 1], state, step.merged, self.prefix)

    def _answer(self, point: Point, state: State) -> Output:
        head = None if point.exit is None else self.heads[point.exit - 1]
        return Output(point, answered(self.trunk, head, state), margin=state[2])

    # --- pieces ---------------------------------------------------------------------------------------------------

    def plain(self, point: Point) -> nn.Module:
        steps = self.steps(point)
        blocks = [self.trunk.blocks[step.layer - 1] for step in steps]
        if point.exit is None and not point.tokens:
            return with_blocks(self.backbone, blocks)
        ends = without_blocks(self.backbone)
        head = None
        if point.exit is not None:
            ends, head = stem_alone(ends, self.input_shape or ()), self.heads[point.exit - 1]
        return copy.deepcopy(Way(ends, blocks, head, point.tokens, self.prefix))

    def stages(self) -> list[Stage]:
        blocks, begin, found = list(self.trunk.blocks), 0, []
        for place, end in enumerate(self.ends, 1):
            point = self.canonical(Point(exit=place))
            parts: list[nn.Module] = [] if begin else [Ends(self.backbone, "stem")]
            found.append(Stage(nn.Sequential(*parts, *blocks[begin:end]), self._head(point), point))
            begin = end
        return found

    def compilable_modules(self) -> list[nn.Module]:
        return []

    def branch(self, point: Point) -> nn.Module | None:
        return None if point.exit is None else self.heads[point.exit - 1]

    def _head(self, point: Point) -> nn.Module:
        return Ends(self.backbone, "head") if point.exit is None else self.heads[point.exit - 1]


class Way(nn.Module):
    """One way through a trunk, as a network of its own."""

    def __init__(
        self, ends: nn.Module, blocks: Sequence[nn.Module], head: nn.Module | None, merged: int, prefix: int
    ) -> None:
        super().__init__()
        self.ends, self.blocks, self.head = ends, nn.ModuleList(blocks), head
        self.merged, self.prefix = merged, prefix

    def forward(self, x: Any) -> Tensor:
        ends = cast(Trunk, self.ends)
        state: State = (ends.stem(x), None, None)
        for block in self.blocks:
            state = walked(block, state, self.merged, self.prefix)
        return answered(ends, self.head, state)


def walked(block: nn.Module, state: State, merged: int, prefix: int) -> State:
    """The state behind a block: tokens; once some were merged, their sizes; and how clear the nearest decision was."""
    tokens, sizes, margin = state
    if not merged:
        return block(tokens), sizes, margin
    if sizes is None:
        sizes = torch.ones_like(tokens[:, :, :1])
    (tokens, sizes), clear = run_block(block, (tokens, sizes), merged, prefix)
    if clear is not None:
        margin = clear if margin is None else torch.minimum(margin, clear)
    return tokens, sizes, margin


def answered(trunk: Trunk, head: nn.Module | None, state: State) -> Tensor:
    """The logits of a state: of an exit's head, or of the trunk's own, which may weigh tokens that were merged."""
    tokens, sizes, _ = state
    if head is None and sizes is not None and hasattr(trunk, "head_of_merged"):
        logits: Tensor = trunk.head_of_merged(tokens, sizes)
    else:
        logits = (trunk.head if head is None else head)(tokens)
    return logits


def _least(end: int) -> int:
    """Of so many layers, how many a point runs at least."""
    return max(1, round(LEAST_DRAWN * end))


def _ends(at: Sequence[str], count: int) -> tuple[int, ...]:
    """How many layers run before each exit."""
    found = []
    for name in at:
        block = re.fullmatch(r"(?:network\.)?blocks\.(\d+)", name)
        if block is None or int(block[1]) >= count - 1:
            known = [f"blocks.{number}" for number in range(count - 1)]
            raise RecipeError(f'there is no "{name}" to put an exit behind.', did_you_mean(name, known))
        found.append(int(block[1]) + 1)
    if found != sorted(set(found)):
        raise RecipeError(f"method.at is {list(at)}: exits must follow one another.", "Give each block once, in order.")
    return tuple(found)


def _tap(backbone: nn.Module, input_shape: Shape) -> Tap:
    """What the branches read: tokens behind a block."""
    shape = tuple(run_stem(backbone, input_shape).shape[1:])
    return find_tokens(getattr(backbone, "network", backbone), "the stem", shape)
