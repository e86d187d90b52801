"""Engines by name. One runs graphs, of an exported folder or of a run itself, on arrays with the batch first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from supple.errors import RecipeError
from supple.machine import has_bf16
from supple.point import Point
from supple.text import did_you_mean

Array = np.ndarray[Any, Any]
State = tuple[Any, ...]  # arrays; between two graphs, whatever the engine indexes by samples in their place


@dataclass(frozen=True)
class Stage:
    """A piece of a chain: `body` carries the state on, `head` reads the logits of a point from it."""

    body: str | None  # a graph state -> state; None: the head reads the state before it
    head: str | None  # a graph state -> logits; None: nobody answers here
    point: str | None


@dataclass(frozen=True)
class Layer:
    """A graph of a model whose samples skip layers: see skipping.py."""

    role: str  # stem, gate, block or head
    graph: str


@dataclass(frozen=True)
class Graphs:
    """The graphs of a model, by the names that its engine knows them by."""

    points: dict[str, str]  # each point as a graph of its own
    stages: tuple[Stage, ...] = ()  # of a model with exits: run one after the other until an answer is good enough
    layers: tuple[Layer, ...] = ()  # of a model whose samples skip layers

    def names(self) -> list[str]:
        """All graphs, each once."""
        chain = [graph for stage in self.stages for graph in (stage.body, stage.head) if graph is not None]
        return list(dict.fromkeys((*self.points.values(), *chain, *(layer.graph for layer in self.layers))))

    def answering(self) -> list[str]:
        """The points, and those that answer along the chain."""
        return list(dict.fromkeys((*self.points, *(stage.point for stage in self.stages if stage.point))))

    def from_start(self, points: Iterable[str]) -> tuple[Stage, ...]:
        """Those of the points that are here as stages, each of which begins with the input."""
        return tuple(Stage(None, self.points[point], point) for point in points if point in self.points)

    def stages_for(self, points: Sequence[Point]) -> tuple[Stage, ...]:
        """What answers these points one after the other: the chain, if all of them are exits of it; else a cascade, in
        which each runs from the start."""
        answering = {stage.point for stage in self.stages}

        def is_exit(point: Point) -> bool:
            """Also one whose head is left out here."""
            return str(point) in answering or not point.chosen().keys() - {"exit"}

        along = bool(self.stages) and all(map(is_exit, points))
        return self.stages if along else self.from_start(map(str, points))

    def leave_out(self, points: set[str], heads: set[str], layers: bool = False) -> "Graphs":
        """Without some points, some heads of the chain (their stages run on and do not answer), or the layers."""
        kept = [replace(s, head=None, point=None) if s.point in heads and s.body else s for s in self.stages]
        kept = [stage for stage in kept if stage.point not in heads]
        while kept and kept[-1].point is None:
            kept.pop()  # nobody answers behind the last one that does
        points_left = {point: graph for point, graph in self.points.items() if point not in points}
        return Graphs(points_left, tuple(kept), () if layers else self.layers)


class Engine(Protocol):
    """What runs graphs. Calls may come from several threads at once."""

    name: str
    precision: str
    takes_missing: bool  # whether a part of the input may be None: exits that do not need it answer
    lasting: bool  # whether what `run` returns outlasts the next run of its graph

    # Returns when the results are there; they are of the engine's own kind.
    def run(self, graph: str, inputs: State) -> State: ...
    def array(self, value: Any) -> Array: ...  # a result as float32 of numpy, to keep
    def close(self) -> None: ...


PRECISIONS = ("fp32", "bf16", "int8")
MAX_DROP = 0.01  # of its score that a point may lose in bf16 or int8, where nothing else is said

# Where each engine is, the package that it needs, and the kinds of folders (see bundle.KINDS) that it opens.
ENGINES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "torch": ("supple.inference.engines.torch", "torch", ("run",)),
    "onnxruntime": ("supple.inference.engines.onnxruntime", "onnxruntime", ("onnx",)),
    "openvino": ("supple.inference.engines.openvino", "openvino", ("openvino", "onnx")),
}


def take(state: State, rows: Array) -> State:
    """These samples of a state; None, a part that is not there, stays so."""
    return tuple(None if part is None else part[rows] for part in state)


def join(states: Sequence[State]) -> State:
    """Several states as one batch, in this order: the inverse of `take`."""
    if len(states) == 1:
        return states[0]
    return tuple(None if parts[0] is None else _joined(parts) for parts in zip(*states))


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from torch import cat  # they are its tensors

    return cat(tuple(parts))


def available(kind: str) -> list[str]:
    """The engines that are installed and open such a folder."""
    return [name for name, (_, package, kinds) in ENGINES.items() if kind in kinds and find_spec(package)]


def precision_here(stored: str) -> str:
    """The precision that a folder runs in on this processor: the graphs of bf16 are those of fp32, and run in fp32
    where it does not multiply bf16."""
    return "fp32" if stored == "bf16" and not has_bf16() else stored


def must_have_bf16(what: str, device: str = "cpu") -> None:
    """Refuses what needs a processor that multiplies bf16: an emulation is slower than fp32."""
    if not has_bf16(device):
        where = "this processor" if device == "cpu" else device
        raise RecipeError(f"{what}: {where} has no bf16 arithmetic.", "Use fp32 or int8 here.")


def check_device(name: str, device: str) -> None:
    """Refuses a device that an engine does not run on, or that is not here."""
    if device != "cpu":
        import_module(ENGINES[name][0]).check_device(device)


def not_installed(name: str) -> RecipeError:
    extra = "" if name == "torch" else "[export]"
    return RecipeError(f"the engine {name} is not installed.", f"Install it: pip install 'supple{extra}'.")


def open_engine(name: str, source: Any, threads: int, precision: str | None = None, device: str = "cpu") -> Engine:
    """An engine for an exported folder (a Bundle) or a run (a FlexibleModel). precision: None: that of the source.
    threads: of the CPU."""
    if name not in ENGINES:
        raise RecipeError(f'there is no engine "{name}".', did_you_mean(name, ["auto", *ENGINES]))
    module, package, kinds = ENGINES[name]
    kind = getattr(source, "kind", "run")
    if kind not in kinds:
        cure = f"Engines for it: {', '.join(available(kind)) or 'none is installed'}."
        raise RecipeError(f"the engine {name} does not open a folder of kind {kind}.", cure)
    if find_spec(package) is None:
        raise not_installed(name)
    check_device(name, device)
    precision = precision or precision_here(getattr(source, "precision", "fp32"))
    if precision == "bf16":
        must_have_bf16(f"the engine {name} in bf16", device)
    engine: Engine = import_module(module).load(source, threads, precision, device)
    return engine
