"""ONNX Runtime: a session for every graph, made when it is first needed."""

import threading

import onnxruntime

from supple.errors import RecipeError
from supple.inference.bundle import Bundle
from supple.inference.engines import Array, State
from supple.machine import owns_process

Opened = tuple[onnxruntime.InferenceSession, dict[str, int]]  # and which of its inputs each one is


CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_lock = threading.Lock()
_pool: list[int] = []  # threads of the pool that all sessions of this process share; empty: each has its own


def shares_pool(threads: int) -> bool:
    """Whether sessions use the pool of the process: they do once it is there, and the first with several threads makes
    it where the process is supple's own (see machine.py). A pool for every session of a chain takes longer."""
    with _lock:
        if threads > 1 and not _pool and owns_process():
            onnxruntime.set_global_thread_pool_sizes(threads, 1)
            _pool.append(threads)
        return bool(_pool)


class OnnxEngine:
    name = "onnxruntime"
    takes_missing = False
    lasting = True

    def __init__(self, bundle: Bundle, threads: int, precision: str, device: str = "cpu") -> None:
        self.bundle, self.precision, self.device = bundle, precision, device
        number = device.partition(":")[2]
        self._providers = [CPU] if device == "cpu" else [(CUDA, {"device_id": number}), CPU]
        self._options = onnxruntime.SessionOptions()
        self._options.log_severity_level = 3
        if shares_pool(threads):
            self._options.use_per_session_threads = False
        else:
            self._options.intra_op_num_threads = threads
            self._options.inter_op_num_threads = 1
            # A stage that has ended must not keep a core busy while the next one runs.
            self._options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._sessions: dict[str, Opened] = {}
        self._lock = threading.Lock()

    def run(self, graph: str, inputs: State) -> State:
        session, places = self._sessions.get(graph) or self._open(graph)
        return tuple(session.run(None, {name: inputs[place] for name, place in places.items()}))

    def array(self, value: Array) -> Array:
        return value

    def close(self) -> None:
        self._sessions.clear()

    def _open(self, file: str) -> Opened:
        with self._lock:
            if file not in self._sessions:
                path = str(self.bundle.path(file))
                session = onnxruntime.InferenceSession(path, self._options, self._providers)
                if self.device != "cpu" and CUDA not in session.get_providers():  # it goes on without, and says nothing
                    cause = f"ONNX Runtime has CUDA, but cannot use {self.device} here."
                    raise RecipeError(cause, "Install the driver, CUDA and cuDNN that it was built for; or use cpu.")
                names = self.bundle.inputs[file]
                self._sessions[file] = session, {one.name: names.index(one.name) for one in session.get_inputs()}
            return self._sessions[file]


def check_device(device: str) -> None:
    there = onnxruntime.get_available_providers()
    if not device.startswith("cuda"):
        raise RecipeError(f"the engine onnxruntime does not run on {device}.", "Use cpu or cuda, or the engine torch.")
    if CUDA not in there:
        cause = f"ONNX Runtime cannot use {device}: it has no {CUDA}, only {', '.join(there)}."
        raise RecipeError(cause, "Install onnxruntime-gpu in place of onnxruntime; or use cpu.")


def load(bundle: Bundle, threads: int, precision: str, device: str) -> OnnxEngine:
    return OnnxEngine(bundle, threads, precision, device)
