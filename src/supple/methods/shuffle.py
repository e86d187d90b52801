"""LayerShuffle: a transformer whose layers may be left out and run in any order (LayerShuffle paper, section 3).

Train it with `train.sample: arbitrary`: every batch meets the layers in another random order. `layerdrop` leaves each
layer out at random instead (Fan et al. 2019), `full` is the plain baseline.
"""

import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.backbones.protocols import Trunk
from supple.errors import PointError
from supple.methods._trunk import Ends, blocks_path, check_range, in_steps, trunk_of, with_blocks
from supple.model import FlexibleModel, Output, Outputs, Stage, State
from supple.point import FULL, AnyPoint, Group, Point

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


Variant = Literal["plain", "position", "predict"]
Table = Literal["shared", "per_layer"]


class Shuffle(FlexibleModel):
    """Points `layers=...` for any of the layers, each at most once, in any order.

    `position` tells each layer where it stands (eq. of section 3.2); `predict` asks each layer's output where that was
    (section 3.3), which only training needs. Departures from the paper's text: one table of position embeddings is
    shared by default, as in the authors' code, and begins at zero; the position of a layer in a shortened model is its
    place among those that run; the loss of `predict` is a mean over layers, not a sum.
    """

    backbone: nn.Module
    sampled = ("arbitrary", "layerdrop")

    def __init__(
        self,
        backbone: nn.Module,
        *,
        variant: Variant = "plain",  # plain; position: layers are told where they stand; predict: they have to say it
        table: Table = "shared",  # position: one table of embeddings for all layers, or one each
        embedding: int = 32,  # position: width of an embedding
        dropout: float = 0.0,  # position: after the projection
        weight: float = 1.0,  # predict: of its loss
        drop: float = 0.2,  # chance of a layer to be left out when train.sample is layerdrop
    ) -> None:
        super().__init__()
        trunk = trunk_of(backbone, "shuffle")
        check_range("drop", drop, 0, 1)
        check_range("dropout", dropout, 0, 1)
        check_range("embedding", embedding, 1)
        check_range("weight", weight, 0)
        self.backbone = backbone
        self.count = count = len(trunk.blocks)
        self.variant, self.weight = variant, weight
        self.points = (*(Point(layers=first(kept)) for kept in quarters(count)[:-1]), FULL)
        self.groups = {group.name: group for group in groups_of(count, drop)}
        if variant == "position":
            shared = table == "shared"
            self.table = nn.Parameter(torch.zeros(count, embedding)) if shared else None
            own = 0 if shared else count
            self.positions = nn.ModuleList(Position(trunk.width, own, embedding, dropout) for _ in range(count))
        if variant == "predict":
            self.predictors = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(trunk.width), nn.Linear(trunk.width, count)) for _ in range(count)
            )

    @property
    def trunk(self) -> Trunk:
        return trunk_of(self.backbone, "shuffle")

    def layer(self, state: Tensor, layer: int, position: int) -> Tensor:
        """Runs a layer in a position; both count from 0."""
        if self.variant == "position":
            state = self.positions[layer](state, self.table, position)
        result: Tensor = self.trunk.blocks[layer](state)
        return result

    # --- points ---------------------------------------------------------------------------------------------------

    def canonical(self, point: Point) -> Point:
        if point.layers == tuple(range(1, self.count + 1)):
            return point._replace(layers=None)
        return point

    def validate(self, point: Point) -> None:
        layers = point.layers or ()
        cure = "Name some of the layers in any order, such as layers=2-1-3, or full."
        if any(layer > self.count for layer in layers):
            raise PointError(f"this model cannot run {point!r}: it has layers from 1 to {self.count}.", cure)
        if len(set(layers)) < len(layers):
            raise PointError(f"this model cannot run {point!r}: a layer may run only once.", cure)

    def rank(self, point: Point) -> float:
        return len(self.sequence(point))

    def sequence(self, point: Point) -> Layers:
        return point.layers or tuple(range(1, self.count + 1))

    def order(self, points: Iterable[AnyPoint]) -> list[Point]:
        """Short ones first."""
        return sorted(super().order(points), key=lambda point: (len(self.sequence(point)), self.sequence(point)))

    # --- running --------------------------------------------------------------------------------------------------

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        """Points that begin with the same layers share what those compute."""
        return self._run(x, points, guess=self.variant == "predict")

    def forward(self, x: Any, point: Any = FULL) -> Any:
        """As inherited, but without guesses where only logits are asked for: they are not part of an answer's cost."""
        if isinstance(point, (Point, str)):
            return next(self._run(x, (point,), guess=False)).logits
        return super().forward(x, point)

    def _run(self, x: Any, points: Iterable[AnyPoint], guess: bool) -> Outputs:
        def step(state: State, layer: int, position: int) -> State:
            tokens, guesses = state
            tokens = self.layer(tokens, layer - 1, position)
            return tokens, (*guesses, self.predictors[layer - 1](tokens.mean(1))) if guess else ()

        def answer(point: Point, state: State) -> Output:
            tokens, guesses = state
            aux = {"position": torch.stack(guesses, 1)} if guesses else {}
            return Output(point, self.trunk.head(tokens), aux)

        asked = [(point, self.sequence(point)) for point in self.order(points)]
        return in_steps(asked, lambda: (self.trunk.stem(x), ()), step, answer)

    def penalty(self, outputs: Sequence[Output]) -> Tensor:
        """`predict`: how badly the layers say where they stood, mean over layers and outputs."""
        losses = [position_loss(output.aux["position"]) for output in outputs if "position" in output.aux]
        return self.weight * torch.stack(losses).mean() if losses else super().penalty(outputs)

    def auxiliary_parameters(self) -> Iterable[nn.Parameter]:
        return self.predictors.parameters() if self.variant == "predict" else ()

    # --- pieces ---------------------------------------------------------------------------------------------------

    def plain(self, point: Point) -> nn.Module:
        return with_blocks(self.backbone, [self._piece(layer - 1, k) for k, layer in enumerate(self.sequence(point))])

    def stages(self) -> list[Stage]:
        *bodies, last = (self._piece(layer, layer) for layer in range(self.count))
        ends = Stage(last, Ends(self.backbone, "head"), FULL)
        return [Stage(Ends(self.backbone, "stem")), *map(Stage, bodies), ends]

    def mergeable(self) -> tuple[str, ...]:
        own = [name for name in ("positions", "predictors") if hasattr(self, name)]
        return (blocks_path(self, self.trunk), *own)

    def _piece(self, layer: int, position: int) -> nn.Module:
        block: nn.Module = self.trunk.blocks[layer]
        if self.variant != "position":
            return block
        return At(self.positions[layer], self.table, position, block)  # type: ignore[arg-type]


class Position(nn.Module):
    """Tells a layer its position: z + Dropout(GELU(LN(concat(z, e)) W)), where e is the position's row of a table.

    A table of its own has `own` rows; 0: the layers share one, which is given.
    """

    def __init__(self, width: int, own: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(own, embedding)) if own else None
        self.norm = nn.LayerNorm(width + embedding)
        self.project = nn.Linear(width + embedding, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor, shared: Tensor | None, position: int) -> Tensor:
        table = shared if self.table is None else self.table  # (positions, embedding)
        assert table is not None
        where = table[position].expand(*state.shape[:2], -1)
        result: Tensor = state + self.dropout(F.gelu(self.project(self.norm(torch.cat([state, where], 2)))))
        return result


class At(nn.Module):
    """A layer that stands in one position for good: of a table for all, one row is left."""

    def __init__(self, encode: Position, shared: Tensor | None, position: int, block: nn.Module) -> None:
        super().__init__()
        self.encode, self.block = encode, block
        self.row = None if shared is None else nn.Parameter(shared.detach()[position : position + 1])
        self.position = position if shared is None else 0

    def forward(self, state: Tensor) -> Tensor:
        result: Tensor = self.block(self.encode(state, self.row, self.position))
        return result


def position_loss(guesses: Tensor) -> Tensor:
    """Cross-entropy of (batch, positions, layers) guesses: what stands k-th should say k."""
    batch, positions, _ = guesses.shape
    target = torch.arange(positions, device=guesses.device).expand(batch, -1)
    return F.cross_entropy(guesses.flatten(0, 1), target.flatten())
