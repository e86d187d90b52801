"""Whether an exit saves the time that its MACs promise, what staging a network costs, and how long calibration takes.

    python benchmarks/exits.py [--rounds 30] [--threads 2]

Everything that is compared runs in turn inside this process; the figures are ratios of medians. Prints Markdown tables.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.testing import assert_close

import supple
from supple.cost import profile
from supple.inference.timing import interleave
from supple.machine import machine
from supple.methods.exits import Exits
from supple.point import FULL, Point
from supple.policy.fitting import LogitSet, evaluate_policy, fit

Piece = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ByHand:
    """The same network and heads, cut as one would write it without a library."""

    pieces: Sequence[Piece]  # between the cuts
    heads: Sequence[Piece]

    def exit(self, x: Tensor, k: int) -> Tensor:
        for piece in self.pieces[:k]:
            x = piece(x)
        return self.heads[k - 1](x)

    def every(self, x: Tensor) -> list[Tensor]:
        found = []
        for piece, head in zip(self.pieces, self.heads):
            x = piece(x)
            found.append(head(x))
        return found

    def rest(self, x: Tensor) -> Tensor:
        """Everything behind the first cut."""
        for piece in self.pieces[1:]:
            x = piece(x)
        return self.heads[-1](x)


def resnet(net: nn.Module) -> list[Piece]:
    first = nn.Sequential(net.conv1, net.bn1, net.act1, net.maxpool, net.layer1)
    return [first, net.layer2, net.layer3, nn.Sequential(net.layer4, net.global_pool, net.fc)]


def deit(net: nn.Module) -> list[Piece]:
    first, last = net.blocks[:3], net.blocks[9:]

    def start(x: Tensor) -> Tensor:
        return first(net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(x)))))

    def end(x: Tensor) -> Tensor:
        return net.forward_head(net.norm(last(x)))

    return [start, net.blocks[3:6], net.blocks[6:9], end]


def lite(net: nn.Module) -> list[Piece]:
    first = nn.Sequential(net.conv_stem, net.bn1, *net.blocks[:2])
    last = nn.Sequential(*net.blocks[5:], net.conv_head, net.bn2, net.global_pool, net.classifier)
    return [first, net.blocks[2:4], net.blocks[4], last]


CUTS = {
    "resnet50": (("layer1", "layer2", "layer3"), resnet),
    "deit_tiny_patch16_224": (("blocks.2", "blocks.5", "blocks.8"), deit),
    "tf_efficientnet_lite0": (("blocks.1", "blocks.3", "blocks.4"), lite),
}


def staged(name: str, branch: str = "linear") -> tuple[Exits, ByHand]:
    """A network with three exits, and the same by hand, which shares its weights and is checked to agree."""
    at, cut = CUTS[name]
    model = supple.exits(name, at=at, branch=branch, input_shape=(3, 224, 224)).eval()
    hand = ByHand(cut(model.backbone), [*(head[0] for head in model.heads[:-1]), nn.Identity()])
    x = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        for output, k, same in zip(model(x, model.points), range(1, 5), hand.every(x)):
            assert_close(output.logits, same)
            assert_close(output.logits, hand.exit(x, k))
        assert_close(model(x), model.backbone(x))
    return model, hand


def verdict(value: float, most: float) -> str:
    return f"at most {most:.2f}" + (": **missed**" if round(value, 2) > most else "")


def latencies(rounds: int) -> None:
    """Batch 1: each exit against its MAC share and against the prefix by hand; the whole network against itself."""
    print("\nExits, batch 1, 224 px: `model(x, Point(exit=k))` against the untouched network and the prefix by hand\n")
    print("| network | branch | exit at | MAC share | ms | ms / (share x untouched) | goal | ms / by hand | goal |")
    print("|---|---|---|---|---|---|---|---|---|")
    whole = []
    for name, branch in [*((name, "linear") for name in CUTS), ("resnet50", "sl_vit")]:
        model, hand = staged(name, branch)
        x = torch.randn(1, 3, 224, 224)
        points = model.points[:-1]
        calls = {"untouched": lambda m=model, x=x: m.backbone(x)}
        calls |= {str(p): lambda m=model, x=x, p=p: m(x, p) for p in model.points}
        calls |= {"heads": lambda m=model, x=x: m(x, m.points)}  # what goes before a call is alike for both kinds
        calls |= {f"hand {p}": lambda h=hand, x=x, p=p: h.exit(x, p.exit) for p in points}
        calls |= {"hand full": lambda h=hand, x=x: h.exit(x, 4), "hand heads": lambda h=hand, x=x: h.every(x)}
        with torch.inference_mode():
            ms = {call: times.p50_ms for call, times in interleave(calls, rounds, seconds=1e9).items()}
        macs = {row.point: row.macs for row in profile(model)}
        slow = name == "tf_efficientnet_lite0"  # its early layers are slow per MAC, whoever calls them
        for k, (point, layer) in enumerate(zip(points, CUTS[name][0]), 1):
            share, spent = macs[str(point)] / macs["full"], ms[str(point)]
            by_share, by_hand = spent / share / ms["untouched"], spent / ms[f"hand {point}"]
            most = 1.25 if k == 1 and share < 0.2 else 1.10
            goals = ("reported", verdict(by_hand, 1.05)) if slow else (verdict(by_share, most), "reported")
            print(
                f"| {name} | {branch} | {layer} | {share:.3f} | {spent:.2f} | {by_share:.2f} | {goals[0]} "
                f"| {by_hand:.2f} | {goals[1]} |",
                flush=True,
            )
        whole.append((name, branch, ms["untouched"], ms["full"] / ms["untouched"], ms["heads"] / ms["hand heads"]))
    print("\nThe whole network, batch 1: `model(x)` and `model(x, model.points)`\n")
    print("| network | branch | untouched ms | staged / untouched | goal | all heads / by hand | goal |")
    print("|---|---|---|---|---|---|---|")
    for name, branch, untouched, to_end, heads in whole:
        print(
            f"| {name} | {branch} | {untouched:.2f} | {to_end:.3f} | {verdict(to_end, 1.03)} "
            f"| {heads:.3f} | {verdict(heads, 1.03)} |"
        )


def thinning(rounds: int, batch: int = 64) -> None:
    """A batch of which every second sample stops at exit 1, over exit 1 on all and the rest on half, by hand."""
    print(f"\nBatch {batch}, half of it stops at exit 1: one run over (exit 1 on {batch} + the rest on {batch // 2})\n")
    print(f"| network | exit 1 on {batch}, ms | rest on {batch // 2}, ms | one run, ms | over their sum | goal |")
    print("|---|---|---|---|---|---|")
    for name in CUTS:
        model, hand = staged(name)
        x, keep = torch.randn(batch, 3, 224, 224), torch.arange(0, batch, 2)

        def half_stops(model: Exits = model, x: Tensor = x, keep: Tensor = keep) -> Tensor:
            run = model.run(x, (Point(exit=1), FULL))
            next(run)
            return run.send(keep).logits

        with torch.inference_mode():
            half = hand.pieces[0](x)[keep]
            assert_close(half_stops(), hand.rest(half), atol=1e-4, rtol=1e-4)
            calls = {"first": lambda h=hand, x=x: h.exit(x, 1), "rest": lambda h=hand, x=half: h.rest(x)}
            calls["run"] = half_stops
            ms = {call: times.p50_ms for call, times in interleave(calls, rounds, seconds=1e9).items()}
        over = ms["run"] / (ms["first"] + ms["rest"])
        print(
            f"| {name} | {ms['first']:.0f} | {ms['rest']:.0f} | {ms['run']:.0f} | {over:.2f} | {verdict(over, 1.1)} |",
            flush=True,
        )


def outputs(count: int, seed: int, exits: int = 5, classes: int = 100) -> LogitSet:
    """Made-up logits: every sample has a difficulty, and each exit is better than the one before."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=rng)
    ease = torch.rand(count, 1, generator=rng)
    truth = nn.functional.one_hot(labels, classes)
    logits = [
        torch.randn(count, classes, generator=rng) + (1.5 + 4 * ease * (k + 2) / (exits + 1)) * truth
        for k in range(exits)
    ]
    points = (*(Point(exit=k) for k in range(1, exits)), FULL)
    return LogitSet(points, [each.numpy() for each in logits], labels.numpy())


def calibration(count: int = 10_000) -> None:
    """Seconds from the outputs of 5 exits to a judged policy: temperatures, choice of exits, thresholds, outcome."""
    first, second = outputs(count // 2, 0), outputs(count // 2, 1)
    through = dict(zip(first.points, (0.2, 0.4, 0.6, 0.8, 1.0)))

    def costs(points: tuple[Point, ...]) -> list[float]:
        return [through[point] + 0.01 * (place + 1) for place, point in enumerate(points)]  # heads cost as well

    print(f"\nCalibration: 5 exits, 100 classes, {count:,} samples, of which half decide and half judge\n")
    print("| aim | exits used | mean cost | accuracy (full) | seconds | goal |\n|---|---|---|---|---|---|")
    for what, target in {
        "half of the full cost": {"budget": 0.5},
        "at most 1 point less accurate": {"drop": 0.01},
    }.items():
        start = time.perf_counter()
        fitted = fit(first, costs, **target)
        found = evaluate_policy(fitted, second)
        seconds = time.perf_counter() - start
        goal = "under 5" + ("" if seconds < 5 else ": **missed**")
        accuracy = f"{found.accuracy:.3f} ({found.full_accuracy:.3f})"
        print(
            f"| {what} | {len(fitted.policy.points)} | {found.cost:.3f} | {accuracy} | {seconds:.1f} | {goal} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{machine()}, torch {torch.__version__}, {arguments.threads} threads")
    latencies(arguments.rounds)
    thinning(max(5, arguments.rounds // 6))
    calibration()


if __name__ == "__main__":
    main()
