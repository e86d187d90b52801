"""PyTorch itself: a run's points as plain modules made for inference, its chain as the model's own stages.

In bf16 it holds a copy of the weights in bf16: autocast would cast them at every call.
"""

import copy
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree

from supple.device import must_be_here, synchronise
from supple.inference.engines import Array, Graphs, Stage, State
from supple.model import FlexibleModel
from supple.point import Point
from supple.surgery.deploy import fold_norms, prepare
from supple.tasks import get_task


class TorchEngine:
    name = "torch"
    takes_missing = True
    lasting = True

    def __init__(self, model: FlexibleModel, threads: int, precision: str, device: str = "cpu") -> None:
        torch.set_num_threads(threads)
        self.model, self.precision, self.device = model.eval(), precision, device
        self.graphs = graphs_of(model)
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        folded = fold_norms(copy.deepcopy(model)) if self.graphs.stages else model
        self._stages = self._cast(folded).to(device).stages() if self.graphs.stages else []
        self._points: dict[str, nn.Module] = {}
        self._specs: dict[int, Any] = {}  # how the state before stage k nests
        self._lock = threading.Lock()

    def run(self, graph: str, inputs: State) -> State:
        """Between the stages the state stays as tensors, on the device: numpy has no bf16."""
        found = self._run(graph, inputs)
        synchronise(self.device)  # whoever looks at the clock now sees when it was done, not when it was asked for
        return found

    @torch.inference_mode()
    def _run(self, graph: str, inputs: State) -> State:
        kind, _, number = graph.rpartition("-")
        if kind not in ("body", "head"):
            return self._run_point(graph, inputs)
        stage = self._stages[int(number) - 1]
        last = int(number) == len(self._stages)
        if kind == "body" or last:  # the last stage is one graph
            given = self._nested(int(number) - 1, inputs)
            after, logits = stage(given, read=last) if last else (stage.body(given), None)
            if last:
                return (logits,)
            flat, self._specs[int(number)] = _pytree.tree_flatten(after)
            return tuple(flat)
        return (stage.head(self._nested(int(number), inputs)),)

    def array(self, value: Any) -> Array:
        found: Array = value.float().cpu().numpy()
        return found

    def close(self) -> None:
        self._points.clear()

    def _run_point(self, point: str, inputs: State) -> State:
        module = self._points.get(point) or self._extract(point)
        found = module(self._nested(0, inputs))
        return (found["logits"], found.get("aux", {})) if isinstance(found, Mapping) else (found,)

    def _nested(self, place: int, state: State) -> Any:
        """The state before a stage as the stage takes it; before the first, the input."""
        if place:
            return _pytree.tree_unflatten(list(state), self._specs[place])
        tensors = tuple(self._tensor(part) for part in state)
        return tensors[0] if len(tensors) == 1 else tensors

    def _tensor(self, part: Any) -> Any:
        return torch.from_numpy(part).to(self.device, self._dtype) if isinstance(part, np.ndarray) else part

    def _extract(self, point: str) -> nn.Module:
        with self._lock:
            if point not in self._points:
                exportable = get_task(self.model.task).exportable  # others are as they are: their shapes vary
                module = self.model.extract(Point.parse(point)).eval().to(self.device)
                self._points[point] = self._cast(prepare(module, self.model.input_shape) if exportable else module)
            return self._points[point]

    def _cast(self, module: Any) -> Any:
        return in_bf16(module) if self.precision == "bf16" else module


def graphs_of(model: FlexibleModel, points: Iterable[Point] = ()) -> Graphs:
    """The points of a model, and further ones; and its stages where more than one of them answers."""
    names = [str(point) for point in model.order((*model.offered, *points))]
    graphs = dict(zip(names, names))
    answers = answering(model)
    if sum(point is not None for point in answers) < 2:
        return Graphs(graphs)
    stages = [
        Stage(f"body-{k}", None if point is None else f"head-{k}", None if point is None else str(point))
        for k, point in enumerate(answers[:-1], 1)
    ]
    last = Stage(None, f"head-{len(answers)}", str(answers[-1]))
    return Graphs(graphs, (*stages, last))


def in_bf16(module: nn.Module) -> nn.Module:
    """A copy with weights of bf16, save those that a part of it declares as `exact_parameters`."""
    made = copy.deepcopy(module)
    careful: list[Any] = [part for part in made.modules() if hasattr(part, "exact_parameters")]
    exact = {id(parameter) for part in careful for parameter in part.exact_parameters()}
    for part in (*made.parameters(), *made.buffers()):
        if part.is_floating_point() and id(part) not in exact:
            part.data = part.data.bfloat16()
    return made


def answering(model: FlexibleModel) -> list[Point | None]:
    """Which point each stage of a model answers, if any."""
    return [stage.point for stage in model.stages()]


def check_device(device: str) -> None:
    must_be_here(device)


def load(model: FlexibleModel, threads: int, precision: str, device: str) -> TorchEngine:
    return TorchEngine(model, threads, precision, device)
