"""What a trained network of the comparison (compare.py) does: every point right or wrong on every test picture, and its
times beside a reference, in PyTorch and exported. Each step is kept in a file of its own: an interruption loses one.
"""

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import supple
from supple import checkpoint, files
from supple.data.loaders import as_batches, at_most
from supple.data.splits import Splits
from supple.errors import RecipeError
from supple.experiments.results import pack
from supple.exporting.write import Held, Wanted, up_to_date
from supple.exporting.write import export as write_graphs
from supple.inference.bundle import Bundle, open_bundle
from supple.inference.compare import compare
from supple.inference.predictor import Predictor
from supple.inference.select import Choice, checked, of_bundle, of_model
from supple.machine import has_bf16
from supple.model import FlexibleModel
from supple.policy.policy import Policy
from supple.scoring import evaluate

BATCHES = (1, 16)
REFERENCE = "reference"
ENGINES = {"onnx": "onnxruntime", "openvino": "openvino"}
EVERYTHING = 1.0  # of the score: what int8 loses is reported, not refused
ALL_KINDS = (("onnx", "fp32"), ("onnx", "int8"), ("openvino", "fp32"), ("openvino", "int8"))
SOME_KINDS = (("onnx", "fp32"), ("openvino", "fp32"))
MOST_LOST = 0.005  # of the accuracy, by policies that are near the full network
WITHIN_LOST = f"about {100 * MOST_LOST:g} points"
SHARES = tuple(step / 20 for step in range(19, 1, -1))  # of the full network's MACs, as budgets of policies
CASCADE = ("width=0.5", "width=0.75", "full")
TIMED_BATCHES = 1000  # of those that a policy answers, so many are timed, in turn with the full network


class Steps:
    """What was measured of a run so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def __call__(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.known:
            self.known[name] = make()
            files.write(self.path, json.dumps(self.known))
        return self.known[name]


@dataclass(frozen=True)
class Bench:
    """Where and how things are measured."""

    splits: Splits
    threads: int
    rounds: int
    reference: FlexibleModel  # the full static network, untrained: every run is timed beside it
    runs: Path

    def export(self, model: FlexibleModel, out: Path, to: str, precision: str) -> Bundle:
        """A folder of graphs; one that is there and up to date stays."""
        wanted, weights = Wanted(to, precision, max_drop=EVERYTHING), checkpoint.digest(model)
        if up_to_date(out, model, weights, wanted) is None:
            held = Held(self.splits.train, self.splits.val, at_most(self.splits.test, 256))
            write_graphs(model, weights, out, wanted, held)
        return open_bundle(out)

    def references(self) -> dict[str, Bundle]:
        folder = self.runs / REFERENCE
        return {
            to: self.export(self.reference, folder.with_name(f"{REFERENCE}-{to}"), to, "fp32") for to, _ in SOME_KINDS
        }

    def reference_call(self) -> Callable[[Any], torch.Tensor]:
        """The reference network as plain PyTorch, from an array to logits."""
        network = self.reference.get_submodule("backbone").eval()

        def call(x: Any) -> torch.Tensor:
            with torch.inference_mode():
                logits: torch.Tensor = network(torch.from_numpy(x))
                return logits

        return call


def own_choices(bundle: Bundle) -> list[Choice]:
    """The engine that a folder was made for; OpenVINO also opens what was made for ONNX Runtime."""
    return [choice for choice in checked(bundle) if choice.engine == ENGINES[bundle.kind]]


def kinds(every: bool) -> list[tuple[str, str]]:
    """What a network is exported to: folders, and the precision that they run in."""
    found = [*(ALL_KINDS if every else SOME_KINDS)]
    return [*found, ("openvino", "bf16")] if every and has_bf16() else found


# --- right or wrong ---------------------------------------------------------------------------------------------------


def answers_of_model(model: FlexibleModel, data: Any) -> dict[str, Any]:
    """Of every point, packed."""
    found: dict[str, list[torch.Tensor]] = {}

    def note(x: Any, y: Any, outputs: Mapping[str, Any]) -> None:
        for name, output in outputs.items():
            found.setdefault(name, []).append(output.logits.argmax(1) == y)

    evaluate(model, data, beside=note)
    return {name: pack(torch.cat(parts).cpu().numpy()) for name, parts in found.items()}


def answers_of(one: Predictor, data: Any) -> dict[str, Any]:
    """The same of a predictor's points."""
    found: dict[str, list[Any]] = {name: [] for name in one.graphs.points}
    for x, y in arrays(data, 100):
        for name, parts in found.items():
            parts.append(one.run_point(name, (x,)).argmax(1) == y)
    return {name: pack(np.concatenate(parts)) for name, parts in found.items()}


def arrays(data: Any, batch: int) -> Iterator[tuple[Any, Any]]:
    for x, y, _ in as_batches(data).in_order(batch):
        yield x.numpy(), y.numpy()


# --- times ------------------------------------------------------------------------------------------------------------


def times_of(bench: Bench, model: FlexibleModel, bundles: Sequence[Bundle], batch: int) -> list[dict[str, Any]]:
    """Every point on every engine in every precision, in turn, each beside the reference on the same engine."""
    made: list[tuple[Choice, Predictor]] = [(Choice("torch"), of_model(model, bench.threads))]
    for bundle in (*bundles, *bench.references().values()):
        made += [(choice, of_bundle(bundle, choice.engine, bench.threads)) for choice in own_choices(bundle)]
    reference = bench.reference_call()
    how: dict[str, Any] = {"batch": batch, "threads": bench.threads, "rounds": bench.rounds, "seconds": 600.0}
    found = list(compare(made, {REFERENCE: lambda x: reference(x[0])}, **how))
    for _, one in made:
        one.close()
    beside = {"torch": next(row.p50_ms for row in found if row.point == REFERENCE)}
    beside |= {row.engine: row.p50_ms for row in found if (row.folder or "").startswith(REFERENCE)}
    own = [row for row in found if row.point != REFERENCE and not (row.folder or "").startswith(REFERENCE)]
    names = ("point", "engine", "precision", "batch", "p50_ms", "p95_ms", "iqr_ms")
    return [{**{name: getattr(row, name) for name in names}, "reference_ms": beside[row.engine]} for row in own]


# --- policies ---------------------------------------------------------------------------------------------------------


def near_full(
    model: FlexibleModel, held: Any, points: Sequence[str] | None = None, lost: float = MOST_LOST
) -> Policy | None:
    """The policy of the smallest budget of MACs that, like all larger ones, loses at most this much, as the validation
    pictures estimate it. `max_drop` promises more: it keeps two standard errors in reserve, which of 1,000 pictures are
    more than half a point. None: no budget below the full network's cost does.
    """
    found = None
    for share in SHARES:
        try:
            policy = supple.calibrate(model, held, points=points, budget_macs=f"{share:g}x")
        except RecipeError:  # below the cheapest point
            break
        if estimated_loss(policy) > lost:
            break
        found = policy
    return found


def estimated_loss(policy: Policy) -> float:
    """Of accuracy against the full model, on the half of the pictures that decided and on the other one."""
    halves = [policy.facts[half] for half in ("expected", "achieved")]
    lost = sum(half["n"] * (half["full_accuracy"] - half["accuracy"]) for half in halves)
    return float(lost / sum(half["n"] for half in halves))


def policies_of(bench: Bench, model: FlexibleModel) -> dict[str, Policy]:
    """Calibrated on the validation pictures: the exits of full width, and a cascade of widths. What no policy of some
    points can reach is said and left out."""
    found, held = {}, bench.splits.val
    for name, points in (("exits", None), ("widths", CASCADE)):
        if (policy := near_full(model, held, points)) is not None:
            found[f"{name}, {WITHIN_LOST}"] = policy
        else:
            print(f"policy {name}: no budget of MACs loses as little as {100 * MOST_LOST:g} points", flush=True)
        try:
            found[f"{name}, half of the MACs"] = supple.calibrate(model, held, points=points, budget_macs="0.5x")
        except RecipeError as error:
            print(f"policy {name}, half of the MACs: {error.cause}", flush=True)
    model.policy = None
    return found


def follow(one: Predictor, data: Any, batch: int, static: Callable[[Any], Any] | None = None) -> dict[str, Any]:
    """A policy on all test pictures, and in turn with it the full network, or another one: milliseconds of a batch."""
    spent: dict[str, list[float]] = {"policy": [], "static": []}
    right, where = [], dict.fromkeys((str(point) for point in (one.policy.points if one.policy else ())), 0)
    one.warm(batch)
    ways: dict[str, Callable[[Any], Any]] = {
        "static": static or (lambda x: one.predict(x, point="full")),
        "policy": lambda x: one.predict(x, confident=True),
    }
    for turn, (x, y) in enumerate(arrays(data, batch)):
        order = ["static", "policy"] if turn < TIMED_BATCHES else ["policy"]
        for way in order[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            answers = ways[way](x)
            if turn < TIMED_BATCHES:
                spent[way].append(1000 * (time.perf_counter() - start))
            if way == "policy":
                right += [answer.label == one.classes[label] for answer, label in zip(answers, y)]
                for answer in answers:
                    where[answer.point] = where.get(answer.point, 0) + 1
    p50, p95 = np.percentile(spent["policy"], (50, 95))
    times = {"p50_ms": float(p50), "p95_ms": float(p95), "mean_ms": float(np.mean(spent["policy"]))}
    return {**times, **reference_times(spent["static"]), "where": where, "answers": pack(np.array(right))}


def reference_times(spent: Sequence[float]) -> dict[str, float]:
    """The mean, for a ratio of means; and the median, which is what all times are scaled by."""
    return {"reference_ms": float(np.mean(spent)), "reference_p50_ms": float(np.median(spent))}


Opener = Callable[[Policy], Predictor]  # opens a network so that it follows a policy


def openers(bench: Bench, model: FlexibleModel, bundles: Sequence[Bundle]) -> dict[str, Opener]:
    """A network on every engine in fp32. On PyTorch it is the model itself."""

    def torch_itself(policy: Policy) -> Predictor:
        view = copy.copy(model)
        view.policy = policy
        return of_model(view, bench.threads)

    found: dict[str, Opener] = {"torch": torch_itself}
    for bundle in (bundle for bundle in bundles if bundle.precision == "fp32"):
        for choice in own_choices(bundle):
            found[choice.engine] = lambda policy, bundle=bundle, engine=choice.engine: of_bundle(
                replace(bundle, policy=policy), engine, bench.threads
            )
    return found


def followed(
    bench: Bench, model: FlexibleModel, policies: Mapping[str, Policy], bundles: Sequence[Bundle], steps: Steps
) -> list[Any]:
    """Every policy on every engine: in PyTorch beside the reference network, as all that is timed there."""
    found = []
    for name, policy in policies.items():
        for engine, opened in openers(bench, model, bundles).items():
            for batch in BATCHES:

                def one_way(
                    opened: Opener = opened, policy: Policy = policy, engine: str = engine, batch: int = batch
                ) -> dict[str, Any]:
                    beside = bench.reference_call() if engine == "torch" else None
                    with opened(policy) as one:
                        return follow(one, bench.splits.test, batch, beside)

                key = f"policy {name} {engine} {batch}"
                found.append({"policy": name, "engine": engine, "batch": batch, **steps(key, one_way)})
    return found


# --- all of it --------------------------------------------------------------------------------------------------------


def measure(bench: Bench, model: FlexibleModel, folder: Path, every: bool, follows: bool) -> dict[str, Any]:
    """Points, answers, times, bytes and, of a network that policies can follow, these. folder: of its run."""
    steps, model = Steps(folder.with_name(f"{folder.name}.measured.json")), model.eval()
    torch.set_num_threads(bench.threads)
    found: dict[str, Any] = {"answers": {}, "times": [], "policies": []}
    for name, packed in steps("answers", lambda: answers_of_model(model, bench.splits.test)).items():
        found["answers"][f"{name} fp32"] = packed
    bundles = []
    for to, precision in kinds(every):
        bundles.append(bench.export(model, folder.with_name(f"{folder.name}-{to}-{precision}"), to, precision))
    for bundle in (bundle for bundle in bundles if bundle.precision != "fp32"):
        for choice in own_choices(bundle):

            def score(bundle: Bundle = bundle, choice: Choice = choice) -> dict[str, Any]:
                with of_bundle(bundle, choice.engine, bench.threads) as one:
                    return answers_of(one, bench.splits.test)

            for name, packed in steps(f"answers {choice.engine} {bundle.precision}", score).items():
                found["answers"][f"{name} {bundle.precision} {choice.engine}"] = packed
    for batch in BATCHES:
        found["times"] += steps(f"times {batch}", lambda batch=batch: times_of(bench, model, bundles, batch))
    if follows:
        known = steps("policies", lambda: {k: v.to_json() for k, v in policies_of(bench, model).items()})
        found["policies"] = followed(bench, model, {k: Policy.from_json(v) for k, v in known.items()}, bundles, steps)
    found["bytes"] = {f"{bundle.kind} {bundle.precision}": size_of(bundle.folder) for bundle in bundles}
    return found


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure_early(bench: Bench, other: Any, folder: Path) -> dict[str, Any]:
    """earlyon's wrapper, calibrated by itself (it takes the estimate on the validation pictures as it is, too); answers
    and times of its own calls beside the full network's."""
    from earlyon.core.thresholds import calibrate_thresholds

    steps = Steps(folder.with_name(f"{folder.name}.measured.json"))
    held = [(x, y) for x, y, _ in as_batches(bench.splits.val).in_order(256)]
    torch.set_num_threads(bench.threads)
    calibrate_thresholds(other, held, target_accuracy_drop=MOST_LOST)
    reference = bench.reference_call()

    def run(batch: int) -> dict[str, Any]:
        spent: dict[str, list[float]] = {"other": [], "static": []}
        right: list[bool] = []
        where: dict[str, int] = {}
        for turn, (x, y, _) in enumerate(as_batches(bench.splits.test).in_order(batch)):
            if turn < TIMED_BATCHES:
                start = time.perf_counter()
                reference(x.numpy())
                spent["static"].append(1000 * (time.perf_counter() - start))
            start = time.perf_counter()
            if batch == 1:
                result = other(x, mode="inference")
                logits = result.prediction
            else:
                result = other.forward_inference_batched(x)
                logits = result.predictions
            if turn < TIMED_BATCHES:
                spent["other"].append(1000 * (time.perf_counter() - start))
            right += (logits.argmax(1) == y).tolist()
            where[str(result.exit_taken)] = where.get(str(result.exit_taken), 0) + len(y)
        p50, p95 = np.percentile(spent["other"], (50, 95))
        times = {"p50_ms": float(p50), "p95_ms": float(p95), "mean_ms": float(np.mean(spent["other"]))}
        return {
            **times,
            **reference_times(spent["static"]),
            "where": where,
            "answers": pack(np.array(right)),
        }

    found = []
    for batch in BATCHES:
        timed = steps(f"early {batch}", lambda batch=batch: run(batch))
        found.append({"policy": f"earlyon, {WITHIN_LOST}", "engine": "torch", "batch": batch, **timed})
    return {"answers": {}, "times": [], "policies": found, "bytes": {}}
