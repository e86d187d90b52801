"""What a calibrated policy saves on a real network: throughput and accuracy against the full model as a static graph.

    supple train recipes/pocket/anytime.yaml --out runs/pocket/anytime
    supple train recipes/pocket/anytime_on.yaml --out runs/pocket/anytime_on
    supple calibrate runs/pocket/anytime_on --budget-macs 0.4x
    supple export runs/pocket/anytime_on                      # and --int8, --to openvino, both
    python benchmarks/policy.py runs/pocket/anytime_on [--batch 32] [--threads 2]

All test images in batches, each export on its own engine; samples that are sure leave the batch. The static and the
confident answers to a batch are timed in turn, and the ratio is that of the sums. Prints Markdown.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from supple.inference.predictor import Predictor
from supple.inference.select import checked, exports_of, of_bundle
from supple.machine import machine
from supple.training.build import data_of

GOALS = {"onnxruntime": 1.7, "openvino": 0.97}  # of every engine, in every precision
MAX_DROP = 0.5


def compare(one: Predictor, batches: list[tuple[np.ndarray, np.ndarray]], name: str, precision: str) -> None:
    static = confident = 0.0
    right = {"static": 0, "confident": 0}
    where: Counter[str] = Counter()
    for x, _ in batches[:20]:  # to warm up: some engines compile for every size of a batch
        one.run_point("full", (x,))
        one.predict(x, confident=True)
    for x, y in batches:
        start = time.perf_counter()
        logits = one.run_point("full", (x,))
        middle = time.perf_counter()
        answers = one.predict(x, confident=True)
        end = time.perf_counter()
        static, confident = static + middle - start, confident + end - middle
        right["static"] += int((logits.argmax(1) == y).sum())
        right["confident"] += sum(answer.label == one.classes[label] for answer, label in zip(answers, y))
        where.update(answer.point for answer in answers)
    count = sum(len(y) for _, y in batches)
    ratio, lost = static / confident, 100 * (right["static"] - right["confident"]) / count
    goal = f"at least {GOALS[name]}, at most {MAX_DROP} points less"
    missed = "" if ratio >= GOALS[name] and lost <= MAX_DROP else ": **missed**"
    shares = ", ".join(
        f"{point} {100 * where[point] / count:.0f} %" for point in filter(None, (stage.point for stage in one.stages))
    )
    before = f"{count / static:.0f} | {100 * right['static'] / count:.2f} %"
    after = f"{count / confident:.0f} | {100 * right['confident'] / count:.2f} %"
    print(f"| {name}, {precision} | {before} | {after} | {ratio:.2f} | {goal}{missed} | {shares} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    test = data_of(given.run).test
    batches = [test.batch(indices) for indices in torch.split(torch.arange(len(test)), given.batch)]
    batches = [(x, y) for x, y in batches if len(y) == given.batch]  # what decides is measured once for every size
    arrays = [(x.numpy(), y.numpy()) for x, y in batches]
    print(f"{machine()}, {given.threads} threads, batch {given.batch}, {len(test)} test images\n")
    print("| engine | static images/s | accuracy | policy images/s | accuracy | ratio | goal | who answered |")
    print("|---|---|---|---|---|---|---|---|")
    for bundle in exports_of(given.run):
        for choice in checked(bundle):
            with of_bundle(bundle, choice.engine, given.threads) as one:
                compare(one, arrays, choice.engine, choice.precision)


if __name__ == "__main__":
    main()
