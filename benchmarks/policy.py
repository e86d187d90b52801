"""What a calibrated policy saves on a real network: throughput and accuracy against the full model as a static graph.

    supple train recipes/pocket/anytime.yaml --out runs/pocket/anytime
    supple train recipes/pocket/anytime_on.yaml --out runs/pocket/anytime_on
    supple calibrate runs/pocket/anytime_on --budget-macs 0.4x
    supple export runs/pocket/anytime_on                      # and --int8, --to openvino, both
    python benchmarks/policy.py runs/pocket/anytime_on [--batch 1,32] [--threads 2]

All test images, each export on its own engine. Of every batch, the answers of the full model and those of the policy
are timed in turn, each a whole `predict`, and the ratio is that of the sums. Prints Markdown.
"""

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supple.inference.predictor import Predictor
from supple.inference.select import checked, exports_of, of_bundle
from supple.machine import machine
from supple.training.build import data_of

NEVER_SLOWER = 0.97  # on every engine, in every precision, at every size of a batch
GOALS = {("onnxruntime", 32): 1.7}
MAX_DROP = 0.5
WAYS: dict[str, dict[str, Any]] = {"static": {"point": "full"}, "policy": {"confident": True}}

Batches = list[tuple[np.ndarray, np.ndarray]]


def compare(one: Predictor, batches: Batches, batch: int, name: str, precision: str) -> None:
    spent, right = dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0)
    where: Counter[str] = Counter()
    for x, _ in batches[:20]:  # to warm up: an engine may compile a graph for a size of a batch
        for how in WAYS.values():
            one.predict(x, **how)
    for turn, (x, y) in enumerate(batches):
        for way in list(WAYS)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            answers = one.predict(x, **WAYS[way])
            spent[way] += time.perf_counter() - start
            right[way] += sum(answer.label == one.classes[label] for answer, label in zip(answers, y))
            if way == "policy":
                where.update(answer.point for answer in answers)
    count = sum(len(y) for _, y in batches)
    ratio, lost = spent["static"] / spent["policy"], 100 * (right["static"] - right["policy"]) / count
    goal = GOALS.get((name, batch), NEVER_SLOWER)
    missed = "" if ratio >= goal and lost <= MAX_DROP else ": **missed**"
    shares = ", ".join(f"{stage.point} {100 * where[stage.point] / count:.0f} %" for stage in one.stages if stage.point)
    figures = " | ".join(f"{count / spent[way]:.0f} | {100 * right[way] / count:.2f} %" for way in WAYS)
    wanted = f"at least {goal}, at most {MAX_DROP} points less{missed}"
    print(f"| {name}, {precision} | {batch} | {figures} | {ratio:.2f} | {wanted} | {shares} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--batch", default="1,32", help="sizes of batches")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    test = data_of(given.run).test
    print(f"{machine()}, {given.threads} threads, {len(test)} test images\n")
    print("| engine | batch | static images/s | accuracy | policy images/s | accuracy | ratio | goal | who answered |")
    print("|---|---|---|---|---|---|---|---|---|")
    for batch in map(int, given.batch.split(",")):
        parts = [test.batch(indices) for indices in torch.split(torch.arange(len(test)), batch)]
        arrays = [(x.numpy(), y.numpy()) for x, y in parts]
        for bundle in exports_of(given.run):
            for choice in checked(bundle):
                with of_bundle(bundle, choice.engine, given.threads) as one:
                    one.warm()
                    compare(one, arrays, batch, choice.engine, choice.precision)


if __name__ == "__main__":
    main()
