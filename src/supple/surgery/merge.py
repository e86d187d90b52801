"""Merged models: every layer from another run (LayerShuffle paper, section 4.4).

A plan names, for every layer, the run that it comes from, counted from 1. The paper does not say who owns the
rest (stem, norm, head): here one run does, or the mean of all. What serves one layer alone travels with it.
"""

import copy
import os
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supple import checkpoint
from supple.checkpoint import Source
from supple.data.parts import Dataset
from supple.errors import MergeError
from supple.model import FlexibleModel
from supple.recipe import Recipe
from supple.scoring import OnProgress, to_device
from supple.surgery.ensemble import Accuracy, answers, hits, orders
from supple.training.finalize import score_and_save


@dataclass(frozen=True)
class MergeInput:
    """One run that is to answer together with others."""

    name: str  # its folder, or its number
    model: FlexibleModel
    digest: str = ""  # of its weights

    @property
    def recipe(self) -> Recipe:
        return checkpoint.recipe_of_model(self.model)


@dataclass(frozen=True)
class PlannedMerge:
    inputs: Sequence[MergeInput]
    plan: tuple[int, ...]  # for every layer the input that it comes from
    owner: int | None  # of everything but the layers; None: the mean of all

    @property
    def models(self) -> list[FlexibleModel]:
        return [one.model for one in self.inputs]


def plan_merge(
    sources: Iterable[Source],
    plan: str | Sequence[int] | None,
    ends: str | int,
    seed: int,
) -> PlannedMerge:
    """Opens what is to be merged, and says which layer comes from where; plan None: a random one."""
    inputs = open_merge_inputs(sources)
    must_be_alike(inputs)
    runs, layers = len(inputs), count_layers(inputs[0].model)
    owner = parse_ends(str(ends), runs)
    if plan is None:
        chosen = random_plan(runs, layers, random.Random(seed))
    else:
        chosen = parse_plan(plan if isinstance(plan, str) else "-".join(map(str, plan)), runs, layers)
    return PlannedMerge(inputs, chosen, owner)


def open_merge_inputs(sources: Iterable[Source]) -> list[MergeInput]:
    """Opens run folders, each of which may be named only once; models are taken as they are."""
    opened: list[MergeInput] = []
    for number, source in enumerate(sources, 1):
        if isinstance(source, FlexibleModel):
            opened.append(MergeInput(f"model {number}", source))
            continue
        folder = Path(source)
        if any(Path(one.name).resolve() == folder.resolve() for one in opened):
            raise MergeError(f"the run {folder} is given twice.", "Give every run once.")
        digest = checkpoint.read_manifest(folder)["files"][checkpoint.WEIGHTS]
        opened.append(MergeInput(str(folder), checkpoint.model_of(source), digest))
    if not opened:
        raise MergeError("no run is given.", "Give run folders: supple merge runs/a runs/b --out runs/merged.")
    return opened


def must_see_alike(merge_inputs: Sequence[MergeInput]) -> None:
    """Refuses runs that cannot answer the same images: other classes, input or preprocessing."""
    _must_agree(
        merge_inputs, [_seen(one) for one in merge_inputs], "Give runs that were trained with one data section."
    )


def must_be_alike(merge_inputs: Sequence[MergeInput]) -> None:
    """Refuses runs whose layers cannot change places with one another."""
    cure = "Give runs of one backbone and one method section; they may differ in train and loss."
    _must_agree(merge_inputs, [_built(one) for one in merge_inputs], cure)
    must_see_alike(merge_inputs)


def _must_agree(merge_inputs: Sequence[MergeInput], facts: Sequence[dict[str, Any]], cure: str) -> None:
    for one, own in zip(merge_inputs, facts):
        for key, wanted in facts[0].items():
            if own[key] != wanted:
                cause = f"{one.name} does not fit {merge_inputs[0].name}: its {key} is {_short(own[key])}"
                raise MergeError(f"{cause}, not {_short(wanted)}.", cure)


def _built(one: MergeInput) -> dict[str, Any]:
    """What decides the weights' names and shapes, name first: where names agree, so do the keys."""
    sections = {"backbone": one.recipe.backbone, "method": one.recipe.method}
    return {f"{section}.{key}": value for section, settings in sections.items() for key, value in settings.items()}


def _seen(one: MergeInput) -> dict[str, Any]:
    model = one.model
    prepared = model.preprocess.to_json() if model.preprocess is not None else {}
    return {
        "number of classes": len(model.classes),
        **{f"class {place}": name for place, name in enumerate(model.classes, 1)},
        "input shape": model.input_shape,
        **{f"data.{key}": prepared.get(key) for key in ("size", "channels", "mean", "std", "spectrogram")},
    }


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def doubt(merge_inputs: Sequence[MergeInput]) -> str | None:
    """A warning if the runs were not refined from one base run, without which their layers rarely work together."""
    starts = [one.recipe.train.init for one in merge_inputs]
    begun = {os.path.realpath(start): os.path.normpath(start) for start in starts if start}
    bases: dict[str, list[str]] = {}
    for one, start in zip(merge_inputs, starts):
        own = os.path.realpath(one.name)
        base = own if own in begun or not start else os.path.realpath(start)  # a base fits what was refined from it
        bases.setdefault(begun.get(base, "random weights"), []).append(one.name)
    if len(bases) == 1 and "random weights" not in bases:
        return None
    listed = "; ".join(f"{', '.join(names)} from {base}" for base, names in bases.items())
    return f"warning: these runs do not come from one base run (train.init), so their layers may not fit: {listed}"


Weights = Mapping[str, Tensor]
Plan = tuple[int, ...]  # for every layer the run that it comes from
MEAN = "mean"


# --- plans ------------------------------------------------------------------------------------------------------------


def random_plan(runs: int, layers: int, rng: random.Random) -> Plan:
    """No run gives two layers."""
    if runs < layers:
        cure = f"Give at least {layers} runs, or a plan that repeats some: --plan {_example(runs, layers)}."
        raise MergeError(f"{runs} runs are too few for {layers} layers: a random plan takes no run twice.", cure)
    return tuple(rng.sample(range(1, runs + 1), layers))


def parse_plan(text: str, runs: int, layers: int) -> Plan:
    """`3-1-2`: layer 1 comes from run 3, layer 2 from run 1, layer 3 from run 2. Runs may be repeated."""
    cure = f"Name one of the {runs} runs for each of the {layers} layers: --plan {_example(runs, layers)}."
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})*", text, re.ASCII):
        raise MergeError(f'--plan is "{text[:60]}", which is not a list of numbers.', cure)
    plan = tuple(int(part) for part in text.split("-"))
    if len(plan) != layers:
        raise MergeError(f"--plan names runs for {len(plan)} layers; the runs have {layers}.", cure)
    for run in plan:
        if not 1 <= run <= runs:
            raise MergeError(f"--plan names run {run}; there are {runs}, counted from 1.", cure)
    return plan


def parse_ends(text: str, runs: int) -> int | None:
    """The run that gives everything but the layers; None: the mean of all."""
    if text == MEAN:
        return None
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or not 1 <= int(text) <= runs:
        raise MergeError(f'--ends is "{text[:60]}".', f"Give the number of a run, from 1 to {runs}, or {MEAN}.")
    return int(text)


def _example(runs: int, layers: int) -> str:
    return "-".join(str(1 + layer % runs) for layer in range(layers))


# --- weights ----------------------------------------------------------------------------------------------------------


def layer_weights(model: FlexibleModel) -> dict[str, int]:
    """The layer, counted from 0, of every weight that belongs to one."""
    belongs = re.compile(rf"(?:{'|'.join(map(re.escape, _layer_lists(model)))})\.(\d+)\.")
    found = {name: belongs.match(name) for name in model.state_dict()}
    return {name: int(match[1]) for name, match in found.items() if match}


def count_layers(model: FlexibleModel) -> int:
    return len(list(model.get_submodule(_layer_lists(model)[0]).children()))


def _layer_lists(model: FlexibleModel) -> tuple[str, ...]:
    paths = model.mergeable()
    if not paths:
        method, network = type(model).__name__.lower(), type(model.backbone or model).__name__
        cure = "Merge runs of method shuffle, or static, with the backbone vit or vit_cifar."
        raise MergeError(f"runs of method {method} with a {network} cannot be merged.", cure)
    return paths


def end_weights(weights: Sequence[Weights], layers: Mapping[str, int], owner: int | None) -> dict[str, Tensor]:
    """Everything but the layers, from one run or as the mean of all (counters, which have no mean, from the first)."""
    names = [name for name in weights[0] if name not in layers]
    if owner is not None:
        return {name: weights[owner - 1][name] for name in names}
    return {name: _mean([one[name] for one in weights]) for name in names}


def _mean(values: Sequence[Tensor]) -> Tensor:
    first = values[0]
    return torch.stack([value.double() for value in values]).mean(0).to(first) if first.is_floating_point() else first


def merge_weights(weights: Sequence[Weights], layers: Mapping[str, int], plan: Plan, ends: Weights) -> Weights:
    """Every layer's weights from the run that the plan names for it, all others from `ends`."""
    return {**ends, **{name: weights[plan[layer] - 1][name] for name, layer in layers.items()}}


# --- merging runs -----------------------------------------------------------------------------------------------------


def merge(models: Sequence[FlexibleModel], plan: Plan, owner: int | None = 1) -> FlexibleModel:
    """A new model of the plan's layers; `owner` gives the rest, None: the mean of all."""
    weights, layers = [model.state_dict() for model in models], layer_weights(models[0])
    merged = copy.deepcopy(models[0])
    merged.load_state_dict(merge_weights(weights, layers, plan, end_weights(weights, layers, owner)))
    return merged


@torch.inference_mode()
def score_merges(
    models: Sequence[FlexibleModel],
    data: Dataset,
    count: int,
    *,
    owner: int | None = 1,
    seed: int = 0,
    batch_size: int = 256,
    on_progress: OnProgress | None = None,
) -> list[Accuracy]:
    """Mean accuracy of random merges, each also in a random order of its own where the models can.

    Every batch is read once and shown to one model that changes its layers: images may cost more than weights.
    """
    weights, layers = [model.state_dict() for model in models], layer_weights(models[0])
    ends = end_weights(weights, layers, owner)
    merged, rng = copy.deepcopy(models[0]).eval(), random.Random(seed)
    device = next(merged.parameters()).device
    depth = count_layers(merged)
    draws = [(random_plan(len(models), depth, rng), orders(merged, rng)) for _ in range(count)]
    sums = {order: torch.zeros(count, 2, dtype=torch.float64) for order in draws[0][1]}
    for indices in torch.split(torch.arange(len(data)), batch_size):
        x, y = to_device(data.batch(indices), device)
        for draw, (plan, ways) in enumerate(draws):
            merged.load_state_dict(merge_weights(weights, layers, plan, ends))
            for order, logits in answers(merged, x, ways).items():
                sums[order][draw] += hits(logits, y)
            if on_progress is not None:
                on_progress(len(indices))
    n, found = len(data), []
    for order, right in sums.items():
        (top1, top5), (off1, off5) = (right / n).mean(0).tolist(), (right / n).std(0, correction=0).tolist()
        found.append(Accuracy(order, top1, top5, n, off1, off5, count))
    return found


def merge_to(out: Path, planned: PlannedMerge, test: Any, on_progress: OnProgress | None = None) -> FlexibleModel:
    """Writes the merged model as a run, scored on the test samples; its manifest says where the layers come from."""
    plan, owner = planned.plan, planned.owner
    facts = {
        "plan": list(plan),
        "ends": MEAN if owner is None else owner,
        "runs": [{"run": one.name, "weights": one.digest} for one in planned.inputs],
    }
    model = merge(planned.models, plan, owner)
    score_and_save(planned.inputs[(owner or 1) - 1].recipe, out, model, test, {"merged": facts}, on_progress)
    return model
