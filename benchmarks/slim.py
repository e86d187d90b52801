"""Whether a narrow width of an ordinary network costs what a narrow network costs, and what deploying it saves.

    python benchmarks/slim.py [--rounds 20] [--threads 2] [--batch 16] [--size 224]

ResNet-18 and MobileNet-V2 of timm with random weights. The width in place (`model(x, "width=0.5")`), the same narrow
network alone (`extract`), and that one deployed (`extract(deploy=True)`) are checked to agree, and run in turn inside
this process; the figures are ratios of medians. Prints a Markdown table.
"""

import argparse
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.testing import assert_close

import supple
from supple.inference.timing import interleave
from supple.machine import machine
from supple.methods.slim import Slim

NETWORKS = ("resnet18", "mobilenetv2_100")
WIDTHS = (0.25, 0.5, 0.75)
SLICED, DEPLOYED = 1.10, 0.80  # at most, of the network alone, and of the width in place


def calls_of(model: Slim, width: float, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """A width in place, alone and deployed: checked to agree."""
    point = f"width={width:g}"
    alone, deployed = model.extract(point), model.extract(point, deploy=True)
    calls: dict[str, Callable[[], Tensor]] = {
        "sliced": lambda: model(x, point),
        "alone": lambda: alone(x),
        "deployed": lambda: deployed(x),
    }
    expected = calls["alone"]()
    assert_close(calls["sliced"](), expected, atol=1e-4, rtol=1e-4)
    assert_close(calls["deployed"](), expected, atol=1e-3, rtol=1e-3)
    return calls


def lively(model: Slim, x: Tensor) -> Slim:
    """Norms with statistics of these inputs: with those of a new network, hardly anything would reach the end."""
    model.settle([(x, None)])
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.reset_running_stats()
                part.momentum = None
        model.train()
        for point in model.points:
            model(x, point)
    return model.eval()


def row(name: str, width: float, ms: dict[str, float]) -> str:
    sliced, deployed = ms["sliced"] / ms["alone"], ms["deployed"] / ms["sliced"]
    spent = " | ".join(f"{ms[way]:.1f}" for way in ("alone", "sliced", "deployed"))
    return (
        f"| {name} | {width:g} | {spent} | {sliced:.2f} | {verdict(sliced, SLICED)} "
        f"| {deployed:.2f} | {verdict(deployed, DEPLOYED)} |"
    )


def verdict(value: float, most: float) -> str:
    return f"at most {most:.2f}" + (": **missed**" if round(value, 2) > most else "")


def measure(names: Sequence[str], batch: int, size: int, rounds: int) -> None:
    print("| network | width | alone ms | sliced ms | deployed ms | sliced / alone | goal | deployed / sliced | goal |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        x = torch.randn(batch, 3, size, size)
        model = supple.slim(name, widths=(*WIDTHS, 1.0), input_shape=(3, size, size), pretrained=False)
        lively(model, x[:4])
        for width in WIDTHS:
            with torch.inference_mode():
                times = interleave(calls_of(model, width, x), rounds, seconds=1e9)
            print(row(name, width, {way: found.p50_ms for way, found in times.items()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    print(f"{machine()}, torch {torch.__version__}, {given.threads} threads, batch {given.batch}, {given.size} px\n")
    measure(given.networks, given.batch, given.size, given.rounds)


if __name__ == "__main__":
    main()
