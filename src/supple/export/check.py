"""Whether exported graphs say what the model says: in fp32 by their values, in int8 by their score."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from supple.data.samples import Dataset
from supple.errors import CheckpointError
from supple.model import FlexibleModel, Output, select
from supple.point import Point
from supple.runtime.bundle import Bundle
from supple.runtime.engine import Array, Engine, State
from supple.runtime.skipping import follow
from supple.tasks import TASKS

TOLERANCE = 1e-4  # of the largest output, or of 1
NEAR = 1e-4  # a score this near to its threshold may fall on either side
BATCH = 16
CHAIN, LAYERS = ", chain", ", layer by layer"  # behind a point: what else answers at it


def arrays(x: Any) -> State:
    return tuple(part.numpy() for part in _pytree.tree_leaves(x))


@torch.no_grad()
def largest_difference(model: FlexibleModel, bundle: Bundle, engine: Engine, x: Any) -> float:
    """Every graph, and the chain, against the model on real inputs, alone and in a batch."""
    largest = 0.0
    outputs = {str(point): next(model.run(x, (point,))) for point in bundle.answering}
    for batch in (x, select(x, torch.arange(1))):
        for name, what, logits in answers(bundle, engine, arrays(batch)):
            expected = outputs[name].logits.numpy()[: len(logits)]
            clear = decided(outputs[name])[: len(logits)]
            largest = max(largest, _apart(logits[clear], expected[clear], what))
    return largest


def answers(bundle: Bundle, engine: Engine, x: State) -> Iterator[tuple[str, str, Array]]:
    """All that a folder can say of a batch: the point, what answered, its logits."""
    for point in bundle.graphs:
        yield point, point, engine.run_point(point, x)
        if bundle.roles:
            yield point, f"{point}{LAYERS}", follow(engine, bundle.roles, x, Point.parse(point).skip)
    state = x
    for k, name in enumerate(bundle.chain):
        state, logits = engine.run_stage(k, state)
        if name is not None and logits is not None:
            yield name, f"{name}{CHAIN}", logits


def decided(output: Output) -> Array:
    """The samples whose layers all ran or did not by a clear margin: rounding decides of the others."""
    threshold = output.point.skip
    if threshold is None or "gates" not in output.aux:
        return np.ones(len(output.logits), bool)
    clear: Array = ((output.aux["gates"].sigmoid() - threshold).abs() > NEAR).all(1).numpy()
    return clear


def _apart(found: Array, expected: Array, what: str) -> float:
    if not len(found):
        return 0.0
    difference = float(np.abs(found - expected).max())
    limit = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if not difference <= limit:
        cause = f"{what}: the exported graph differs from PyTorch by {difference:.1e}, more than {limit:.1e}."
        raise CheckpointError(cause, "Nothing was written. Leave this point out, and please report it.")
    return difference


def scores(model: FlexibleModel, bundle: Bundle, engine: Engine, data: Dataset) -> dict[str, float]:
    """The score of all that answers, as the model's task has it: points by name, with a word where it is the chain."""
    task = TASKS[model.task]
    meters = {what: task.meter(model) for _, what, _ in answers(bundle, engine, arrays(data.batch(torch.arange(1))[0]))}
    for indices in torch.split(torch.arange(len(data)), BATCH):
        x, y = data.batch(indices)
        for name, what, logits in answers(bundle, engine, arrays(x)):
            meters[what].add(Output(Point.parse(name), Tensor(logits)), y)
    return {what: meter.result().score for what, meter in meters.items()}
