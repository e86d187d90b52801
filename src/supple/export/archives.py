"""Archives of torch.export as an engine, to check what was just written. Nothing else opens them: reading an archive
from elsewhere can run code that it holds.
"""

from typing import Any

import torch

from supple.runtime.bundle import Bundle
from supple.runtime.engine import Array, State


class Archives:
    name = "torch"
    takes_missing = False

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.precision = bundle, bundle.precision
        self._modules: dict[str, Any] = {}

    def run(self, graph: str, inputs: State) -> State:
        if graph not in self._modules:
            self._modules[graph] = torch.export.load(self.bundle.path(graph)).module()
        with torch.inference_mode():
            return tuple(part.numpy() for part in self._modules[graph](*map(torch.from_numpy, inputs)))

    def array(self, value: Array) -> Array:
        return value

    def close(self) -> None:
        self._modules.clear()
