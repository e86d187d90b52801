"""PyTorch itself: a run's points as plain modules made for inference, its chain as the model's own stages.

In bf16 it holds a copy of the weights in bf16: autocast would cast them at every call.
"""

import copy
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from supple.methods.gates import Gates
from supple.model import FlexibleModel
from supple.point import FULL, Point
from supple.runtime.engine import Array, State


class TorchEngine:
    name = "torch"

    def __init__(self, model: FlexibleModel, threads: int, precision: str) -> None:
        torch.set_num_threads(threads)
        self.model, self.precision = model.eval(), precision
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._stages = self._cast(model).stages()
        self._points: dict[str, nn.Module] = {}
        self._specs: dict[int, Any] = {}  # how the state after stage k nests
        self._lock = threading.Lock()

    @torch.inference_mode()
    def run_point(self, point: str, x: State) -> Array:
        module = self._points.get(point) or self._extract(point)
        return _array(module(self._input(x)))

    @torch.inference_mode()
    def run_stage(self, k: int, state: State) -> tuple[State, Array | None]:
        """Between the stages the state stays as tensors: numpy has no bf16."""
        given = _pytree.tree_unflatten(list(state), self._specs[k]) if k else self._input(state)
        after, logits = self._stages[k](given)
        flat, self._specs[k + 1] = _pytree.tree_flatten(after)
        return tuple(flat), None if logits is None else _array(logits)

    def close(self) -> None:
        self._points.clear()

    def _input(self, x: State) -> Any:
        tensors = tuple(torch.from_numpy(part).to(self._dtype) for part in x)
        return tensors[0] if len(tensors) == 1 else tensors

    def _extract(self, point: str) -> nn.Module:
        with self._lock:
            if point not in self._points:
                self._points[point] = self._cast(self.model.extract(Point.parse(point), deploy=True).eval())
            return self._points[point]

    def _cast(self, module: Any) -> Any:
        return in_bf16(module) if self.precision == "bf16" else module


def in_bf16(module: nn.Module) -> nn.Module:
    """A copy with weights of bf16, save those of gates: a score near its threshold must not shift."""
    made = copy.deepcopy(module)
    exact = {id(part) for gates in made.modules() if isinstance(gates, Gates) for part in gates.oracles.parameters()}
    for part in (*made.parameters(), *made.buffers()):
        if part.is_floating_point() and id(part) not in exact:
            part.data = part.data.bfloat16()
    return made


def _array(logits: Tensor) -> Array:
    return logits.float().numpy()


def answering(model: FlexibleModel) -> list[Point | None]:
    """Which point each stage of a model answers; the last one is the full model."""
    stages = model.stages()
    heads = [getattr(stage, "head", None) is not None for stage in stages]
    exits = iter(point for point in model.points if point != FULL)
    return [
        FULL if place == len(stages) - 1 else next(exits, None) if there else None for place, there in enumerate(heads)
    ]


def is_chain(answers: list[Point | None]) -> bool:
    """Whether stopping between stages can give an answer."""
    return len([point for point in answers if point is not None]) > 1


def load(model: FlexibleModel, threads: int, precision: str) -> TorchEngine:
    return TorchEngine(model, threads, precision)
