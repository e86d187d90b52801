"""Weighted dense connections: each layer reads a weighted mean of all earlier activations (WDC and WSDC).

Dynamic Transformer paper, section 2.1. Without dropout on the weights it is WDC, with it WSDC.
"""

import copy
from collections.abc import Iterable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.backbones.protocols import Trunk
from supple.methods._trunk import check_range, check_read, read_token, trunk_of
from supple.model import FlexibleModel, Output, Outputs
from supple.point import FULL, AnyPoint, Point

Read = Literal["class", "mean"]


class Dense(FlexibleModel):
    """One point, the full model, whose layers choose what they read. `Output.aux["weights"]` says what they chose.

    Departures: eqs. (1)-(3) are circular as printed (the weights of a layer's input would need that input), so the
    oracle of layer j reads the class token of the activation before it, as the text says; the first layer has nothing
    to choose, so it has no oracle.
    """

    backbone: nn.Module
    points = (FULL,)

    def __init__(
        self,
        backbone: nn.Module,
        *,
        dropout: float = 0.25,  # on the weights of the last layer, rising quadratically from 0: WSDC; 0: WDC
        read: Read = "class",  # what an oracle reads: the class token, or the mean of all tokens
    ) -> None:
        super().__init__()
        trunk = trunk_of(backbone, "dense")
        check_read(trunk, read, "dense")
        check_range("dropout", dropout, 0, 1)
        self.backbone = backbone
        self.mixers = mixers(trunk, dropout, read)

    @property
    def trunk(self) -> Trunk:
        return trunk_of(self.backbone, "dense")

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        for point in self.order(points):
            logits, weights = mixed(self.trunk, self.mixers, x)
            yield Output(point, logits, {"weights": weights})

    def plain(self, point: Point) -> nn.Module:
        return copy.deepcopy(Mixed(self.backbone, self.mixers))


class Mixed(nn.Module):
    """A network whose layers read weighted means, as an ordinary module."""

    def __init__(self, backbone: nn.Module, mixers: nn.ModuleList) -> None:
        super().__init__()
        self.backbone, self.mixers = backbone, mixers

    def forward(self, x: Tensor) -> Tensor:
        return mixed(cast(Trunk, self.backbone), self.mixers, x)[0]


class Mixer(nn.Module):
    """The oracle of one layer, and the mean that it asks for: eqs. (1) to (3)."""

    def __init__(self, width: int, earlier: int, dropout: float, read: Read) -> None:
        super().__init__()
        self.oracle = nn.Linear(width, earlier)
        self.dropout, self.read = dropout, read

    def forward(self, activations: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The layer's input (batch, tokens, width), and the weights before dropout (batch, earlier)."""
        weights = self.oracle(read_token(activations[-1], self.read)).softmax(-1)
        kept = F.dropout(weights, self.dropout, self.training)
        stack = torch.stack(activations, 1)
        return torch.bmm(kept[:, None], stack.flatten(2)).view_as(activations[0]), weights


def mixers(trunk: Trunk, dropout: float, read: Read) -> nn.ModuleList:
    """One for each layer but the first; layer j of L drops weights at the rate dropout * ((j - 1) / (L - 1)) ** 2."""
    last = max(1, len(trunk.blocks) - 1)
    rates = [dropout * (layer / last) ** 2 for layer in range(len(trunk.blocks))]
    return nn.ModuleList(Mixer(trunk.width, layer + 1, rates[layer], read) for layer in range(1, len(rates)))


def mixed(trunk: Trunk, mixers: nn.ModuleList, x: Any) -> tuple[Tensor, Tensor]:
    """Logits, and the weights (batch, layers, activations), 0 where an activation does not exist yet."""
    state = trunk.stem(x)
    activations, chosen = [state], [state.new_ones(state.shape[0], 1)]
    for layer, block in enumerate(trunk.blocks):
        if layer:
            state, weights = mixers[layer - 1](activations)
            chosen.append(weights)
        state = block(state)
        activations.append(state)
    padded = [F.pad(weights, (0, len(chosen) - weights.shape[1])) for weights in chosen]
    return trunk.head(state), torch.stack(padded, 1)
