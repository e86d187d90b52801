"""From a run to an exported folder: graphs made, checked on real inputs, and vouched for."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from supple import checkpoint, files
from supple.cost import profile
from supple.data.samples import Dataset
from supple.errors import CheckpointError, RecipeError
from supple.evaluate import Score, evaluate
from supple.export.archives import Archives
from supple.export.check import CHAIN, LAYERS, largest_difference, scores
from supple.export.convert import convert
from supple.export.graphs import Graph, chain_of, given_to, graphs_of, has_attention, one_by_one
from supple.export.quantize import quantize
from supple.export.skipping import skip_graphs
from supple.ladder import Ladder
from supple.model import FlexibleModel, select
from supple.point import Point
from supple.runtime.bundle import FORMAT, KINDS, LADDER, MANIFEST, open_bundle
from supple.runtime.engine import open_engine

CHECKED_ON, CALIBRATED_ON = 8, 128  # held-out and training images
ENGINE = {"onnx": "onnxruntime", "openvino": "openvino"}


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    to: str = "onnx"
    int8: bool = False
    points: tuple[Point, ...] = ()  # none: all
    most_lost: float = 0.01  # int8: a point that loses more of its score on held-out images is left out

    @property
    def precision(self) -> str:
        return "int8" if self.int8 else "fp32"


@dataclass(frozen=True)
class Held:
    """The data that an export needs: to calibrate, to check, to score."""

    train: Dataset
    val: Dataset
    test: Dataset


Watch = Callable[[int], None]


def export(
    model: FlexibleModel, weights: str, out: Path, wanted: Wanted, data: Held, watch: Watch | None = None
) -> dict[str, Any]:
    """Writes the graphs of a model into a new folder, checked; gives its manifest. weights: the digest of their file,
    which the folder is told apart by. `watch` counts graphs.
    """
    x = data.val.batch(torch.arange(min(CHECKED_ON, len(data.val))))[0]
    graphs, chain = all_graphs(model, wanted.points, x)
    made = {}
    for graph, inputs in zip((*graphs, *chain), _seen(graphs, chain, wanted, data)):
        made[graph.name] = _made(graph, wanted, inputs)
        if watch is not None:
            watch(1)
    manifest = {
        "format": FORMAT,
        "kind": "export",
        "to": wanted.to,
        "precision": wanted.precision,
        "checkpoint": weights,
        "task": model.task,
        "classes": list(model.classes),
        "input_shape": model.input_shape,
        "preprocess": model.preprocess.to_json() if model.preprocess is not None else None,
        "points": {str(graph.point): {"file": _opened(made[graph.name], wanted.to)} for graph in graphs},
        "stages": [
            {"file": _opened(made[g.name], wanted.to), "point": g.point and str(g.point), "role": g.role} for g in chain
        ],
        "policy": policy_of(model),
        "asked": [str(point) for point in wanted.points],
        "most_lost": wanted.most_lost,
        "versions": checkpoint.versions(),
    }
    with files.folder(out) as part:
        _write(part, manifest, {name: content for parts in made.values() for name, content in parts.items()})
        _check(model, part, manifest, wanted, data, x)
    return manifest


def all_graphs(model: FlexibleModel, points: Sequence[Point], x: Any) -> tuple[list[Graph], list[Graph]]:
    """The graphs of points, and those of the chain if the model has one."""
    if model.task == "boxes":
        raise RecipeError(
            "a detector cannot be exported: how many objects there are depends on the picture.",
            "Use the run itself: supple predict RUN FILES.",
        )
    two = select(x, torch.arange(2) % len(_pytree.tree_leaves(x)[0]))
    wanted = model.order(points or (*model.points, *model.settled))
    return graphs_of(model, wanted, two), skip_graphs(model, two) or chain_of(model, two, wanted)


def _seen(graphs: list[Graph], chain: list[Graph], wanted: Wanted, data: Held) -> list[tuple[Tensor, ...]]:
    """What each graph is calibrated with."""
    if not wanted.int8:
        return [()] * (len(graphs) + len(chain))
    x = data.train.batch(torch.arange(min(CALIBRATED_ON, len(data.train))))[0]
    return [tuple(_pytree.tree_leaves(x))] * len(graphs) + given_to(chain, x)


def _made(graph: Graph, wanted: Wanted, inputs: tuple[Tensor, ...]) -> dict[str, bytes]:
    parts = convert(graph, wanted.to)
    if not wanted.int8 or graph.role == "gate":  # a gate is one product, and its score must not shift
        return parts
    return quantize(graph, parts, wanted.to, one_by_one(inputs), has_attention(graph.module))


def _check(model: FlexibleModel, out: Path, manifest: dict[str, Any], wanted: Wanted, data: Held, x: Any) -> None:
    """fp32: the values. int8: the score on held-out images; points that lose too much go. Then the ladder."""
    bundle = open_bundle(out)
    archives = wanted.to == "torch-export"
    engine = Archives(bundle) if archives else open_engine(ENGINE[wanted.to], bundle, torch.get_num_threads())
    known = {row.point: row for row in (*profile(model), *model.ladder)}
    found: dict[str, float] = {}
    if wanted.int8:
        before = {score.name: score for score in evaluate(model, data.val, model.order(bundle.answering))}
        after = scores(model, bundle, engine, data.val)
        manifest["lost"] = {what: _lost(before[what.partition(", ")[0]], score) for what, score in after.items()}
        _leave_out(out, manifest, [what for what, lost in manifest["lost"].items() if lost > wanted.most_lost])
        found = scores(model, open_bundle(out), engine, data.test)
    else:
        manifest["difference"] = largest_difference(model, bundle, engine, x)
    engine.close()
    ladder = Ladder()
    for point in manifest["points"]:
        row = known[point]
        facts = {**row.counts(), "metric": row.metric, "score": found.get(point, row.score), "n": row.n}
        ladder.update(point, engine.name, wanted.precision, higher_is_better=row.higher_is_better, **facts)
    files.write(out / LADDER, json.dumps({"checkpoint": manifest["checkpoint"], **ladder.to_json()}, indent=1))
    _vouch(out, manifest)


def _lost(before: Score, after: float) -> float:
    """Of a score that is better when higher, the difference; of an error, its relative growth."""
    return before.score - after if before.higher_is_better else after / max(before.score, 1e-9) - 1


def _leave_out(out: Path, manifest: dict[str, Any], names: list[str]) -> None:
    """Drops the graphs of points that lost too much; along a chain, their stages no longer answer."""
    for point in [name for name in names if name in manifest["points"]]:
        _unlink(out, manifest["points"].pop(point)["file"])
    stages, kept = manifest["stages"], 0 if any(name.endswith(LAYERS) for name in names) else len(manifest["stages"])
    for stage in stages:
        if f"{stage['point']}{CHAIN}" in names:
            stage["point"] = None  # it runs, and does not answer
    while kept and stages[kept - 1]["point"] is None and stages[kept - 1]["role"] == "stage":
        kept -= 1  # nobody answers behind the last one that does
    for stage in stages[kept:]:
        _unlink(out, stage["file"])
    manifest["stages"] = stages[:kept]
    manifest["left_out"] = names
    if not manifest["points"]:
        cure = "Allow more with --most-lost, or leave --int8 out."
        raise CheckpointError("every point loses more in int8 than is allowed.", cure)
    _vouch(out, manifest)


def _unlink(out: Path, name: str) -> None:
    for path in (out / name, (out / name).with_suffix(".bin")):  # OpenVINO's weights lie beside the graph
        path.unlink(missing_ok=True)


def _write(out: Path, manifest: dict[str, Any], contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        files.write(out / name, content)
    _vouch(out, manifest)


def _vouch(out: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest with the digests of all graphs that are there."""
    there = sorted(path for path in out.iterdir() if path.name not in (MANIFEST, LADDER) and path.is_file())
    digests = {path.name: files.sha256(path) for path in there}
    files.write(out / MANIFEST, json.dumps({**manifest, "files": digests}, indent=1))


def _opened(parts: dict[str, bytes], to: str) -> str:
    """Of the files of one graph, the one that is opened."""
    return next(name for name in parts if name.endswith(KINDS[to]))


def renew(folder: Path, policy: Any) -> None:
    """Other thresholds for graphs that stay as they are."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    files.write(folder / MANIFEST, json.dumps({**manifest, "policy": policy}, indent=1))


def policy_of(model: FlexibleModel) -> Any:
    """The thresholds of `supple calibrate` as JSON has them; None if there are none."""
    policy = getattr(model, "policy", None)
    return None if policy is None else json.loads(json.dumps(policy.to_json()))
