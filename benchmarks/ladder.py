"""Whether saved MACs are saved time: exits against their MAC share, slices against narrow networks, deployment.

    python benchmarks/ladder.py [--rounds 30]

Everything that is compared runs in turn inside this process; the figures are ratios of medians. Prints Markdown tables.
"""

import argparse
import statistics
import subprocess
import sys

import torch

from supple.backbones import MobileNetV1
from supple.cli import VERBS
from supple.cost import profile
from supple.inference.timing import interleave
from supple.machine import machine
from supple.methods import build
from supple.point import Point


def exits(rounds: int, batch: int = 64) -> None:
    """MSDNet: latency of exit k over (MAC share of exit k x latency of the full model)."""
    model = build({"name": "msdnet"}, {"name": "exits"}, 10, (3, 32, 32)).eval()
    x = torch.randn(batch, 3, 32, 32)
    rows = profile(model)
    with torch.inference_mode():
        times = interleave({str(p): lambda p=p: model(x, p) for p in model.points}, rounds, seconds=1e9)
    full = times["full"].p50_ms
    print(f"\nMSDNet, 7 exits, batch {batch}\n")
    print("| exit | MAC share | ms | ms / (share x full) | goal |\n|---|---|---|---|---|")
    for k, row in enumerate(rows, 1):
        share, ms = row.macs / rows[-1].macs, times[row.point].p50_ms
        goal = "1.40" if k <= 4 else "1.20"
        print(f"| {k} | {share:.3f} | {ms:.1f} | {ms / share / full:.2f} | at most {goal} |", flush=True)


def widths(rounds: int, pixels: int, batch: int) -> None:
    """Slimmable MobileNet-V1: sliced weights against the same narrow network built on its own, and deployed."""
    stem = "imagenet" if pixels > 64 else "cifar"
    classes = 1000 if pixels > 64 else 10
    model = build({"name": "mobilenet_v1", "stem": stem}, {"name": "slim"}, classes, (3, pixels, pixels)).eval()
    x = torch.randn(batch, 3, pixels, pixels)
    goal = "1.10" if batch >= 16 else "1.25"
    print(f"\nSlimmable MobileNet-V1, {pixels} px, batch {batch}\n")
    print(
        f"| width | sliced ms | sliced / built alone (goal {goal}) | deployed / sliced (goal 0.80) |\n|---|---|---|---|"
    )
    for width in (0.25, 0.5, 0.75):
        alone = MobileNetV1(num_classes=classes, stem=stem, multiplier=width).eval()
        point = Point(width=width)
        deployed = model.extract(point, deploy=True)
        calls = {
            "sliced": lambda p=point: model(x, p),
            "alone": lambda a=alone: a(x),
            "deployed": lambda d=deployed: d(x),
        }
        with torch.inference_mode():
            times = {name: t.p50_ms for name, t in interleave(calls, rounds, seconds=1e9).items()}
        ratios = f"{times['sliced'] / times['alone']:.2f} | {times['deployed'] / times['sliced']:.2f}"
        print(f"| {width} | {times['sliced']:.2f} | {ratios} |", flush=True)


def start_up(rounds: int) -> None:
    """Seconds until help is there, and what `import supple` takes when torch is loaded."""
    calls = {
        verb: lambda words=words: subprocess.run(
            [sys.executable, "-m", "supple", *words], check=True, capture_output=True
        )
        for verb, words in {"": ["--help"], **{verb: [verb, "--help"] for verb in VERBS}}.items()
    }
    helps = {verb: times.p50_ms / 1000 for verb, times in interleave(calls, rounds, seconds=1e9).items()}
    slowest = max(helps, key=helps.__getitem__)
    clock = "import time, torch; start = time.perf_counter(); import supple; {}; print(time.perf_counter() - start)"
    names = "supple.load; supple.Ladder; supple.FlexibleModel; supple.Point"
    print("\n| start-up | seconds | goal |\n|---|---|---|")
    print(f"| slowest help (supple {slowest} --help) | {helps[slowest]:.2f} | under 1 |")
    for what, use in (("import supple", "pass"), ("import supple and use every public name", names)):
        runs = [subprocess.run([sys.executable, "-c", clock.format(use)], capture_output=True) for _ in range(rounds)]
        print(f"| {what}, torch loaded | {statistics.median(float(run.stdout) for run in runs):.2f} | at most 0.5 |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print(f"{machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    start_up(5)
    exits(rounds)
    for pixels, batch in ((224, 16), (224, 1), (32, 16), (32, 1)):
        widths(rounds if batch == 1 else max(7, rounds // 3), pixels, batch)


if __name__ == "__main__":
    main()
