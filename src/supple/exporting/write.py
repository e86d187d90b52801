"""From a run to an exported folder: graphs made, checked on real inputs, and listed with their digests."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from supple import files
from supple.cost import profile_others
from supple.data.loaders import as_batches
from supple.errors import CheckpointError, RecipeError
from supple.exporting.check import Archives, largest_difference, losses, scores
from supple.exporting.convert import convert
from supple.exporting.graphs import Chain, Graph, chain_of, given_to, graphs_of, has_attention, one_by_one, skip_graphs
from supple.exporting.metadata import metadata, write_metadata
from supple.exporting.quantize import quantize
from supple.inference.bundle import FORMAT, KINDS, LADDER, MANIFEST, Bundle, Check, is_bundle, open_bundle
from supple.inference.engines import MAX_DROP, Engine, available, must_have_bf16, open_engine
from supple.ladder import Ladder
from supple.machine import machine, versions
from supple.model import FlexibleModel, example, select
from supple.point import Point
from supple.scoring import OnProgress
from supple.tasks import get_task
from supple.text import first

CHECKED_ON, CALIBRATED_ON = 8, 128  # validation and training images


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    to: str = "onnx"
    precision: str = "fp32"
    points: tuple[Point, ...] = ()  # none: all
    max_drop: float = MAX_DROP  # int8, bf16: a point that loses clearly more on validation images is left out
    chain: bool = True  # whether the stages of a model are written beside its points


@dataclass(frozen=True)
class Held:
    """The data that an export needs, data sets or loaders. None: fp32 is checked on noise, and nothing is scored."""

    train: Any = None  # to calibrate int8
    val: Any = None  # to check
    test: Any = None  # to score int8 and bf16


NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}
INT8: dict[str, tuple[str, ...]] = {"onnx": (), "openvino": ("nncf",)}


def precision_of(to: str, int8: bool, bf16: bool) -> str:
    """The precision asked for, if graphs of this kind can have it and this processor does."""
    if to not in KINDS:
        raise RecipeError(f'--to is "{to}".', f"Possible: {', '.join(KINDS)}.")
    if int8 and bf16:
        raise RecipeError("--int8 and --bf16 are both given.", "Give one of them.")
    if int8 and to not in INT8:
        raise RecipeError(f"--int8 is not for {to}.", f"Use --to {' or '.join(INT8)}.")
    if bf16 and to != "openvino":
        raise RecipeError(f"--bf16 is not for {to}: ONNX Runtime is no faster in bf16.", "Use --to openvino.")
    if bf16:
        must_have_bf16("--bf16")
    precision = "int8" if int8 else "bf16" if bf16 else "fp32"
    for package in NEEDED.get(to, ()) + (INT8[to] if int8 else ()):
        if find_spec(package) is None:
            raise RecipeError(f"--to {to} needs {package}, which is not installed.", "pip install 'supple[export]'")
    return precision


def up_to_date(folder: Path, model: FlexibleModel, weights: str, wanted: Wanted) -> Bundle | None:
    """The folder if it is there and what would be written, now with the model's policy; None: it is not there."""
    if not is_bundle(folder):
        return None
    there = open_bundle(folder)
    other = None
    if there.checkpoint != weights:
        other = "from other weights"
    elif (there.kind, there.precision) != (wanted.to, wanted.precision):
        other = f"for {there.kind} in {there.precision}"
    elif there.asked != tuple(map(str, wanted.points)):
        other = f"for {first(there.asked) or 'all points'}"
    elif not there.asked and not has_all(there, model):
        other = "before the points of the run changed"
    elif wanted.precision != "fp32" and there.max_drop != wanted.max_drop:
        other = f"with --max-drop {there.max_drop:g}"
    elif missing := replace(there, policy=model.policy).missing():
        other = f"without {first(missing)}, which supple calibrate has named since"
    if other is not None:
        raise RecipeError(f"{folder} was made {other}.", f"Give another --out, or remove it first: rm -r {folder}")
    if there.policy != model.policy:
        replace_policy(folder, policy_of(model))
    return open_bundle(folder)


def has_all(bundle: Bundle, model: FlexibleModel) -> bool:
    """Whether a folder was made for all points that a model has now: it has them, or has left them out for losing too
    much."""
    there = {*bundle.graphs.points, *(name for check in bundle.checks for name in check.left_out)}
    return {str(point) for point in (*model.points, *model.settled)} <= there


def number_of_graphs(model: FlexibleModel, wanted: Wanted) -> int:
    assert model.input_shape is not None
    points, chain = all_graphs(model, wanted.points, example(model.input_shape, 2))
    return len(points) + len(chain.graphs)


def export(
    model: FlexibleModel, weights: str, out: Path, wanted: Wanted, data: Held, on_progress: OnProgress | None = None
) -> dict[str, Any]:
    """Writes the graphs of a model into a new folder, checked; gives its manifest. weights: the digest of their file,
    which the folder is told apart by. `on_progress` counts graphs.
    """
    assert model.input_shape is not None
    x = example(model.input_shape, CHECKED_ON, torch.randn) if data.val is None else first_of(data.val, CHECKED_ON)
    graphs, chain = all_graphs(model, wanted.points, x, wanted.chain)
    made = {}
    for graph, inputs in zip((*graphs, *chain.graphs), _seen(graphs, chain, wanted, data)):
        made[graph.name] = _made(graph, wanted, inputs)
        if on_progress is not None:
            on_progress(1)

    def file(graph: Graph | None) -> str | None:
        """Of the files of a graph, the one that is opened."""
        return None if graph is None else next(name for name in made[graph.name] if name.endswith(KINDS[wanted.to]))

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
        "points": {str(graph.point): file(graph) for graph in graphs},
        "stages": [
            {"body": file(body), "head": file(head), "point": None if head is None else str(head.point)}
            for body, head in chain.stages
        ],
        "layers": [{"role": graph.role, "file": file(graph)} for graph in chain.layers],
        "inputs": {file(graph): list(graph.takes) for graph in (*graphs, *chain.graphs)},
        "policy": policy_of(model),
        "asked": [str(point) for point in wanted.points],
        "max_drop": wanted.max_drop,
        "checks": [],
        "versions": versions(),
    }
    with files.folder(out) as part:
        _write(part, manifest, {name: content for parts in made.values() for name, content in parts.items()})
        ladder = _check(model, part, manifest, wanted, data, x)
        for graph in (*graphs, *chain.graphs):
            if file(graph) in manifest["inputs"]:  # the others lost too much
                write_metadata(part / str(file(graph)), metadata(model, graph, wanted.precision, ladder))
        files.write(part / LADDER, json.dumps({"checkpoint": weights, **ladder.to_json()}, indent=1))
        write_manifest(part, manifest)
    return manifest


def must_be_exportable(model: FlexibleModel) -> None:
    if not get_task(model.task).exportable:
        cause = f"graphs cannot answer the task {model.task}: how many outputs there are depends on the sample."
        raise RecipeError(cause, "Use the run itself: supple predict RUN FILES.")


def all_graphs(model: FlexibleModel, points: Sequence[Point], x: Any, chain: bool = True) -> tuple[list[Graph], Chain]:
    """The graphs of points, and those of the chain if the model has one and it is wanted."""
    must_be_exportable(model)
    two = select(x, torch.arange(2) % len(_pytree.tree_leaves(x)[0]))
    wanted = model.order(points) if points else model.offered
    layers = skip_graphs(model, two)  # without which such a model cannot be run at all
    if not chain and not layers:
        return graphs_of(model, wanted, two), Chain([], [])
    return graphs_of(model, wanted, two), Chain([], layers) if layers else chain_of(model, two, wanted)


def _seen(graphs: list[Graph], chain: Chain, wanted: Wanted, data: Held) -> list[tuple[Tensor, ...]]:
    """What each graph is calibrated with."""
    if wanted.precision != "int8":
        return [()] * (len(graphs) + len(chain.graphs))
    x = first_of(data.train, CALIBRATED_ON)
    return [tuple(_pytree.tree_leaves(x))] * len(graphs) + given_to(chain, x)


def first_of(data: Any, count: int) -> Any:
    """The first inputs of some data, as one batch."""
    parts, there = [], 0
    for x, _, samples in as_batches(data).in_order(count):
        parts.append(x)
        there += samples
        if there >= count:
            break
    whole = _pytree.tree_map(lambda *tensors: torch.cat(tensors), *parts)
    return select(whole, torch.arange(min(count, there)))


def _made(graph: Graph, wanted: Wanted, inputs: tuple[Tensor, ...]) -> dict[str, bytes]:
    parts = convert(graph, wanted.to)
    if wanted.precision != "int8" or graph.role == "gate":  # a gate is one product, and its score must not shift
        return parts
    return quantize(graph, parts, wanted.to, one_by_one(inputs), has_attention(graph.module))


def _check(model: FlexibleModel, out: Path, manifest: dict[str, Any], wanted: Wanted, data: Held, x: Any) -> Ladder:
    """Every engine that opens the folder, in every precision that it may run in. Gives the ladder."""
    bundle, ladder, checks = open_bundle(out), Ladder(), []
    for name, precision in pairs(wanted):
        archives = wanted.to == "torch-export"
        threads = torch.get_num_threads()
        engine = Archives(bundle) if archives else open_engine(name, bundle, threads, precision)
        if precision == "fp32":
            check = Check(name, precision, machine(), largest_difference(model, bundle, engine, x))
        else:
            check = _gated(model, bundle, engine, wanted, data)
        _rows(ladder, model, bundle.after(check), check, engine, data)
        engine.close()
        checks.append(check)
    _tidy(out, manifest, bundle, checks, wanted)
    return ladder


def pairs(wanted: Wanted) -> list[tuple[str, str]]:
    """Engines and precisions that a folder is checked with: bf16 in fp32 too, for processors without it."""
    precisions = ("fp32", "bf16") if wanted.precision == "bf16" else (wanted.precision,)
    names = ["torch"] if wanted.to == "torch-export" else available(wanted.to)
    return [(name, precision) for name in names for precision in precisions]


def _gated(model: FlexibleModel, bundle: Bundle, engine: Engine, wanted: Wanted, data: Held) -> Check:
    """What a precision loses of the score on validation images, all of them, and which points lose too much. Training
    images would be more, but a network is sure of those: they lose less than others do."""
    points = model.order(map(Point.parse, bundle.graphs.answering()))
    before, found = losses(model, bundle.graphs, engine, data.val, points)
    lost, error = ({what: getattr(loss, name) for what, loss in found.items()} for name in ("lost", "error"))
    check = Check(engine.name, engine.precision, machine(), lost=lost, error=error, samples=before[0].n)
    return replace(check, left_out=check.losing(wanted.max_drop))


def _rows(ladder: Ladder, model: FlexibleModel, bundle: Bundle, check: Check, engine: Engine, data: Held) -> None:
    """fp32: scores as the run has them. int8 and bf16: scored on test images, for this machine's instruction set."""
    own = model.ladder.where(engine="torch", precision="fp32")
    known = {row.point: row for row in (*own, *profile_others(model, own, bundle.graphs.points))}
    measured = check.precision != "fp32"
    found, n = scores(model, bundle.graphs, engine, data.test) if measured and bundle.graphs.points else ({}, 0)
    for point in bundle.graphs.points:
        row = known[point]
        facts = {**row.counts(), "metric": row.metric, "score": row.score, "score_error": row.score_error, "n": row.n}
        if measured:
            facts |= {"metric": get_task(model.task).metric, "score": found[point].score, "n": n}
            facts |= {"score_error": found[point].error, "lost": check.lost[point], "lost_error": check.error[point]}
        where = {"machine": check.machine} if measured else {}
        higher = get_task(model.task).higher_is_better
        ladder.update(point, check.engine, check.precision, **where, higher_is_better=higher, **facts)


def _tidy(out: Path, manifest: dict[str, Any], bundle: Bundle, checks: list[Check], wanted: Wanted) -> None:
    """Drops the graphs that no engine is left to run."""
    left = [bundle.after(check).graphs for check in checks]
    if not any(one.points for one, check in zip(left, checks) if check.precision == wanted.precision):
        cure = f"Allow more with --max-drop, or leave --{wanted.precision} out."
        judged = next(check.samples for check in checks if check.precision == wanted.precision)
        cause = f"every point loses more in {wanted.precision} than is allowed, on {judged} validation samples."
        raise CheckpointError(cause, cure)
    used = {name for one in left for name in one.names()}
    for name in set(bundle.graphs.names()) - used:
        _unlink(out, name)
    manifest["points"] = {point: name for point, name in manifest["points"].items() if name in used}
    manifest["inputs"] = {name: names for name, names in manifest["inputs"].items() if name in used}
    manifest["stages"] = manifest["stages"][: max(len(one.stages) for one in left)]
    for stage in manifest["stages"]:
        if stage["head"] not in used:
            stage["head"] = stage["point"] = None
    manifest["layers"] = manifest["layers"] if any(one.layers for one in left) else []
    manifest["checks"] = [asdict(check) for check in checks]


def _unlink(out: Path, name: str) -> None:
    for path in (out / name, (out / name).with_suffix(".bin")):  # OpenVINO's weights lie beside the graph
        path.unlink(missing_ok=True)


def _write(out: Path, manifest: dict[str, Any], contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        files.write(out / name, content)
    write_manifest(out, manifest)


def write_manifest(out: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest with the digests of all graphs that are there."""
    there = sorted(path for path in out.iterdir() if path.name not in (MANIFEST, LADDER) and path.is_file())
    digests = {path.name: files.sha256(path) for path in there}
    files.write(out / MANIFEST, json.dumps({**manifest, "files": digests}, indent=1))


def replace_policy(folder: Path, policy: Any) -> None:
    """Other thresholds for graphs that stay as they are."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    files.write(folder / MANIFEST, json.dumps({**manifest, "policy": policy}, indent=1))


def policy_of(model: FlexibleModel) -> Any:
    """The thresholds of `supple calibrate` as JSON has them; None if there are none."""
    policy = model.policy
    return None if policy is None else json.loads(json.dumps(policy.to_json()))
