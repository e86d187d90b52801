"""Whether saved MACs are saved time: exits against their MAC share, slices against narrow networks, deployment.

    python benchmarks/ladder.py [--rounds 30]

Everything that is compared runs in turn inside this process; the figures are ratios of medians. Prints Markdown tables.
"""

import argparse
import statistics
import subprocess
import sys
import time

import torch

from supple.backbones import MobileNetV1
from supple.cost import profile
from supple.machine import machine
from supple.methods import build
from supple.point import Point
from supple.runtime.measure import interleave


@torch.inference_mode()
def exits(rounds: int, batch: int = 64) -> None:
    """MSDNet: latency of exit k over (MAC share of exit k x latency of the full model)."""
    model = build({"name": "msdnet"}, {"name": "exits"}, 10, (3, 32, 32)).eval()
    x = torch.randn(batch, 3, 32, 32)
    rows = profile(model)
    times = interleave({str(p): lambda p=p: model(x, p) for p in model.points}, rounds, seconds=1e9)
    full = times["full"].p50_ms
    print(f"\nMSDNet, 7 exits, batch {batch}\n")
    print("| exit | MAC share | ms | ms / (share x full) | goal |\n|---|---|---|---|---|")
    for k, row in enumerate(rows, 1):
        share, ms = row.macs / rows[-1].macs, times[row.point].p50_ms
        goal = "1.40" if k <= 4 else "1.20"
        print(f"| {k} | {share:.3f} | {ms:.1f} | {ms / share / full:.2f} | at most {goal} |", flush=True)


@torch.inference_mode()
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
        times = {name: t.p50_ms for name, t in interleave(calls, rounds, seconds=1e9).items()}
        ratios = f"{times['sliced'] / times['alone']:.2f} | {times['deployed'] / times['sliced']:.2f}"
        print(f"| {width} | {times['sliced']:.2f} | {ratios} |", flush=True)


def start_up(rounds: int) -> None:
    """Seconds until help is there, and what `import supple` adds to `import torch`."""

    def seconds(*words: str) -> float:
        spent = []
        for _ in range(rounds):
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            spent.append(time.perf_counter() - start)
        return statistics.median(spent)

    everything = "import torch, supple; supple.load; supple.Ladder; supple.FlexibleModel; supple.Point"
    torch_alone = seconds("-c", "import torch")
    print("\n| start-up | seconds | goal |\n|---|---|---|")
    print(f"| supple --help | {seconds('-m', 'supple', '--help'):.2f} | under 1 |")
    slowest = max((seconds("-m", "supple", verb, "--help"), verb) for verb in ("train", "predict", "bench", "list"))
    print(f"| slowest VERB --help ({slowest[1]}) | {slowest[0]:.2f} | under 1 |")
    whole, alone = seconds("-c", everything), seconds("-c", "import torch, supple")
    print(f"| import supple beyond import torch | {alone - torch_alone:.2f} | at most 0.5 |")
    print(f"| import supple and every public name, beyond torch | {whole - torch_alone:.2f} | at most 0.5 |")


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
