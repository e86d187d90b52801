"""Whether exported graphs say what the model says: in fp32 by their values, in int8 and bf16 by their score."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from supple.errors import CheckpointError
from supple.evaluate import Dataset, Score, evaluate
from supple.model import FlexibleModel, Output, select
from supple.point import Point
from supple.runtime.bundle import CHAIN, LAYERS, Bundle
from supple.runtime.engine import Array, Engine, State, open_engine
from supple.runtime.skipping import follow
from supple.runtime.torch_engine import answering
from supple.tasks import get_task

TOLERANCE = 1e-4  # of the largest output, or of 1
NEAR = 1e-4  # a score this near to its threshold may fall on either side
BATCH = 16


class Ways(Protocol):
    """All that answers: points, the point that each stage of a chain answers, the roles of graphs that are skipped."""

    @property
    def graphs(self) -> Iterable[str]: ...
    @property
    def chain(self) -> Sequence[str | None]: ...
    @property
    def roles(self) -> Sequence[str]: ...


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


def answers(ways: Ways, engine: Engine, x: State) -> Iterator[tuple[str, str, Array]]:
    """All that an engine can say of a batch: the point, what answered, its logits."""
    for point in ways.graphs:
        yield point, point, engine.run_point(point, x)
        if ways.roles:
            yield point, f"{point}{LAYERS}", follow(engine, ways.roles, x, Point.parse(point).skip)
    state = x
    for k, name in enumerate(ways.chain):
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


def scores(model: FlexibleModel, ways: Ways, engine: Engine, data: Dataset) -> dict[str, float]:
    """The score of all that answers, as the model's task has it: points by name, with a word where it is the chain."""
    task = get_task(model.task)
    meters = {what: task.meter(model) for _, what, _ in answers(ways, engine, arrays(data.batch(torch.arange(1))[0]))}
    for indices in torch.split(torch.arange(len(data)), BATCH):
        x, y = data.batch(indices)
        for name, what, logits in answers(ways, engine, arrays(x)):
            meters[what].add(Output(Point.parse(name), Tensor(logits)), y)
    return {what: meter.result().score for what, meter in meters.items()}


def lost_of(before: Score, after: float) -> float:
    """Of a score that is better when higher, the difference; of an error, its relative growth."""
    return before.score - after if before.higher_is_better else after / max(before.score, 1e-9) - 1


@dataclass(frozen=True)
class OfRun:
    """What answers of a run itself."""

    graphs: Sequence[str]
    chain: Sequence[str | None]
    roles: Sequence[str] = ()


def scores_in_bf16(model: FlexibleModel, data: Dataset, points: Iterable[Point]) -> list[tuple[Score, float, float]]:
    """Of each point its score in fp32, the one that PyTorch has in bf16 on the same samples, and what it has lost:
    alone or along the chain, whichever is more."""
    engine = open_engine("torch", model, torch.get_num_threads(), "bf16")
    names = [str(point) for point in model.order(points)]
    chain = [str(point) if str(point) in names else None for point in answering(model)]
    before = evaluate(model, data, map(Point.parse, names))
    after = scores(model, OfRun(names, chain if any(chain) else []), engine, data)
    engine.close()
    found = []
    for score in before:
        lost = max(lost_of(score, value) for what, value in after.items() if what.partition(", ")[0] == score.name)
        found.append((score, after[score.name], lost))
    return found
