"""Pictures answered over Ray Data by one worker and by two, and by a plain loop in two processes, start-up aside.

    python benchmarks/ray_batches.py [--run cifar10_small] [--pictures 50000] [--engine onnxruntime] [--confident]

PNG files of 32 px, in a folder for each thousand. Every worker has one thread. A rate counts from the moment when the
first part is written, or answered, to the last: starting Ray, processes and models is before that. The figures are
means of --rounds, in turn.
"""

import argparse
import io
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from supple.cluster.batches import Setup, answers, predict_batch
from supple.cluster.sources import TOGETHER, Part, parts_of, read
from supple.machine import machine
from supple.text import table

Times = list[tuple[float, int]]  # when a part was done, and how many rows it has


def pictures(folder: Path, count: int, side: int = 32) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        where = folder / f"{number // 1000:04d}"
        where.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (8, 8, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC).save(file, "PNG")
        (where / f"{number:06d}.png").write_bytes(file.getvalue())
    return folder


def rate(times: Times) -> float:
    """Rows per second behind the first part."""
    times = sorted(times)
    return sum(rows for _, rows in times[1:]) / (times[-1][0] - times[0][0])


def over_ray(given: argparse.Namespace, source: Path, workers: int, limits: dict[str, Any]) -> Times:
    times: Times = []
    with tempfile.TemporaryDirectory() as place:
        how: dict[str, Any] = {"workers": workers, "engine": given.engine, "size": given.part}
        how["on_part"] = lambda rows: times.append((time.perf_counter(), rows))
        predict_batch(given.run, [str(source)], Path(place) / "out", **how, **limits)
    return times


def in_processes(given: argparse.Namespace, source: Path, workers: int, limits: dict[str, Any]) -> Times:
    context = multiprocessing.get_context("spawn")
    done, todo = context.Queue(), context.Queue()
    parts = parts_of(sorted(source.rglob("*.png")), given.part)
    setup = Setup(given.run, given.engine, "fp32", 1, None, limits)
    processes = [context.Process(target=loop, args=(setup, todo, done)) for _ in range(workers)]
    for process in processes:
        process.start()
    for _ in processes:
        done.get()  # its model is open
    for part in [*parts, *(None for _ in processes)]:
        todo.put(part)
    times = []
    for _ in parts:
        rows = done.get()
        times.append((time.perf_counter(), rows))
    for process in processes:
        process.join()
    return times


def loop(setup: Setup, todo: Any, done: Any) -> None:
    with setup.open() as made:
        done.put(0)
        for part in iter(todo.get, None):
            rows = 0
            for samples in lots(part):
                rows += len(answers(made, samples, setup.limits))
            done.put(rows)


def lots(part: Part) -> Iterator[list[Any]]:
    samples = list(read(part, (".png",)))
    yield from (samples[at : at + TOGETHER] for at in range(0, len(samples), TOGETHER))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="cifar10_small", help="A run, an exported folder, or a network of supple's.")
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--pictures", type=int, default=50_000)
    parser.add_argument("--part", type=int, default=1000, help="Pictures that are written together.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--confident", action="store_true", help="Stop when sure, as calibrated.")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    limits: dict[str, Any] = {"confident": True} if given.confident else {}
    ways: dict[str, tuple[Callable[..., Times], int]] = {
        "Ray, one worker": (over_ray, 1),
        "Ray, two workers": (over_ray, 2),
        "a plain loop, two processes": (in_processes, 2),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as place:
        source = pictures(Path(place) / "pictures", given.pictures)
        for number in range(given.rounds):
            for name, (run, workers) in ways.items():
                rates[name].append(rate(run(given, source, workers, limits)))
                print(f"round {number + 1}: {name}: {rates[name][-1]:.0f}/s", file=sys.stderr, flush=True)
    means = {name: statistics.fmean(found) for name, found in rates.items()}
    one, two, plain = means.values()
    facts = {"of_one_worker": two / one, "of_a_plain_loop": two / plain}
    if given.json:
        print(json.dumps({"machine": machine(), "pictures": given.pictures, "rates": rates, **facts}))
        return 0
    print(table(("way", "pictures/s"), [(name, f"{mean:.0f}") for name, mean in means.items()]))
    print(f"two workers: {two / one:.2f} x one worker, {two / plain:.2f} of the plain loop ({machine()})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
