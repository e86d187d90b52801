"""OpenVINO: every graph compiled for the batch sizes that are asked for, with a request of its own for every thread.

A fixed size is faster than an open one, most of all for a single sample, but compiling takes longer than answering, and
samples that leave a batch make many sizes. So a graph is compiled for its first few sizes as they are, and once more
for all others. All stages of a chain are compiled when the first of them meets a new size.

Left to itself OpenVINO computes in bf16 wherever the processor has it, also graphs of fp32. So the precision is always
said; whether bf16 is multiplied or emulated, `supple.machine` knows, OpenVINO does not say.
"""

import threading
from functools import cache
from typing import Any

import numpy as np
import openvino

from supple.errors import RecipeError
from supple.inference.bundle import Bundle
from supple.inference.engines import Array, State

SIZES = 2  # of a graph, that are compiled as they are
ANY = -1  # in place of a size: an open one
HINTS = {"fp32": "f32", "int8": "f32", "bf16": "bf16"}  # of int8 graphs: for the layers that are not quantised


@cache
def core() -> openvino.Core:
    """The only one of the process, for good. Its plugin gives a stack for signals to the thread that loads it, and
    takes it away when the last core ends: if in another thread, the next signal of the first one ends the process.
    """
    return openvino.Core()


class OpenVinoEngine:
    name = "openvino"
    takes_missing = False
    lasting = False  # they lie in the request's own memory

    def __init__(self, bundle: Bundle, threads: int, precision: str) -> None:
        self.bundle, self.precision = bundle, precision
        self._settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        stages = bundle.graphs.stages
        self._chain = [graph for stage in stages for graph in (stage.body, stage.head) if graph is not None]
        self._gates = {layer.graph for layer in bundle.graphs.layers if layer.role == "gate"}
        self._compiled: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()
        self._mine = threading.local()

    def run(self, graph: str, inputs: State) -> State:
        requests: dict[tuple[str, int], Any] = self._mine.__dict__.setdefault("requests", {})
        batch = len(inputs[0])
        key = graph, batch if (graph, batch) in requests else self._size(graph, batch)
        if key not in requests:
            for other in self._chain if [graph] == self._chain[:1] else ():
                self._compile(other, self._size(other, batch))
            compiled = self._compile(*key)
            names = self.bundle.inputs[graph]  # OpenVINO drops inputs that a graph does not use
            used = [names.index(*entry.names.intersection(names)) for entry in compiled.inputs]
            requests[key] = compiled.create_infer_request(), used, range(len(compiled.outputs))
        request, used, outputs = requests[key]
        given = [np.ascontiguousarray(inputs[place]) for place in used]  # the request does not keep them
        for place, part in enumerate(given):
            request.set_input_tensor(place, openvino.Tensor(part, shared_memory=True))
        request.start_async()
        request.wait()
        return tuple(request.get_output_tensor(place).data for place in outputs)

    def array(self, value: Array) -> Array:
        return value.copy()

    def close(self) -> None:
        self._compiled.clear()
        self._mine = threading.local()

    def _size(self, file: str, batch: int) -> int:
        """The size that a graph is compiled for, to run such a batch."""
        there = {size for name, size in list(self._compiled) if name == file} - {ANY}
        return batch if batch in there or len(there) < SIZES else ANY

    def _compile(self, file: str, batch: int) -> Any:
        with self._lock:
            if (file, batch) not in self._compiled:
                model = core().read_model(self.bundle.path(file))
                shapes = {entry: [batch, *entry.partial_shape[1:]] for entry in model.inputs}
                model.reshape(shapes)
                hint = HINTS["fp32" if file in self._gates else self.precision]  # a gate's score must not shift
                settings = {**self._settings, "INFERENCE_PRECISION_HINT": hint}
                self._compiled[file, batch] = core().compile_model(model, "CPU", settings)
            return self._compiled[file, batch]


def check_device(device: str) -> None:
    raise RecipeError(f"the engine openvino runs on the CPU only, not on {device}.", "Use cpu, or another engine.")


def load(bundle: Bundle, threads: int, precision: str, device: str) -> OpenVinoEngine:
    return OpenVinoEngine(bundle, threads, precision)
