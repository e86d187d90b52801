"""Whether exported graphs say what the model says: in fp32 by their values, in int8 and bf16 by their score."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from supple.data.loaders import as_batches
from supple.errors import CheckpointError
from supple.inference.bundle import CHAIN, LAYERS, Bundle
from supple.inference.engines import Array, Engine, Graphs, State, open_engine
from supple.inference.engines.torch import graphs_of
from supple.inference.inputs import count
from supple.inference.skipping import follow
from supple.model import FlexibleModel, Output, example, select
from supple.point import Point
from supple.scoring import Score, evaluate
from supple.tasks import Meter, Result, get_task


class Archives:
    name = "torch"
    takes_missing = False
    lasting = True

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
FEWEST, DRAWN = 4, 32  # samples that are compared at least; batches of noise where there are not so many clear ones


def arrays(x: Any) -> State:
    return tuple(part.cpu().numpy() for part in _pytree.tree_leaves(x))


@torch.no_grad()
def largest_difference(model: FlexibleModel, bundle: Bundle, engine: Engine, x: Any) -> float:
    """Every graph, and the chain, against the model on real inputs, alone and in a batch. Points whose decisions are
    hardly ever clear on these, as on pictures with large plain areas, are compared on noise as well."""
    largest, graphs = 0.0, bundle.graphs
    few = min(FEWEST, count(arrays(x)))
    left = dict.fromkeys(graphs.answering(), few)  # samples that each point is still to be compared on
    for batch in itertools.chain([x], noise(model)):
        outputs = {name: next(model.run(batch, (Point.parse(name),))) for name in left}
        clear = {name: decided(output) for name, output in outputs.items()}
        alone = int(np.sum([*clear.values()], 0).argmax())  # the sample that is clear at most points
        for rows in (torch.arange(count(arrays(batch))), torch.tensor([alone])):
            for name, what, logits in answers(graphs, engine, arrays(select(batch, rows))):
                mask = clear[name][rows.numpy()]
                largest = max(largest, _apart(logits[mask], outputs[name].logits[rows].numpy()[mask], what))
        left = {name: some for name, n in left.items() if (some := n - int(clear[name].sum())) > 0}
        if not left:
            return largest
        done = {*bundle.graphs.answering()} - left.keys()
        graphs = bundle.graphs.leave_out(done, done)
    cause = f"{next(iter(left))}: rounding may decide every sample, also of noise, so that its graph cannot be checked."
    raise CheckpointError(cause, "Nothing was written. Leave this point out.")


def noise(model: FlexibleModel) -> Iterator[Any]:
    """Batches of it, always the same."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWN):
        yield example(model.input_shape or (), BATCH, torch.randn, generator=generator)


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


def scores(model: FlexibleModel, graphs: Graphs, engine: Engine, data: Any) -> tuple[dict[str, Result], int]:
    """The score of all that answers, as the model's task has it, points by name, with a word where it is the chain; and
    the number of samples."""
    task, n = get_task(model.task), 0
    meters: dict[str, Meter] = {}
    for x, y, samples in as_batches(data).in_order(BATCH):
        n += samples
        for name, what, logits in answers(graphs, engine, arrays(x)):
            meters.setdefault(what, task.meter(model)).add(Output(Point.parse(name), Tensor(logits)), y)
    return {what: meter.result() for what, meter in meters.items()}, n


class Loss(NamedTuple):
    """What is left of a score in another precision, and how much that is less."""

    after: Result
    lost: float  # of a score that is better when higher, the difference; of an error, its relative growth
    error: float  # standard error of `lost`, from the samples one by one; 0: they have no scores of their own


def losses(
    model: FlexibleModel, graphs: Graphs, engine: Engine, data: Any, points: Iterable[Point]
) -> tuple[list[Score], dict[str, Loss]]:
    """The scores of the points in fp32, and what is lost by all that answers on an engine, in one pass over the data.

    The same samples are answered by both, and most of them alike: of a share, only those count for the error that went
    from right to wrong (b) or from wrong to right (c). It is sqrt(b + c - (b - c)^2 / n) / n.
    """
    task = get_task(model.task)
    each = task.metrics[0].each if task.meter_of is None else None
    meters: dict[str, Meter] = {}
    worse: dict[str, list[Tensor]] = {}  # sample by sample

    def answer(x: Any, y: Any, outputs: dict[str, Output]) -> None:
        for name, what, logits in answers(graphs, engine, arrays(x)):
            output = Output(Point.parse(name), Tensor(logits).to(outputs[name].logits.device))
            meters.setdefault(what, task.meter(model)).add(output, y)
            if each is not None:
                worse.setdefault(what, []).append((each(outputs[name], y) - each(output, y)).cpu().double())

    before = evaluate(model, data, points, batch_size=BATCH, beside=answer)
    named = {score.name: score for score in before}
    found = {}
    for what, meter in meters.items():
        score, after = named[what.partition(", ")[0]], meter.result()
        error = _standard_error(torch.cat(worse[what])) if what in worse else 0.0
        sign, scale = (1, 1.0) if score.higher_is_better else (-1, max(score.score, 1e-9))
        found[what] = Loss(after, sign * (score.score - after.score) / scale, error / scale)
    return before, found


def _standard_error(values: Tensor) -> float:
    return float(values.std(correction=0)) / math.sqrt(len(values))


def scores_in_bf16(
    model: FlexibleModel, data: Any, points: Iterable[Point], device: str = "cpu"
) -> list[tuple[Score, dict[str, Any]]]:
    """Of each point its score in fp32, and the facts of a ladder's row that PyTorch has in bf16 on the same samples; it
    has lost what it loses alone or along the chain, whichever is more."""
    engine = open_engine("torch", model, torch.get_num_threads(), "bf16", device)
    asked = model.order(points)
    graphs = graphs_of(model)
    others = set(graphs.answering()) - set(map(str, asked))
    before, lost = losses(model, graphs.leave_out(others, others), engine, data, asked)
    engine.close()
    found = []
    for score in before:
        own = [loss for what, loss in lost.items() if what.partition(", ")[0] == score.name]
        most, alone = max(own, key=lambda loss: loss.lost - loss.error), lost[score.name].after
        facts = {"score": alone.score, "score_error": alone.error, "lost": most.lost, "lost_error": most.error}
        found.append((score, score.facts() | {"extra_metrics": None} | facts))
    return found
