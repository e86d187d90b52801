"""Models of benchmarks as predictors: exported into a passing folder, opened by every engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from supple.exporting.write import Held, Wanted, export
from supple.inference.bundle import open_bundle
from supple.inference.engines import available
from supple.inference.predictor import Predictor
from supple.inference.select import of_bundle
from supple.model import FlexibleModel, Shape, example, select


@dataclass
class Noise:
    """Random inputs as a data set: to check graphs with, and to see the range of values for int8."""

    shape: Shape
    count: int = 16
    slow: bool = False
    at_once: int | None = None

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: torch.Tensor, rng: torch.Generator | None = None) -> tuple[Any, torch.Tensor]:
        x = example(self.shape, self.count, torch.randn, generator=torch.Generator().manual_seed(0))
        return select(x, indices), indices % 2


def predictors(
    model: FlexibleModel, folder: Path, threads: int, to: str = "onnx", precision: str = "fp32"
) -> dict[str, Predictor]:
    """A predictor for each engine that opens this kind of folder. Nothing is held against a score here."""
    noise = Noise(model.input_shape)
    export(model, "0" * 64, folder, Wanted(to, precision, max_drop=2.0), Held(noise, noise, noise))
    bundle = open_bundle(folder)
    found = {f"{name} {bundle.precision}": of_bundle(bundle, name, threads) for name in available(to)}
    for one in found.values():
        one.warm()
    return found
