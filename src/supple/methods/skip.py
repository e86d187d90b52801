"""The Dynamic Transformer: each sample skips the layers that its own scores advise against (DT, section 2.2).

A layer's score is a sigmoid of the class token before it and of the scores so far; a sample runs the layer where its
score reaches the threshold of the point. See gates.py.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from supple.backbones.protocols import Trunk
from supple.cost import count_macs, on_meta
from supple.errors import RecipeError
from supple.methods._trunk import check_range, check_read, in_turn, trunk_of
from supple.methods.dense import Read
from supple.methods.gates import Gates, Inputs, Oracle, blend, regroup, straight_through
from supple.model import Batches, FlexibleModel, Output, Outputs
from supple.point import FULL, AnyPoint, Point

Gate = Literal["paper", "straight"]

PAPER = 0.5  # the threshold that the paper trains and runs with
SHARES = (0.25, 0.4, 0.5, 0.75)  # of the layers that run: the points that `settle` adds
SETTLED_ON = 1000  # samples
HALVINGS = 18  # of 0..1, to find a threshold: scores crowd round 0.5


class Skip(FlexibleModel):
    """Points `skip=t`: a sample skips a layer whose score is below t; `full` (t = 0) is the network as it was.

    Train with `train.sample: smallest`, which is `skip=0.5`. Under the paper's gate the task loss never reaches an
    oracle: eq. (13) alone trains them, and as it squares the logit, scores gather round 0.5. Beyond the paper:
    `gate: straight` runs every layer in training and blends by the score, so that the task loss decides too; `target`
    puts the squared distance of the mean score from a rate in the place of eq. (13); `oracle: shared` is one oracle of
    constant size, told the mean score so far and the depth; `inputs: dense` lets layers read weighted means (WSDC).
    """

    backbone: nn.Module
    settles_on = "validation"

    def __init__(
        self,
        backbone: nn.Module,
        *,
        input_shape: tuple[int, ...],  # of one image
        gate: Gate = "paper",  # how a decision is trained: see above
        target: float | None = None,  # mean score to be drawn to; None: eq. (13)
        weight: float = 1.0,  # of the penalty
        oracle: Oracle = "own",  # one for each layer, or one for all
        inputs: Inputs = "chain",  # what a layer reads: the activation before it, or a weighted mean of all
        dropout: float = 0.25,  # dense: on these weights, as in method dense
        read: Read = "class",  # what an oracle reads: the class token, or the mean of all tokens
        last_always_on: bool = True,  # the last layer is never skipped (the text); false: eq. (15) counts its oracle
    ) -> None:
        super().__init__()
        trunk = trunk_of(backbone, "skip")
        check_read(trunk, read, "skip")
        if target is not None and not 0 < target < 1:
            raise RecipeError(f"method.target is {target}.", "Give a rate between 0 and 1, or null for eq. (13).")
        check_range("dropout", dropout, 0, 1)
        check_range("weight", weight, 0)
        self.backbone = backbone
        self.gates = Gates(trunk, oracle, inputs, dropout, read, last_always_on)
        if not self.gates.gated:
            raise RecipeError(f"a network of {len(trunk.blocks)} layers has none to skip.", "Use a deeper one.")
        self.gate, self.target, self.weight = gate, target, weight
        self.points = (Point(skip=PAPER), FULL)
        self.prices = self._count(input_shape)

    @property
    def trunk(self) -> Trunk:
        return trunk_of(self.backbone, "skip")

    # --- points ---------------------------------------------------------------------------------------------------

    def canonical(self, point: Point) -> Point:
        return point._replace(skip=None) if point.skip == 0 else point

    def validate(self, point: Point) -> None:
        """Any threshold will do."""

    def rank(self, point: Point) -> float:
        return -(point.skip or 0.0)  # the higher the threshold, the fewer layers run

    def add_points(self, points: Iterable[AnyPoint]) -> None:
        more = {self.check(point) for point in points} - {*self.points}
        self.settled = tuple(sorted({*self.settled, *more}, key=self.rank))

    @torch.no_grad()
    def settle(self, loader: Batches, points: Iterable[AnyPoint] = ()) -> None:
        """Adds the thresholds at which about a quarter, 40 %, half and three quarters of the layers run, save those
        shares that the layers which always run exceed.
        """
        self.add_points(points)
        images: list[Tensor] = []
        for x, _ in loader:
            images.append(x)
            if sum(map(len, images)) >= SETTLED_ON:
                break
        if not images:
            return
        was_training = self.training
        self.eval()
        try:
            some = torch.cat(images)[:SETTLED_ON]
            least = 1 - len(self.gates.gated) / len(self.trunk.blocks)
            self.add_points(Point(skip=self._threshold(some, share)) for share in SHARES if share >= least - 1e-9)
        finally:
            self.train(was_training)

    def _threshold(self, x: Tensor, share: float) -> float:
        """Found by halving, not from the quantiles of the scores: who skips a layer has other scores later."""
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            ran = self.gates.follow(self.trunk, x, middle, regroup).ran
            low, high = (middle, high) if float(ran.double().mean()) > share else (low, middle)
        return float(f"{(low + high) / 2:.7g}")

    # --- running --------------------------------------------------------------------------------------------------

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        yield from in_turn(self.order(points), x, self._answer)

    def _answer(self, x: Any, point: Point) -> Output:
        obey = straight_through if self.training and self.gate == "straight" else regroup
        way = self.gates.follow(self.trunk, x, point.skip, obey)
        aux = {} if point.skip is None else {"gates": way.logits, "ran": way.ran}
        margin = None if point.skip is None else way.margin(point.skip)
        return Output(point, self.trunk.head(way.state), aux, self._spent(way.ran, point), margin)

    def penalty(self, outputs: Sequence[Output]) -> Tensor:
        """Eq. (13), over the gated layers; or the squared distance of the mean score from the target."""
        found = [output.aux["gates"] for output in outputs if "gates" in output.aux]
        if not found:
            return super().penalty(outputs)
        logits = torch.cat(found)
        if self.target is None:
            return self.weight * logits.square().mean()
        return self.weight * (logits.sigmoid().mean() - self.target).square()

    # --- cost -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _count(self, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
        """MACs of everything but the layers, of one layer, and of all oracles; counted, as all costs are."""
        bare = on_meta(self)
        x = torch.empty((1, *input_shape), device="meta")
        state = bare.trunk.stem(x)
        layer = count_macs(lambda: bare.trunk.blocks[0](state))
        full = count_macs(lambda: bare.gates.follow(bare.trunk, x, None, regroup))
        head = count_macs(lambda: bare.trunk.head(state))
        gated = count_macs(lambda: bare.gates.follow(bare.trunk, x, PAPER, regroup))
        return full + head - layer * len(bare.trunk.blocks), layer, gated - full

    def _spent(self, ran: Tensor, point: Point) -> Tensor:
        """MACs of each sample."""
        rest, layer, oracles = self.prices
        return ran.sum(1) * layer + rest + (0 if point.skip is None else oracles)

    # --- pieces ---------------------------------------------------------------------------------------------------

    def layer_gates(self) -> Gates | None:
        return self.gates if self.gates.mixers is None else None  # mixers read all earlier layers

    def plain(self, point: Point) -> nn.Module:
        """All layers run, and the scores choose between the results: the same answers without branches."""
        if point == FULL and self.gates.mixers is None:
            return copy.deepcopy(self.backbone)
        return copy.deepcopy(Gated(self.backbone, self.gates, point.skip))


class Gated(nn.Module):
    """A network with its gates as an ordinary module of one threshold."""

    def __init__(self, backbone: nn.Module, gates: Gates, threshold: float | None) -> None:
        super().__init__()
        self.backbone, self.gates, self.threshold = backbone, gates, threshold

    def forward(self, x: Tensor) -> Tensor:
        trunk = cast(Trunk, self.backbone)
        return trunk.head(self.gates.follow(trunk, x, self.threshold, blend).state)
