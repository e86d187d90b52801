"""PyTorch itself: a run's points as plain modules made for inference, its chain as the model's own stages."""

import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from supple.model import FlexibleModel
from supple.point import Point
from supple.runtime.engine import Array, State


class TorchEngine:
    name, precision = "torch", "fp32"

    def __init__(self, model: FlexibleModel, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = model.eval()
        self._stages = model.stages()
        self._points: dict[str, nn.Module] = {}
        self._specs: dict[int, Any] = {}  # how the state after stage k nests
        self._lock = threading.Lock()

    @torch.inference_mode()
    def run_point(self, point: str, x: State) -> Array:
        module = self._points.get(point) or self._extract(point)
        logits: Tensor = module(_nested(x))
        return logits.numpy()

    @torch.inference_mode()
    def run_stage(self, k: int, state: State) -> tuple[State, Array | None]:
        tensors = [torch.from_numpy(part) for part in state]
        given = _pytree.tree_unflatten(tensors, self._specs[k]) if k else _nested(state)
        after, logits = self._stages[k](given)
        flat, self._specs[k + 1] = _pytree.tree_flatten(after)
        return tuple(part.numpy() for part in flat), None if logits is None else logits.numpy()

    def close(self) -> None:
        self._points.clear()

    def _extract(self, point: str) -> nn.Module:
        with self._lock:
            if point not in self._points:
                self._points[point] = self.model.extract(Point.parse(point), deploy=True).eval()
            return self._points[point]


def _nested(x: State) -> Any:
    tensors = tuple(torch.from_numpy(part) for part in x)
    return tensors[0] if len(tensors) == 1 else tensors


def answering(model: FlexibleModel) -> list[Point | None]:
    """Which point each stage of a model answers, if any."""
    return [stage.point for stage in model.stages()]


def is_chain(answers: list[Point | None]) -> bool:
    """Whether stopping between stages can give an answer."""
    return len([point for point in answers if point is not None]) > 1


def load(model: FlexibleModel, threads: int) -> TorchEngine:
    return TorchEngine(model, threads)
