"""The same network with the same exits and heads in supple and in earlyon: what stopping costs, and what is said of it.

    pip install earlyon
    python benchmarks/against_earlyon.py [--rounds 100] [--threads 2]

Everything that is compared runs in turn inside this process; the figures are ratios of medians. Prints Markdown tables.
"""

import argparse
import copy
import importlib.metadata
import importlib.util
import math
import sys
import warnings

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.testing import assert_close

import supple
from supple.cost import count_macs, profile
from supple.inference.calibration import stopping_at
from supple.inference.select import of_model
from supple.inference.timing import interleave
from supple.machine import machine
from supple.methods.exits import Exits
from supple.point import FULL, Point
from supple.policy.policy import stop_above

SHAPE = (3, 224, 224)
TIE = 1.05  # what repeated runs differ by
LAYERS = ("layer1", "layer2", "layer3")


def pair(network: nn.Module, at: tuple[str, ...]) -> tuple[Exits, nn.Module]:
    """The network with linear exits in supple, and a copy of it with copies of the same heads in earlyon."""
    from earlyon.core.types import EarlyExitConfig, ExitPoint
    from earlyon.core.wrappers import EarlyExitWrapper

    model = supple.exits(network, at=at, input_shape=SHAPE).eval()
    heads = [copy.deepcopy(head[0]) for head in model.heads[:-1]]
    places = [ExitPoint(f"e{k}", layer, head.linear.in_features) for k, (layer, head) in enumerate(zip(at, heads))]
    settings = EarlyExitConfig("custom", 1000, places)
    named = {place.name: head for place, head in zip(places, heads)}
    other = EarlyExitWrapper(copy.deepcopy(network), named, nn.Identity(), settings, (1, *SHAPE))
    return model, other.eval()


def told(other: nn.Module) -> tuple[dict[str, float], str]:
    """The fraction that earlyon gives for each exit, and how it came by it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimate = other.flops_estimate
    warned = any(one.category is RuntimeWarning for one in caught)
    reason = estimate.notes[0].partition(":")[0].partition(";")[0] if estimate.notes else ""
    return estimate.fractions, ", ".join(filter(None, [estimate.method, reason, "with a warning" if warned else ""]))


def stop_at(other: nn.Module, place: int, alone: bool, x: Tensor) -> Tensor:
    """Makes earlyon stop at one place (-1: nowhere), by settings: it has no exit as an argument."""
    exits = range(len(other.config.exit_points))
    other.config.enabled_exits = [k == place if alone else True for k in exits]
    other.config.confidence_thresholds = [0.0 if k == place else 1.0 for k in exits]
    result = other(x, mode="inference")
    assert result.exit_taken == place, "the confidence of an untrained head is 1"
    return result.prediction


def latencies(rounds: int) -> None:
    """Batch 1, each exit: taken by name, and as a policy that looks at every exit on the way."""
    model, other = pair(torchvision.models.resnet18(), LAYERS)
    told(other)
    x = torch.randn(1, *SHAPE)
    policy, one = stop_above(model.points, math.inf), of_model(model, torch.get_num_threads())
    calls = {}
    for place, point in enumerate(model.points):
        theirs = -1 if point == FULL else place
        calls |= {
            f"supple {point}": lambda p=point: model(x, p),
            f"earlyon {point}": lambda p=theirs: stop_at(other, p, True, x),
            f"supple {point} policy": lambda p=place: torch.from_numpy(
                one.walk((x.numpy(),), stopping_at(policy, p))[0].logits
            )[None],
            f"earlyon {point} policy": lambda p=theirs: stop_at(other, p, False, x),
        }
    with torch.inference_mode():
        for point in model.points:
            for end in (f"{point}", f"{point} policy"):
                assert_close(calls[f"supple {end}"](), calls[f"earlyon {end}"]())
        # Apart, so that no call finds in the cache what its rival has just used.
        ordered = {name: calls[name] for name in sorted(calls, key=lambda name: name.split()[0])}
        ms = {call: times.p50_ms for call, times in interleave(ordered, rounds, seconds=1e9).items()}
    print("\nResNet-18 (torchvision), batch 1, linear heads: milliseconds; what lies under 5 % apart is a tie\n")
    print("| exit | how | supple | earlyon | supple / earlyon | goal |\n|---|---|---|---|---|---|")
    for end, how in (("", "this exit alone"), (" policy", "looking at every exit on the way")):
        for point in model.points:
            ours, theirs = ms[f"supple {point}{end}"], ms[f"earlyon {point}{end}"]
            ratio = ours / theirs
            mark = "" if round(ratio, 2) <= 1 else ": a tie" if ratio < TIE else ": **missed**"
            print(f"| {point} | {how} | {ours:.2f} | {theirs:.2f} | {ratio:.2f} | at most 1.00{mark} |")


def fractions() -> None:
    """What each says that stopping costs, as a share of the full network, against what a run really executes."""
    print("\nCost of an exit as a share of the full network's MACs: said against counted\n")
    if importlib.util.find_spec("fvcore") is None:
        print("fvcore, which earlyon counts with, is not installed: what it says here is its fallback.\n")
    print("| network | exit at | counted, with head | supple says | earlyon says | off by | counted, no head | how |")
    print("|---|---|---|---|---|---|---|---|")
    networks = {
        "resnet18 (torchvision)": (torchvision.models.resnet18(), LAYERS),
        "resnet18 (timm)": (timm.create_model("resnet18"), LAYERS),
        "deit_tiny_patch16_224": (timm.create_model("deit_tiny_patch16_224"), ("blocks.2", "blocks.5", "blocks.8")),
    }
    x = torch.zeros(1, *SHAPE)
    for name, (network, at) in networks.items():
        model, other = pair(network, at)
        said, how = told(other)
        full = count_macs(lambda m=model: m.backbone(x))
        rows = profile(model)
        for k, (layer, row) in enumerate(zip(at, rows)):
            with_head = count_macs(lambda o=other, k=k: stop_at(o, k, True, x)) / full  # of earlyon's own run
            alone = model.extract(Point(exit=k + 1))[0]
            no_head = count_macs(lambda m=alone: m(x)) / full
            off = said[layer] / no_head - 1
            print(
                f"| {name} | {layer} | {with_head:.4f} | {row.macs / rows[-1].macs:.4f} | {said[layer]:.4f} "
                f"| {off:+.1%} | {no_head:.4f} | {how} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    if importlib.util.find_spec("earlyon") is None:
        print("earlyon is not installed, so there is nothing to compare with. pip install earlyon", file=sys.stderr)
        return
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    version = importlib.metadata.version("earlyon")
    print(f"{machine()}, torch {torch.__version__}, earlyon {version}, {arguments.threads} threads")
    fractions()
    latencies(arguments.rounds)


if __name__ == "__main__":
    main()
