"""A model as graphs with flat inputs and outputs: one for every point, and one for every stage of its chain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from supple.backbones.protocols import Trunk
from supple.inference.engines.torch import answering
from supple.inference.inputs import parts_of
from supple.methods.gates import Gates
from supple.model import FlexibleModel
from supple.point import FULL, Point
from supple.tasks import get_task


@dataclass
class Graph:
    """A module that takes tensors one by one and gives a tuple of them; what it is called, and an example."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]  # of two samples
    point: Point | None = None  # whose logits it gives
    role: str = "point"  # or body, head: of a stage; stem, gate, block, head: see inference/skipping.py
    takes: tuple[str, ...] = ("image",)  # what its inputs are called
    gives: tuple[str, ...] = ("logits",)  # and its outputs


class FlatPoint(nn.Module):
    """A plain network whose input may be several tensors."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *x: Tensor) -> tuple[Tensor]:
        return (self.network(x[0] if len(x) == 1 else x),)


class FlatBody(nn.Module):
    """The body of a stage, whose state, however it nests, is given and taken as a row of tensors."""

    def __init__(self, body: nn.Module, nesting: Any) -> None:
        super().__init__()
        self.body, self.nesting = body, nesting

    def forward(self, *state: Tensor) -> tuple[Tensor, ...]:
        return tuple(_pytree.tree_leaves(self.body(_pytree.tree_unflatten(list(state), self.nesting))))


class FlatHead(nn.Module):
    """What a stage answers, from the state behind its body; of the last stage, its body too."""

    def __init__(self, head: nn.Module, nesting: Any, body: nn.Module | None = None) -> None:
        super().__init__()
        self.head, self.nesting, self.body = head, nesting, body

    def forward(self, *state: Tensor) -> tuple[Tensor]:
        nested = _pytree.tree_unflatten(list(state), self.nesting)
        return (self.head(nested if self.body is None else self.body(nested)),)


@dataclass
class Chain:
    """The graphs of a model's stages, or of its layers, in execution order."""

    stages: list[tuple[Graph | None, Graph | None]]  # body and head of each
    layers: list[Graph]

    @property
    def graphs(self) -> list[Graph]:
        return [graph for stage in self.stages for graph in stage if graph is not None] + self.layers


def graphs_of(model: FlexibleModel, points: Sequence[Point], x: Any) -> list[Graph]:
    """The graphs of these points, each by itself; x: an example of two samples."""
    flat = tuple(_pytree.tree_leaves(x))
    takes, gives = input_names(model), output_names(model)
    return [
        Graph(file_name(point), FlatPoint(model.extract(point).eval()), flat, point, "point", takes, gives)
        for point in points
    ]


def input_names(model: FlexibleModel) -> tuple[str, ...]:
    """What the inputs of exported graphs are called: by what they hold."""
    count = len(parts_of(model.input_shape or ()))
    if count == 1:
        return ("audio",) if model.preprocess is not None and model.preprocess.kind == "sound" else ("image",)
    return ("image", "audio", *(f"input_{place}" for place in range(2, count)))


def output_names(model: FlexibleModel) -> tuple[str, ...]:
    return (get_task(model.task).output,)


@torch.no_grad()
def chain_of(model: FlexibleModel, x: Any, wanted: Sequence[Point]) -> Chain:
    """The graphs of the model's stages up to the last wanted point; none where only one of them answers."""
    stages, points = model.stages(), answering(model)
    while points and points[-1] not in wanted:
        points.pop()
    if sum(point is not None for point in points) < 2:
        return Chain([], [])
    chain: list[tuple[Graph | None, Graph | None]] = []
    state, takes, gives, seen = x, input_names(model), output_names(model), 0
    for place, (stage, point) in enumerate(zip(stages, points), 1):
        flat, nesting = _pytree.tree_flatten(state)
        if place == len(points):
            assert stage.head is not None
            last = FlatHead(stage.head, nesting, stage.body).eval()
            chain.append((None, Graph(f"head-{place}", last, tuple(flat), point, "head", takes, gives)))
            break
        body = Graph(f"body-{place}", FlatBody(stage.body, nesting).eval(), tuple(flat), None, "body", takes)
        state = stage.body(state)
        flat, nesting = _pytree.tree_flatten(state)
        # Along the chain no name comes twice: a graph cannot take and give different tensors under one name.
        body.gives = takes = tuple(f"state_{k}" for k in range(seen, seen + len(flat)))
        seen += len(flat)
        head = None
        if point is not None:
            assert stage.head is not None
            module = FlatHead(stage.head, nesting).eval()
            head = Graph(f"head-{place}", module, tuple(flat), point, "head", takes, gives)
        chain.append((body, head))
    return Chain(chain, [])


def file_name(point: Point) -> str:
    """A point as part of a file's name: exit=2,width=0.5 is exit-2_width-0.5."""
    return str(point).replace("=", "-").replace(",", "_")


@torch.no_grad()
def given_to(chain: Chain, x: Any) -> list[tuple[Tensor, ...]]:
    """What each graph of a chain is given for these inputs when all of it runs."""
    given: list[tuple[Tensor, ...]] = []
    state, scores = tuple(_pytree.tree_leaves(x)), ()
    for body, head in chain.stages:
        if body is not None:
            given.append(state)
            state = body.module(*state)
        if head is not None:
            given.append(state)
    for graph in chain.layers:
        given.append((*state, *scores) if graph.role == "gate" else state)
        outputs = graph.module(*given[-1])
        if graph.role == "gate":
            scores = outputs
        elif graph.role == "stem":
            state, scores = outputs[:1], outputs[1:]
        else:
            state = outputs
    return given


def one_by_one(inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """A batch as samples: what graphs are calibrated with."""
    return [tuple(part[i : i + 1] for part in inputs) for i in range(len(inputs[0]))]


def has_attention(module: nn.Module) -> bool:
    return any(hasattr(part, "attn") or "Attention" in type(part).__name__ for part in module.modules())


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
    before, asked = "state_0", "scores_0"
    graphs = [Graph("stem", stem, (x,), None, "stem", input_names(model), (before, asked))]
    for layer, block in enumerate(trunk.blocks):
        after, given = f"state_{layer + 1}", f"scores_{layer + 1}"
        if layer in gates.gated:
            gate = Gate(gates, layer)
            graphs.append(Graph(f"gate-{layer + 1}", gate, (state, scores), None, "gate", (before, asked), (given,)))
            (scores,), asked = gate(state, scores), given
        graphs.append(Graph(f"block-{layer + 1}", Block(block), (state,), None, "block", (before,), (after,)))
        state, before = block(state), after
    graphs.append(Graph("head", Head(network), (state,), FULL, "head", (before,), output_names(model)))
    for graph in graphs:
        graph.module.eval()
    return graphs
