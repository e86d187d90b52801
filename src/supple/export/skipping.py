"""The graphs of a model whose samples skip layers: stem, gates, blocks and head apart. See runtime/skipping.py."""

from typing import cast

import torch
from torch import Tensor, nn

from supple.backbones.protocols import Trunk
from supple.export.graphs import Graph
from supple.methods.gates import Gates
from supple.model import FlexibleModel
from supple.point import FULL


class Stem(nn.Module):
    """Tokens, and the first score: everybody runs the first layer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state = cast(Trunk, self.network).stem(x)
        return state, state.new_ones(state.shape[0], 1)


class Gate(nn.Module):
    """The scores so far, with that of one layer behind."""

    def __init__(self, gates: Gates, layer: int) -> None:
        super().__init__()
        self.gates, self.layer = gates, layer

    def forward(self, state: Tensor, scores: Tensor) -> tuple[Tensor]:
        score = self.gates.ask(self.layer, state, list(scores.unbind(1))).sigmoid()
        return (torch.cat([scores, score[:, None]], 1),)


class Block(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, state: Tensor) -> tuple[Tensor]:
        return (self.block(state),)


class Head(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, state: Tensor) -> tuple[Tensor]:
        return (cast(Trunk, self.network).head(state),)


@torch.no_grad()
def skip_graphs(model: FlexibleModel, x: Tensor) -> list[Graph]:
    """In execution order, each with its role; none for other models, and none where layers read all earlier ones."""
    trunk, gates, network = model.trunk, model.layer_gates(), model.backbone
    if trunk is None or gates is None or network is None:
        return []
    stem = Stem(network)
    state, scores = stem(x)
    graphs = [Graph("stem", stem, (x,), role="stem")]
    for layer, block in enumerate(trunk.blocks):
        if layer in gates.gated:
            gate = Gate(gates, layer)
            graphs.append(Graph(f"gate-{layer + 1}", gate, (state, scores), role="gate"))
            (scores,) = gate(state, scores)
        graphs.append(Graph(f"block-{layer + 1}", Block(block), (state,), role="block"))
        state = block(state)
    graphs.append(Graph("head", Head(network), (state,), FULL, "head"))
    for graph in graphs:
        graph.module.eval()
    return graphs
