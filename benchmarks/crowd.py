"""Whether the exits of AudioCSRNet save the time that their MACs promise: pictures of 512 x 288, a second of sound.

    python benchmarks/crowd.py [--rounds 10] [--threads 2] [--branch sl_vit]

All points and the untouched network run in turn inside this process; the figures are ratios of medians. Prints a
Markdown table. The network has the published widths and random weights.
"""

import argparse

import torch
from torch.testing import assert_close

from supple.backbones import AudioCsrNet
from supple.cost import profile
from supple.inference.timing import interleave
from supple.machine import machine
from supple.methods.exits import Exits
from supple.model import example

SHAPE = ((3, 288, 512), (1, 96, 64))
NAMES = {"exit=1": "V1", "exit=2": "AV1", "exit=3": "AV2", "full": "all"}
BRANCHES = {"sl_vit": {"name": "sl_vit", "patch": 4}, "cnn": {"name": "cnn", "padding": 1, "pool": 4}}
MOST = 1.10  # times what the share of MACs promises


def verdict(value: float, most: float) -> str:
    return f"at most {most:.2f}" + (": **missed**" if round(value, 2) > most else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--branch", choices=tuple(BRANCHES), default="sl_vit")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{machine()}, torch {torch.__version__}, {arguments.threads} threads, branch {arguments.branch}\n")
    network = AudioCsrNet(num_classes=1, input_shape=SHAPE).eval()
    branch = BRANCHES[arguments.branch]
    model = Exits(network, at=("vision", "audio", "fusion1"), branch=branch, input_shape=SHAPE).eval()
    model.input_shape = SHAPE
    x = example(SHAPE, 1, torch.randn)
    macs = {row.point: row.macs or 0 for row in profile(model)}
    calls = {"untouched": lambda: network(x)}
    calls |= {str(point): lambda point=point: model(x, point) for point in model.points}
    with torch.inference_mode():
        assert_close(model(x), network(x))
        ms = {name: times.p50_ms for name, times in interleave(calls, arguments.rounds, seconds=1e9).items()}
    print("| point | exit | MAC share | ms | ms / (share x untouched) | goal |\n|---|---|---|---|---|---|")
    print(f"| untouched | - | 1.000 | {ms['untouched']:.0f} | - | - |")
    for point, name in NAMES.items():
        share = macs[point] / macs["full"]
        over = ms[point] / share / ms["untouched"]
        print(f"| {point} | {name} | {share:.3f} | {ms[point]:.0f} | {over:.2f} | {verdict(over, MOST)} |")


if __name__ == "__main__":
    main()
