"""Whether exported graphs say what the model says: in fp32 by their values, in int8 and bf16 by their score."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from supple.data.loaders import as_batches
from supple.errors import CheckpointError
from supple.inference.bundle import CHAIN, LAYERS, Bundle
from supple.inference.engines import Array, Engine, Graphs, State, open_engine
from supple.inference.engines.torch import graphs_of
from supple.inference.skipping import follow
from supple.model import FlexibleModel, Output, select
from supple.point import Point
from supple.scoring import Score, evaluate
from supple.tasks import get_task


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


TOLERANCE = 1e-4  # of the largest output, or of 1
NEAR = 1e-4  # a decision with a smaller margin may fall on either side
BATCH = 16


def arrays(x: Any) -> State:
    return tuple(part.numpy() for part in _pytree.tree_leaves(x))


@torch.no_grad()
def largest_difference(model: FlexibleModel, bundle: Bundle, engine: Engine, x: Any) -> float:
    """Every graph, and the chain, against the model on real inputs, alone and in a batch."""
    largest = 0.0
    outputs = {str(point): next(model.run(x, (Point.parse(point),))) for point in bundle.graphs.answering()}
    for batch in (x, select(x, torch.arange(1))):
        for name, what, logits in answers(bundle.graphs, engine, arrays(batch)):
            expected = outputs[name].logits.numpy()[: len(logits)]
            clear = decided(outputs[name])[: len(logits)]
            largest = max(largest, _apart(logits[clear], expected[clear], what))
    return largest


def answers(graphs: Graphs, engine: Engine, x: State) -> Iterator[tuple[str, str, Array]]:
    """All that an engine can say of a batch: the point, what answered, its logits."""
    for point, graph in graphs.points.items():
        yield point, point, engine.array(engine.run(graph, x)[0])
        if graphs.layers:
            yield point, f"{point}{LAYERS}", follow(engine, graphs.layers, x, Point.parse(point).skip)
    state = x
    for stage in graphs.stages:
        state = state if stage.body is None else engine.run(stage.body, state)
        if stage.head is not None and stage.point is not None:
            yield stage.point, f"{stage.point}{CHAIN}", engine.array(engine.run(stage.head, state)[0])


def decided(output: Output) -> Array:
    """The samples whose discrete decisions were all taken by a clear margin: rounding decides the others."""
    if output.margin is None:
        return np.ones(len(output.logits), bool)
    clear: Array = (output.margin > NEAR).numpy()
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


def scores(model: FlexibleModel, graphs: Graphs, engine: Engine, data: Any) -> tuple[dict[str, float], int]:
    """The score of all that answers, as the model's task has it, points by name, with a word where it is the chain; and
    the number of samples."""
    task, n = get_task(model.task), 0
    meters: dict[str, Any] = {}
    for x, y, samples in as_batches(data).in_order(BATCH):
        n += samples
        for name, what, logits in answers(graphs, engine, arrays(x)):
            meters.setdefault(what, task.meter(model)).add(Output(Point.parse(name), Tensor(logits)), y)
    return {what: meter.result().score for what, meter in meters.items()}, n


def lost_of(before: Score, after: float) -> float:
    """Of a score that is better when higher, the difference; of an error, its relative growth."""
    return before.score - after if before.higher_is_better else after / max(before.score, 1e-9) - 1


def scores_in_bf16(model: FlexibleModel, data: Any, points: Iterable[Point]) -> list[tuple[Score, float, float]]:
    """Of each point its score in fp32, the one that PyTorch has in bf16 on the same samples, and what it has lost:
    alone or along the chain, whichever is more."""
    engine = open_engine("torch", model, torch.get_num_threads(), "bf16")
    names = [str(point) for point in model.order(points)]
    graphs = graphs_of(model)
    others = set(graphs.answering()) - set(names)
    before = evaluate(model, data, map(Point.parse, names))
    after, _ = scores(model, graphs.leave_out(others, others), engine, data)
    engine.close()
    found = []
    for score in before:
        lost = max(lost_of(score, value) for what, value in after.items() if what.partition(", ")[0] == score.name)
        found.append((score, after[score.name], lost))
    return found
