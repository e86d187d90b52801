"""What a trained arm gives on every test image: its score at points and groups, and other measures.

A group such as "arbitrary" has a new point for every batch of ORDERED images, drawn by seed, group and batch alone: all
arms of a seed meet the same orders. A change that gives other figures of the same run raises EVALUATION in results.py.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from supple.analysis.finding import answering
from supple.analysis.shuffle import follow
from supple.data.loaders import Picked
from supple.data.parts import Dataset
from supple.data.splits import Splits
from supple.errors import RecipeError
from supple.experiments.results import TEST, TRAIN, pack
from supple.experiments.verdict import Array
from supple.methods._trunk import read_token
from supple.methods.dense import Dense
from supple.methods.shuffle import Shuffle
from supple.methods.skip import PAPER, Skip
from supple.model import FlexibleModel, Output
from supple.point import FULL, Point
from supple.scoring import to_device
from supple.surgery.merge import count_layers, end_weights, layer_weights, merge_weights
from supple.tasks import get_task
from supple.text import did_you_mean

ORDERED = 100  # images that share a point drawn from a group
HALF = str(Point(skip=PAPER))
MOST_TRAINING = 10_000  # training images that "train" looks at
Answer = Callable[[Any, int], dict[str, Tensor]]  # from inputs and the number of their batch to logits by name


# --- points and groups ------------------------------------------------------------------------------------------------


def point_for(model: FlexibleModel, name: str, seed: int, batch: int, who: str = "") -> Point:
    """A point by its name, or the one of a group that this batch meets."""
    group = model.groups.get(name)
    if group is None:
        return model.check(Point.parse(name))
    return model.check(group.sample(random.Random(f"{seed}/{name}/{batch}{who}")))


def must_know(model: FlexibleModel, names: Sequence[str], where: str) -> None:
    """Refuses what neither the model nor MEASURES has."""
    for name in names:
        if name in MEASURES:
            MEASURES[name].check(model, f'{where}: "{name}"')
        elif name not in model.groups:
            if "=" not in name and name != str(FULL):
                known = [str(FULL), *map(str, model.points), *model.groups, *MEASURES]
                raise RecipeError(f'{where}: "{name}" is neither a point nor a group.', did_you_mean(name, known))
            model.check(Point.parse(name))


def alone(model: FlexibleModel, names: Sequence[str], seed: int) -> Answer:
    """The logits of one model, all points in one pass."""

    def answer(x: Any, batch: int) -> dict[str, Tensor]:
        asked = {name: point_for(model, name, seed, batch) for name in names}
        logits = {output.point: output.logits for output in model.run(x, [*dict.fromkeys(asked.values())])}
        return {name: logits[point] for name, point in asked.items()}

    return answer


def ensemble(models: Sequence[FlexibleModel], names: Sequence[str], seed: int) -> Answer:
    """The mean logits of several models, each in an order of its own."""

    def answer(x: Any, batch: int) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {name: [] for name in names}
        for number, model in enumerate(models):
            asked = {name: point_for(model, name, seed, batch, f"/{number}") for name in names}
            for name, point in asked.items():
                found[name].append(model(x, point).float())
        return {name: torch.stack(logits).mean(0) for name, logits in found.items()}

    return answer


def merged(models: Sequence[FlexibleModel], names: Sequence[str], seed: int) -> Answer:
    """One model whose layers come from several, all equally often, otherwise dealt for every batch.

    Departure: in the paper there are as many runs as layers, and no run gives two. Stem, norm and head are the first's.
    """
    weights, layers, count = [one.state_dict() for one in models], layer_weights(models[0]), count_layers(models[0])
    weights = [{name: value.clone() for name, value in one.items()} for one in weights]
    ends = end_weights(weights, layers, 1)
    inner = alone(models[0], names, seed)

    def answer(x: Any, batch: int) -> dict[str, Tensor]:
        models[0].load_state_dict(merge_weights(weights, layers, deal(len(weights), count, seed, batch), ends))
        return inner(x, batch)

    return answer


def deal(runs: int, layers: int, seed: int, batch: int) -> tuple[int, ...]:
    """For every layer the run that it comes from, counted from 1; each as often as the others."""
    plan = [1 + layer % runs for layer in range(layers)]
    random.Random(f"{seed}/merge/{batch}").shuffle(plan)
    return tuple(plan)


def score_each(model: FlexibleModel, answer: Answer, data: Dataset | Picked, names: Sequence[str]) -> dict[str, Array]:
    """What every image scores by the task's metric, by name: whether it is classified rightly, or its error."""
    metric = get_task(model.task).metrics[0]
    assert metric.each is not None, "experiments compare image by image"
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for x, y, batch in _batches(model, data):
        for name, logits in answer(x, batch).items():
            found[name].append(metric.each(Output(FULL, logits), y).cpu())
    scores = {name: torch.cat(parts).numpy() for name, parts in found.items()}
    return {name: each.astype(bool) for name, each in scores.items()} if metric.unit == "%" else scores


# --- measures ---------------------------------------------------------------------------------------------------------


class Measure:
    """Another figure of every image than right or wrong: a function of a model, data and a seed, in points."""

    def __init__(self, each: Callable[[Any, Splits, int], Array], method: str | None, images: str = TEST) -> None:
        self.each, self.method, self.images = each, method, images

    def check(self, model: FlexibleModel, where: str) -> None:
        if self.method is not None and type(model).__name__.lower() != self.method:
            raise RecipeError(f"{where} is for method {self.method}.", "Leave it out of this arm's evaluate.")


def on_training_images(model: FlexibleModel, splits: Splits, seed: int, name: str = "full") -> Array:
    """Right or wrong on training images, not augmented, in eval mode: some that are spread evenly."""
    picked = torch.linspace(0, len(splits.train) - 1, min(MOST_TRAINING, len(splits.train))).long()
    return score_each(model, alone(model, [name], seed), Picked(splits.train, picked), [name])[name]


def positions_told(model: Shuffle, splits: Splits, seed: int) -> Array:
    """LayerShuffle-predict: share of the layers that say their position rightly, in any order."""
    if model.variant != "predict":
        raise RecipeError("positions are told by variant predict alone.", "Leave it out of this arm's evaluate.")
    found = []
    for x, _, batch in _batches(model, splits.test):
        (output,) = model.run(x, (point_for(model, "arbitrary", seed, batch),))
        said = output.aux["position"].argmax(2)  # (batch, positions)
        found.append((said == torch.arange(said.shape[1], device=said.device)).double().mean(1).cpu())
    return 100 * torch.cat(found).numpy()


def at_home(model: Shuffle, splits: Splits, seed: int) -> Array:
    """Figure 4 of LayerShuffle as one number: how much more of the class token's change a layer gives near its own
    position (next to it at most) than elsewhere, in any order; in points of the sum over all layers.

    A layer's share is compared with its own mean, so that strong layers do not decide by where chance put them.
    """
    how = "class" if model.trunk.class_token else "mean"
    shares, near = [], []
    for x, y, batch in _batches(model, splits.test):
        norms, close = torch.zeros(len(y), model.count), torch.zeros(model.count, dtype=torch.bool)
        point = point_for(model, "arbitrary", seed, batch)
        for layer, position, before, after in follow(model, x, point):
            added = read_token(after, how) - read_token(before, how)
            norms[:, layer - 1] = torch.linalg.vector_norm(added, dim=1).float().cpu()
            close[layer - 1] = abs(layer - position) <= 1
        shares.append(norms / norms.sum(1, keepdim=True))
        near.append(close.expand(len(y), -1))
    return near_minus_far(torch.cat(shares).double().numpy(), torch.cat(near).numpy())


def near_minus_far(shares: Array, near: Array) -> Array:
    """Of every image, in points. shares: (images, layers), near: whether a layer stood near its own position.

    Divided by how many layers stand near, and far, in the mean over all orders: a layer at an end has one neighbour.
    """
    layers = shares.shape[1]
    count = (3 * layers - 2) / layers
    above = shares - shares.mean(0)
    value: Array = 100 * ((above * near).sum(1) / count - (above * ~near).sum(1) / (layers - count))
    return value


def layers_skipped(model: Skip, splits: Splits, seed: int) -> Array:
    """Dynamic Transformer: share of the layers that may be skipped which an image skips, at skip=0.5."""
    found = []
    for x, _, _ in _batches(model, splits.test):
        (output,) = model.run(x, (Point(skip=PAPER),))
        found.append(1 - output.aux["ran"][:, list(model.gates.gated)].double().mean(1).cpu())
    return 100 * torch.cat(found).numpy()


def from_the_layer_before(model: Dense, splits: Splits, seed: int) -> Array:
    """Dense connections: share that the upper half of the layers take from the layer just before them."""
    found = []
    for x, _, _ in _batches(model, splits.test):
        (output,) = model.run(x, (FULL,))
        before = output.aux["weights"].diagonal(dim1=1, dim2=2)  # (batch, layers): layer j + 1 reads activation j
        found.append(before[:, before.shape[1] // 2 :].double().mean(1).cpu())
    return 100 * torch.cat(found).numpy()


MEASURES = {
    "train": Measure(on_training_images, None, TRAIN),
    f"train, {HALF}": Measure(partial(on_training_images, name=HALF), "skip", TRAIN),  # the point that DT trains
    "positions": Measure(positions_told, "shuffle"),
    "home": Measure(at_home, "shuffle"),
    "skipped": Measure(layers_skipped, "skip"),
    "preceding": Measure(from_the_layer_before, "dense"),
}


def _batches(model: FlexibleModel, data: Dataset | Picked) -> Any:
    """Inputs, targets and the number of each batch."""
    for batch, indices in enumerate(torch.split(torch.arange(len(data)), ORDERED)):
        x, y = to_device(data.batch(indices), _device(model))
        yield x, y, batch


def _device(model: FlexibleModel) -> torch.device:
    return next(model.parameters()).device


# --- all of it --------------------------------------------------------------------------------------------------------


def evaluate_arm(
    models: Sequence[FlexibleModel], way: Callable[..., Answer], splits: Splits, names: Sequence[str], seed: int
) -> dict[str, dict[str, Any]]:
    """Everything that is to be known of an arm, packed, by name. way: alone, merged or ensemble."""
    points = [name for name in names if name not in MEASURES]
    packed: dict[str, dict[str, Any]] = {}
    with answering(models[0]):
        for model in models:
            model.eval()
        model = models[0]
        for name in names:
            if name in MEASURES:
                measure = MEASURES[name]
                each = measure.each(cast(Any, model), splits, seed)
                packed[name] = pack(np.asarray(each), measure.images)
        if points:
            given = (models[0], points, seed) if way is alone else (models, points, seed)
            found = score_each(model, way(*given), splits.test, points)
            packed |= {name: pack(each) for name, each in found.items()}
    return {name: packed[name] for name in names}
