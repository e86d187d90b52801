"""Whether answers come in time, and what answering costs: random deadlines, switching, overhead, the first answer.

    supple train recipes/pocket/anytime.yaml --out runs/pocket/anytime && supple export runs/pocket/anytime
    python benchmarks/deadlines.py runs/pocket/anytime [--calls 2000] [--threads 2]     # or anytime_on

The run must have exits and be exported. Accuracies are those of its test images. Prints Markdown.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from supple.inference.predictor import Predictor
from supple.inference.select import exports_of, of_bundle
from supple.inference.timing import percentiles
from supple.machine import machine
from supple.training.build import data_of

IN_TIME, OF_IDEAL = 0.99, 0.98


def arrays(run: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    test = data_of(run).test
    x, y = test.batch(torch.linspace(0, len(test) - 1, min(count, len(test))).long())  # of all classes
    return x.numpy(), y.numpy()


def per_exit(one: Predictor, x: np.ndarray, rounds: int = 50) -> list[tuple[float, float, float]]:
    """p50, p95 and p99 in ms of the chain up to each exit."""
    ended = [through(one, x[i % len(x)][None]) for i in range(rounds)]
    return [percentiles([ms for ms, _ in stage]) for stage in zip(*ended)]


def first_exit(one: Predictor, x: np.ndarray, calls: int = 200) -> float:
    """p95 in ms of asking for the first exit, the whole chain in between as later on: nothing is answered sooner."""
    name, asked = next(stage.point for stage in one.stages if stage.point is not None), []
    for call in range(calls):
        given = x[call % len(x)][None]
        asked.append(one.predict(given, point=name)[0].elapsed_ms)
        through(one, given)
    return percentiles(asked)[1]


def through(one: Predictor, given: np.ndarray) -> list[tuple[float, np.ndarray | None]]:
    """When each stage of the chain ended, in ms, and what it answered."""
    state, start, ended = (given,), time.perf_counter(), []
    for stage in one.stages:
        state = state if stage.body is None else one.engine.run(stage.body, state)
        logits = None if stage.head is None else one.engine.array(one.engine.run(stage.head, state)[0])
        ended.append((1000 * (time.perf_counter() - start), logits))
    return ended


def deadlines(one: Predictor, x: np.ndarray, y: np.ndarray, calls: int) -> None:
    """Deadlines drawn between the p95 of a call that asks for the first exit and twice that of the full model. The
    ideal knows how long all stages take for the very input: it takes the deepest exit that is finished in time.
    """
    low, high = first_exit(one, x), 2 * per_exit(one, x)[-1][1]
    rng = np.random.default_rng(0)
    in_time, right, best = 0, 0, 0.0
    names = [stage.point for stage in one.stages if stage.point is not None]
    for call in range(calls):
        place = call % len(x)
        deadline = float(rng.uniform(low, high))
        given = x[place][None]
        (answer,) = one.predict(given, deadline_ms=deadline)
        in_time += not answer.late
        right += answer.label == one.classes[y[place]]
        answered = [(ms, logits) for ms, logits in through(one, given) if logits is not None]
        ideal = next((logits for ms, logits in reversed(answered) if ms <= deadline), answered[0][1])
        best += int(ideal[0].argmax()) == y[place]
    shares = in_time / calls, right / best
    print(f"\n{calls} calls, deadlines from {low:.2f} to {high:.2f} ms, {len(names)} exits\n")
    print("| | figure | goal |\n|---|---|---|")
    print(f"| in time | {100 * shares[0]:.2f} % | at least 99 %{'' if shares[0] >= IN_TIME else ': **missed**'} |")
    said = f"{100 * right / calls:.2f} % of {100 * best / calls:.2f} %: {100 * shares[1]:.2f} %"
    print(f"| accuracy, of the ideal's | {said} | at least 98 %{'' if shares[1] >= OF_IDEAL else ': **missed**'} |")


def overhead(one: Predictor, x: np.ndarray, calls: int = 400) -> None:
    """A predictor's call against the bare engine, in turn; and a call that changes the point each time."""
    given, points = x[0][None], [str(point) for point in one.points]
    bare, whole, switched = [], [], []
    for call in range(calls):
        start = time.perf_counter()
        one.run_point("full", (given,))
        bare.append(1000 * (time.perf_counter() - start))
        start = time.perf_counter()
        one.predict(given, point="full")
        whole.append(1000 * (time.perf_counter() - start))
        name = points[call % len(points)]
        start = time.perf_counter()
        one.run_point(name, (given,))
        again = time.perf_counter()
        one.run_point(name, (given,))
        switched.append(1000 * ((again - start) - (time.perf_counter() - again)))
    extra = statistics.median(whole) - statistics.median(bare)
    print(f"| overhead of a call over the bare engine | {extra:.3f} ms | at most 0.2 ms |")
    print(f"| switching points, once loaded | {statistics.median(switched):.3f} ms | under 1 ms |")


def first_answer(folder: Path, picture: np.ndarray) -> None:
    """In a new process: from loaded libraries to the first answer."""
    program = (
        "import time, numpy, onnxruntime, supple\n"
        "from supple.inference import select\n"
        "from supple.inference.engines import onnxruntime as engine\n"
        "start = time.perf_counter()\n"
        f"p = supple.predictor({str(folder)!r}, 'onnxruntime')\n"
        f"p.predict(numpy.zeros({(1, *picture.shape)!r}, numpy.float32))\n"
        "print(time.perf_counter() - start)"
    )
    found = [float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(3)]
    print(f"| from loaded libraries to the first answer | {statistics.median(found):.2f} s | under 2 s |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    bundle = next(bundle for bundle in exports_of(given.run) if (bundle.kind, bundle.precision) == ("onnx", "fp32"))
    one = of_bundle(bundle, "onnxruntime", given.threads)
    one.warm()
    x, y = arrays(given.run, given.calls)
    print(f"{machine()}, ONNX Runtime, {given.threads} threads, {given.run}")
    deadlines(one, x, y, given.calls)
    overhead(one, x)
    first_answer(bundle.folder, x[0])


if __name__ == "__main__":
    main()
