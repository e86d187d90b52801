"""Whether exported graphs say what the model says: in fp32 by their values, in int8 by their score."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from supple.errors import CheckpointError
from supple.evaluate import Dataset
from supple.model import FlexibleModel
from supple.runtime.bundle import Bundle
from supple.runtime.engine import Array, Engine

TOLERANCE = 1e-4  # of the largest output, or of 1
BATCH = 16


@torch.no_grad()
def largest_difference(model: FlexibleModel, bundle: Bundle, engine: Engine, x: Tensor) -> float:
    """Every graph, and the chain, against the model on real inputs, alone and in a batch."""
    largest = 0.0
    expected = {str(point): model(x, point).numpy() for point in bundle.points}
    for batch in (x, x[:1]):
        given = (batch.numpy(),)
        for point in bundle.graphs:
            largest = max(largest, _apart(engine.run_point(point, given), expected[point][: len(batch)], point))
        for k, point, logits in chained(bundle, engine, given):
            if point in expected:
                largest = max(largest, _apart(logits, expected[point][: len(batch)], f"stage {k + 1}"))
    return largest


def chained(bundle: Bundle, engine: Engine, x: tuple[Array, ...]) -> Iterator[tuple[int, str, Array]]:
    """The answers of a chain: stage, point, logits."""
    state = x
    for k, stage in enumerate(bundle.stages):
        state, logits = engine.run_stage(k, state)
        if stage.point is not None and logits is not None:
            yield k, stage.point, logits


def _apart(found: Array, expected: Array, what: str) -> float:
    difference = float(np.abs(found - expected).max())
    limit = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if not difference <= limit:
        cause = f"{what}: the exported graph differs from PyTorch by {difference:.1e}, more than {limit:.1e}."
        raise CheckpointError(cause, "Nothing was written. Leave this point out, and please report it.")
    return difference


def scores(bundle: Bundle, engine: Engine, data: Dataset) -> dict[str, float]:
    """Accuracy of every graph, and of the worst answer of the chain under the name of its point and `chain`."""
    right: dict[str, int] = {}
    for indices in torch.split(torch.arange(len(data)), BATCH):
        x, y = data.batch(indices)
        given, labels = (x.numpy(),), y.numpy()
        answers = [(point, engine.run_point(point, given)) for point in bundle.graphs]
        answers += [(f"{point}, chain", logits) for _, point, logits in chained(bundle, engine, given)]
        for name, logits in answers:
            right[name] = right.get(name, 0) + int((logits.argmax(1) == labels).sum())
    return {name: count / len(data) for name, count in right.items()}
