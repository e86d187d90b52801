"""Archives of torch.export as an engine, to check what was just written. Nothing else opens them: reading an archive
from elsewhere can run code that it holds.
"""

from typing import Any

import torch

from supple.runtime.bundle import Bundle
from supple.runtime.engine import Array, State


class Archives:
    name = "torch"

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.precision = bundle, bundle.precision
        self._modules: dict[str, Any] = {}

    def run_point(self, point: str, x: State) -> Array:
        return self._run(self.bundle.graphs[point], x)[-1]

    def run_stage(self, k: int, state: State) -> tuple[State, Array | None]:
        stage = self.bundle.stages[k]
        outputs = self._run(stage.file, state)
        return (tuple(outputs), None) if stage.point is None else (tuple(outputs[:-1]), outputs[-1])

    def close(self) -> None:
        self._modules.clear()

    def _run(self, file: str, inputs: State) -> list[Array]:
        if file not in self._modules:
            self._modules[file] = torch.export.load(self.bundle.path(file)).module()
        with torch.inference_mode():
            return [part.numpy() for part in self._modules[file](*map(torch.from_numpy, inputs))]
