"""A model as graphs with flat inputs and outputs: one for every point, and one for every stage of its chain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from supple.model import FlexibleModel
from supple.point import Point
from supple.runtime.torch_engine import answering, is_chain


@dataclass
class Graph:
    """A module that takes tensors one by one and gives a tuple of them; what it is called, and an example."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]  # of two samples
    point: Point | None  # whose logits come last
    role: str = "stage"  # in its chain: stage, or one of runtime/skipping.py


class FlatPoint(nn.Module):
    """A plain network whose input may be several tensors."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *x: Tensor) -> tuple[Tensor]:
        return (self.network(x[0] if len(x) == 1 else x),)


class FlatStage(nn.Module):
    """A stage whose state, however it nests, is given and taken as a row of tensors."""

    def __init__(self, stage: nn.Module, nesting: Any) -> None:
        super().__init__()
        self.stage, self.nesting = stage, nesting

    def forward(self, *state: Tensor) -> tuple[Tensor, ...]:
        after, logits = self.stage(_pytree.tree_unflatten(list(state), self.nesting))
        flat = _pytree.tree_leaves(after)
        return (*flat, logits) if logits is not None else tuple(flat)


def graphs_of(model: FlexibleModel, points: Sequence[Point], x: Any) -> list[Graph]:
    """The graphs of these points, each by itself; x: an example of two samples."""
    flat = tuple(_pytree.tree_leaves(x))
    return [Graph(file_name(point), FlatPoint(model.extract(point).eval()), flat, point) for point in points]


@torch.no_grad()
def chain_of(model: FlexibleModel, x: Any, wanted: Sequence[Point]) -> list[Graph]:
    """The graphs of the model's stages up to the last wanted point; none where only one of them answers."""
    stages, points = model.stages(), answering(model)
    while points and points[-1] not in wanted:
        points.pop()
    if not is_chain(points):
        return []
    chain, state = [], x
    for place, (stage, point) in enumerate(zip(stages, points), 1):
        flat, nesting = _pytree.tree_flatten(state)
        chain.append(Graph(f"stage-{place}", FlatStage(stage, nesting).eval(), tuple(flat), point))
        state, _ = stage(state)
    return chain


def file_name(point: Point) -> str:
    """A point as part of a file's name: exit=2,width=0.5 is exit-2_width-0.5."""
    return str(point).replace("=", "-").replace(",", "_")


@torch.no_grad()
def given_to(chain: Sequence[Graph], x: Any) -> list[tuple[Tensor, ...]]:
    """What each graph of a chain is given for these inputs when all of it runs."""
    state, scores, given = tuple(_pytree.tree_leaves(x)), (), []
    for graph in chain:
        inputs = (*state, *scores) if graph.role == "gate" else state
        given.append(inputs)
        outputs = graph.module(*inputs)
        if graph.role == "gate":
            scores = outputs
        elif graph.role == "stem":
            state, scores = outputs[:1], outputs[1:]
        else:
            state = outputs if graph.point is None else outputs[:-1]
    return given


def one_by_one(inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """A batch as samples: what graphs are calibrated with."""
    return [tuple(part[i : i + 1] for part in inputs) for i in range(len(inputs[0]))]


def has_attention(module: nn.Module) -> bool:
    return any(hasattr(part, "attn") or "Attention" in type(part).__name__ for part in module.modules())
