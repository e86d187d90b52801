"""Engines by name. One runs the graphs of an exported folder, or a run itself, on numpy arrays."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from supple.errors import RecipeError
from supple.machine import has_bf16
from supple.text import did_you_mean

Array = np.ndarray[Any, Any]
State = tuple[Any, ...]  # arrays; between the stages of a chain, whatever the engine indexes by samples in their place


class Engine(Protocol):
    """What runs graphs. Calls may come from several threads at once."""

    name: str
    precision: str

    def run_point(self, point: str, x: State) -> Array: ...  # the logits of a point as a graph of its own
    def run_stage(self, k: int, state: State) -> tuple[State, Array | None]: ...  # stage k of the chain, from 0
    def close(self) -> None: ...


PRECISIONS = ("fp32", "bf16", "int8")
MOST_LOST = 0.01  # of its score that a point may lose in bf16 or int8, where nothing else is said

# Where each engine is, the package that it needs, and the kinds of folders (see bundle.KINDS) that it opens.
ENGINES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "torch": ("supple.runtime.torch_engine", "torch", ("run",)),
    "onnxruntime": ("supple.runtime.onnx_engine", "onnxruntime", ("onnx",)),
    "openvino": ("supple.runtime.openvino_engine", "openvino", ("openvino", "onnx")),
}


def input_name(place: int) -> str:
    """What the inputs of exported graphs are called; a runtime may drop those that a graph does not use."""
    return f"input_{place}"


def place_of(name: str) -> int:
    """The inverse of `input_name`."""
    return int(name.rpartition("_")[2])


def parted(outputs: Sequence[Array], answers: bool) -> tuple[State, Array | None]:
    """What a stage gave: the next state and, where a point answers there, its logits, which come last."""
    return (tuple(outputs[:-1]), outputs[-1]) if answers else (tuple(outputs), None)


def available(kind: str) -> list[str]:
    """The engines that are installed and open such a folder."""
    return [name for name, (_, package, kinds) in ENGINES.items() if kind in kinds and find_spec(package)]


def precision_here(stored: str) -> str:
    """The precision that a folder runs in on this processor: the graphs of bf16 are those of fp32, and run in fp32
    where it does not multiply bf16."""
    return "fp32" if stored == "bf16" and not has_bf16() else stored


def must_have_bf16(what: str) -> None:
    """Refuses what needs a processor that multiplies bf16: an emulation is slower than fp32."""
    if not has_bf16():
        raise RecipeError(f"{what}: this processor does not multiply bf16.", "Use fp32 or int8 here.")


def open_engine(name: str, source: Any, threads: int, precision: str | None = None) -> Engine:
    """An engine for an exported folder (a Bundle) or a run (a FlexibleModel). precision: None: that of the source."""
    if name not in ENGINES:
        raise RecipeError(f'there is no engine "{name}".', did_you_mean(name, ["auto", *ENGINES]))
    module, package, kinds = ENGINES[name]
    kind = getattr(source, "kind", "run")
    if kind not in kinds:
        cure = f"Engines for it: {', '.join(available(kind)) or 'none is installed'}."
        raise RecipeError(f"the engine {name} does not open a folder of kind {kind}.", cure)
    if find_spec(package) is None:
        extra = "" if package == "torch" else "[export]"
        raise RecipeError(f"the engine {name} is not installed.", f"Install it: pip install 'supple{extra}'.")
    precision = precision or precision_here(getattr(source, "precision", "fp32"))
    if precision == "bf16":
        must_have_bf16(f"the engine {name} in bf16")
    engine: Engine = import_module(module).load(source, threads, precision)
    return engine
