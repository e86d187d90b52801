"""OpenVINO: every graph compiled for the batch sizes that are asked for, with a request of its own for every thread.

A fixed size is faster than an open one, but compiling takes longer than answering, and samples that leave a batch make
many sizes. So the first few are taken as they are; after that a batch is filled up to the next power of two.

Left to itself OpenVINO computes in bf16 wherever the processor has it, also graphs of fp32. So the precision is always
said; whether bf16 is multiplied or emulated, `supple.machine` knows, OpenVINO does not say.
"""

import threading
from typing import Any

import numpy as np
import openvino

from supple.inference.bundle import Bundle
from supple.inference.engines import Array, State, input_name

SIZES = 4  # of a graph, that are compiled as they are
HINTS = {"fp32": "f32", "int8": "f32", "bf16": "bf16"}  # of int8 graphs: for the layers that are not quantised


class OpenVinoEngine:
    name = "openvino"
    takes_missing = False

    def __init__(self, bundle: Bundle, threads: int, precision: str) -> None:
        self.bundle, self.precision = bundle, precision
        self._core = openvino.Core()
        self._settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        self._gates = {layer.graph for layer in bundle.graphs.layers if layer.role == "gate"}
        self._compiled: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()
        self._mine = threading.local()

    def run(self, graph: str, inputs: State) -> State:
        requests: dict[tuple[str, int], Any] = self._mine.__dict__.setdefault("requests", {})
        batch = len(inputs[0])
        key = graph, batch if (graph, batch) in requests else self._size(graph, batch)
        if key not in requests:
            compiled = self._compile(*key)
            names = {name for entry in compiled.inputs for name in entry.names}
            requests[key] = compiled.create_infer_request(), [input_name(k) in names for k in range(len(inputs))]
        request, used = requests[key]
        given = [filled(part, key[1]) for part, use in zip(inputs, used) if use]
        found = request.infer(given, share_inputs=True)
        return tuple(found[place][:batch] for place in range(len(found)))

    def array(self, value: Array) -> Array:
        return value

    def close(self) -> None:
        self._compiled.clear()
        self._mine = threading.local()

    def _size(self, file: str, batch: int) -> int:
        """The size that a batch is run at."""
        there = {size for name, size in list(self._compiled) if name == file}
        return batch if batch in there or len(there) < SIZES else 1 << (batch - 1).bit_length()

    def _compile(self, file: str, batch: int) -> Any:
        with self._lock:
            if (file, batch) not in self._compiled:
                model = self._core.read_model(self.bundle.path(file))
                shapes = {entry: [batch, *entry.partial_shape[1:]] for entry in model.inputs}
                model.reshape(shapes)
                hint = HINTS["fp32" if file in self._gates else self.precision]  # a gate's score must not shift
                settings = {**self._settings, "INFERENCE_PRECISION_HINT": hint}
                self._compiled[file, batch] = self._core.compile_model(model, "CPU", settings)
            return self._compiled[file, batch]


def filled(part: Array, size: int) -> Array:
    """A batch with its last sample repeated up to a size."""
    missing = size - len(part)
    return np.ascontiguousarray(part if not missing else np.concatenate([part, part[-1:].repeat(missing, 0)]))


def load(bundle: Bundle, threads: int, precision: str) -> OpenVinoEngine:
    return OpenVinoEngine(bundle, threads, precision)
