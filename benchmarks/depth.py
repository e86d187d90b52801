"""Whether layers that are left out, shuffled or skipped save the time that their MACs promise.

    python benchmarks/depth.py [--rounds 30] [--threads 2]

Everything that is compared runs in turn inside this process; the figures are ratios of medians. Prints Markdown tables.
"""

import argparse
import copy
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.cost import profile
from supple.inference.timing import interleave
from supple.machine import machine
from supple.methods import build
from supple.methods.shuffle import Shuffle
from supple.methods.skip import Skip
from supple.model import FlexibleModel
from supple.point import FULL, Point

DEIT = {"name": "vit", "model": "deit_tiny_patch16_224"}
CIFAR = {"name": "vit_cifar", "layers": 12}  # 384 wide, 65 tokens


def made(backbone: dict[str, object], shape: tuple[int, ...], **method: object) -> FlexibleModel:
    return build(backbone, method, 10, shape).eval()


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    return {name: found.p50_ms for name, found in interleave(calls, rounds, seconds=1e9).items()}


def shortened(rounds: int) -> None:
    """Fewer layers, in order and shuffled, DeiT-Tiny, batch 16."""
    model = made(DEIT, (3, 224, 224), name="shuffle")
    assert isinstance(model, Shuffle)
    x, rng = torch.randn(16, 3, 224, 224), random.Random(0)
    points = {f"first {len(p.layers or ())}": p for p in model.points if p != FULL}
    points |= {name: group.sample(rng) for name, group in model.groups.items() if name.endswith("arbitrary")}
    points["full"] = FULL
    rows = {row.point: row for row in profile(model, list(points.values()))}
    with torch.inference_mode():
        ms = medians({name: lambda p=point: model(x, p) for name, point in points.items()}, rounds)
    print("\nDeiT-Tiny, 224 px, batch 16: time over (MAC share x time of the full model)\n")
    print("| layers | MAC share | ms | ratio | goal |\n|---|---|---|---|---|")
    for name, point in points.items():
        share = rows[str(point)].macs / rows["full"].macs  # type: ignore[operator]
        goal = 1.10 if share < 0.3 else 1.05
        print(f"| {name} | {share:.3f} | {ms[name]:.1f} | {ms[name] / share / ms['full']:.2f} | at most {goal:.2f} |")


def training(rounds: int) -> None:
    """A step with a fresh random order against one in the given order."""
    model = made(CIFAR, (3, 32, 32), name="shuffle").train()
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    optimizer, rng = torch.optim.Adam(model.parameters(), 1e-4), random.Random(0)

    def step(point: Point) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, point), y).backward()
        optimizer.step()

    arbitrary = model.groups["arbitrary"]
    ms = medians({"plain": lambda: step(FULL), "shuffled": lambda: step(arbitrary.sample(rng))}, max(5, rounds // 3))
    ratio = ms["shuffled"] / ms["plain"]
    print(f"\nTraining step, ViT 384x12 on 32 px, batch 32: shuffled / plain {ratio:.2f} (at most 1.05)")


def position(rounds: int) -> None:
    shape = (3, 224, 224)
    plain, told = made(DEIT, shape, name="shuffle"), made(DEIT, shape, name="shuffle", variant="position")
    x = torch.randn(16, *shape)
    share = profile(told, [FULL])[0].macs / profile(plain, [FULL])[0].macs  # type: ignore[operator]
    with torch.inference_mode():
        ms = medians({"plain": lambda: plain(x), "told": lambda: told(x)}, rounds)
    ratio, most = ms["told"] / ms["plain"], share + 0.05
    print(f"\nPosition, DeiT-Tiny, batch 16: {ratio:.2f} of plain, MACs {share:.2f} (at most {most:.2f})")


class Chance(nn.Module):
    """An oracle that is asked as usual, but whose answer is chance."""

    def __init__(self, oracle: nn.Module, rng: torch.Generator) -> None:
        super().__init__()
        self.oracle, self.rng = oracle, rng

    def forward(self, x: Tensor) -> Tensor:
        return 0 * self.oracle(x) + torch.randn(len(x), 1, generator=self.rng)


def skipping(rounds: int) -> None:
    """Half of the layers skipped at random, sample by sample, against the full model, and none skipped."""
    model = made(CIFAR, (3, 32, 32), name="skip", last_always_on=False)
    assert isinstance(model, Skip)
    plain = copy.deepcopy(model)  # with oracles that no chance is added to
    rng = torch.Generator().manual_seed(0)
    for k, oracle in enumerate(model.gates.oracles):
        model.gates.oracles[k] = Chance(oracle, rng)
    print("\nSkipping, ViT 384x12 on 32 px, 6 of 12 layers run in the mean: time / full\n")
    print("| batch | layers run | half skipped | goal | oracles asked, nothing skipped | goal |")
    print("|---|---|---|---|---|---|")
    # The first layer always runs, so of the 11 others 5 must: a threshold at this quantile of a normal score.
    half = float(torch.special.ndtri(torch.tensor(6 / 11)).sigmoid())
    for batch, goal in ((64, 0.55), (16, 0.58), (8, 0.65), (4, 1.05), (2, 1.05), (1, 1.05)):
        x = torch.randn(batch, 3, 32, 32)
        ran = []

        def skip(x: Tensor = x, ran: list[float] = ran) -> None:
            (output,) = model(x, [Point(skip=half)])
            ran.append(float(output.aux["ran"].float().mean()))

        calls = {"full": lambda x=x: model(x), "half": skip, "all": lambda x=x: plain(x, Point(skip=1e-9))}
        with torch.inference_mode():
            ms = medians(calls, rounds if batch > 8 else 3 * rounds)
        share = 100 * sum(ran) / len(ran)
        extra = f"{ms['all'] / ms['full']:.3f} | {'at most 1.02' if batch >= 8 else 'at most 1.05'}"
        print(f"| {batch} | {share:.0f} % | {ms['half'] / ms['full']:.2f} | at most {goal} | {extra} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{machine()}, torch {torch.__version__}, {arguments.threads} threads")
    shortened(arguments.rounds)
    skipping(arguments.rounds)
    training(arguments.rounds)
    position(arguments.rounds)


if __name__ == "__main__":
    main()
