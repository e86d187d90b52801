"""What exporting saves: engines against eager PyTorch, stage chains against MAC shares, narrow and pruned networks.

    python benchmarks/engines.py [--rounds 20] [--threads 2] [--only full,chains,widths,pruned]

Networks have random weights. Everything that is compared runs in turn inside this process; the figures are ratios of
medians. Prints Markdown tables.
"""

import argparse
import copy
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

import supple
from exporting import predictors
from pruning import macs, made, searched
from supple.cost import profile
from supple.exporting.convert import to_onnx
from supple.exporting.graphs import Graph
from supple.inference.timing import interleave
from supple.machine import machine
from supple.methods import build
from supple.methods.static import Static
from supple.model import FlexibleModel
from supple.point import FULL, Point
from supple.surgery.prune import Plan, prune

SHAPE = (3, 224, 224)
DEIT, SWIN = "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224"
FULL_GOALS = {"resnet50": 0.70, "mobilenet_v1": 0.70, DEIT: 0.90, SWIN: 0.90}
CONVOLUTIONS = ("resnet50", "mobilenet_v1")
INT8_GOAL = 0.40
CHAINS = {  # where exits are, and whether their figures have goals
    "resnet50": (("layer1", "layer2", "layer3"), True),
    DEIT: (("blocks.2", "blocks.5", "blocks.8"), True),
    "tf_efficientnet_lite0": (("blocks.1", "blocks.3", "blocks.4"), False),
}
PRUNED_GOALS = {0.2: 1.10, 0.4: 1.10, 0.6: 1.20, 0.8: 1.35}


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    with torch.inference_mode():
        alone = {name: name for name in calls}  # each rests and warms up: no runtime competes with another's threads
        return {name: found.p50_ms for name, found in interleave(calls, rounds, seconds=1e9, runtimes=alone).items()}


def goal(value: float, most: float | None) -> str:
    if most is None:
        return "reported"
    return f"at most {most:.2f}" + (": **missed**" if round(value, 2) > most else "")


def whole(name: str) -> FlexibleModel:
    if name == "mobilenet_v1":
        model = build({"name": name, "stem": "imagenet"}, {"name": "static"}, 1000, SHAPE)
    else:
        model = Static(made(name))
    model.input_shape, model.classes = SHAPE, tuple(map(str, range(1000)))
    return model.eval()


def full(rounds: int, threads: int) -> None:
    print("\nThe full model, batch 1, 224 px: an engine's time over that of eager PyTorch\n")
    print("| network | eager ms | engine | ratio | goal |\n|---|---|---|---|---|")
    for name, most in FULL_GOALS.items():
        model = whole(name)
        network, x = model.extract(FULL).eval(), torch.randn(1, *SHAPE)
        given = (x.numpy(),)
        with tempfile.TemporaryDirectory() as folder:
            engines = predictors(model, Path(folder, "onnx"), threads)
            if name in CONVOLUTIONS:
                engines |= predictors(model, Path(folder, "q"), threads, "onnx", "int8")
                engines |= {
                    f"{k}, NNCF": v for k, v in predictors(model, Path(folder, "v"), threads, "openvino", True).items()
                }
            calls: dict[str, Callable[[], object]] = {"eager": lambda network=network, x=x: network(x)}
            calls |= {k: lambda one=one, given=given: one.run_point("full", given) for k, one in engines.items()}
            ms = medians(calls, rounds)
        best = {p: min(ms[k] for k in ms if p in k) for p in ("fp32", "int8") if any(p in k for k in ms)}
        for engine in list(ms)[1:]:
            ratio, precision = ms[engine] / ms["eager"], "int8" if "int8" in engine else "fp32"
            limit = (INT8_GOAL if precision == "int8" else most) if ms[engine] == best[precision] else None
            print(f"| {name} | {ms['eager']:.1f} | {engine} | {ratio:.2f} | {goal(ratio, limit)} |", flush=True)


class EveryHead(nn.Module):
    """All exits of a model in one graph."""

    def __init__(self, model: FlexibleModel) -> None:
        super().__init__()
        self.stages = nn.ModuleList(model.stages())

    def forward(self, *x: Tensor) -> tuple[Tensor, ...]:
        state, found = x[0], []
        for stage in self.stages:
            state, logits = stage(state)
            if logits is not None:
                found.append(logits)
        return tuple(found)


def session(content: bytes, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as in supple's own engine
    return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])


def chains(rounds: int, threads: int) -> None:
    print("\nExits on ONNX Runtime, batch 1: the chain of stages and the prefix as a graph of its own\n")
    print("| network | exit | MAC share | chain ms | chain / (share x full) | goal | prefix / chain | goal |")
    print("|---|---|---|---|---|---|---|---|")
    ends = []
    models = {name: (supple.exits(name, at=at, input_shape=SHAPE), held) for name, (at, held) in CHAINS.items()}
    msdnet = build({"name": "msdnet"}, {"name": "exits"}, 10, (3, 32, 32))
    msdnet.input_shape = (3, 32, 32)
    for name, (model, held) in {**models, "msdnet, 32 px": (msdnet, False)}.items():
        model.eval()
        model.classes = tuple(map(str, range(10)))
        x = np.random.default_rng(0).standard_normal((1, *model.input_shape), np.float32)
        two = torch.randn(2, *model.input_shape)
        with tempfile.TemporaryDirectory() as folder:
            one = predictors(model, Path(folder, "onnx"), threads)["onnxruntime fp32"]
            heads = session(to_onnx(Graph("heads", EveryHead(model).eval(), (two,), FULL)), threads)

            def chain(k: int, one=one, x=x) -> None:
                state = (x,)
                stages = one.stages[:k]
                for stage in stages:
                    state = state if stage.body is None else one.engine.run(stage.body, state)
                one.engine.run(stages[-1].head, state)

            points = [str(point) for point in model.points]
            calls: dict[str, Callable[[], object]] = {}
            for k, point in enumerate(points, 1):
                calls[f"chain {point}"] = lambda k=k, chain=chain: chain(k)
                calls[f"prefix {point}"] = lambda one=one, point=point, x=x: one.run_point(point, (x,))
            calls["heads"] = lambda heads=heads, x=x: heads.run(None, {"image": x})
            ms = medians(calls, rounds)
        costs = {row.point: row.macs for row in profile(model)}
        for k, point in enumerate(points[:-1], 1):
            share, spent = costs[point] / costs["full"], ms[f"chain {point}"]
            over, prefix = spent / share / ms["prefix full"], ms[f"prefix {point}"] / spent
            most = (1.20 if k == 1 and share < 0.2 else 1.05) if held else None
            row = f"| {name} | {k} | {share:.3f} | {spent:.2f} | {over:.2f} | {goal(over, most)} "
            print(f"{row}| {prefix:.2f} | {goal(prefix, 1.02 if held else None)} |", flush=True)
        ends.append((name, ms["chain full"] / ms["heads"], held))
    print("\n| network | chain to the end / one graph with the same heads | goal |\n|---|---|---|")
    for name, ratio, held in ends:
        print(f"| {name} | {ratio:.3f} | {goal(ratio, 1.05 if held else None)} |")


def widths(rounds: int, threads: int) -> None:
    print("\nWidths of MobileNet-V1, batch 1: the best engine over eager, deployed\n")
    print("| pixels | width | deployed ms | engine | ratio | goal |\n|---|---|---|---|---|---|")
    for pixels, stem, classes, most in ((224, "imagenet", 1000, 0.6), (32, "cifar", 10, 0.35)):
        shape = (3, pixels, pixels)
        model = build({"name": "mobilenet_v1", "stem": stem}, {"name": "slim"}, classes, shape).eval()
        model.input_shape, model.classes = shape, tuple(map(str, range(classes)))
        x = torch.randn(1, *shape)
        with tempfile.TemporaryDirectory() as folder:
            engines = predictors(model, Path(folder, "onnx"), threads)
            for width in (0.25, 0.5):
                point = Point(width=width)
                deployed = model.extract(point, deploy=True)
                calls: dict[str, Callable[[], object]] = {"eager": lambda deployed=deployed, x=x: deployed(x)}
                for name, one in engines.items():
                    calls[name] = lambda one=one, p=str(point), x=x: one.run_point(p, (x.numpy(),))
                ms = medians(calls, rounds)
                best = min(list(ms)[1:], key=lambda name: ms[name])
                ratio = ms[best] / ms["eager"]
                print(
                    f"| {pixels} | {width} | {ms['eager']:.2f} | {best} | {ratio:.2f} | {goal(ratio, most)} |",
                    flush=True,
                )


def pruned(rounds: int, threads: int) -> None:
    print("\nPruned transformers, 224 px, batch 16: time over (MAC ratio x unpruned time) on the same engine\n")
    print("| network | pruned | MAC ratio | engine | ratio | goal |\n|---|---|---|---|---|---|")
    for name in (SWIN, DEIT):
        network = made(name)
        search = searched(network)
        nets = {0.0: copy.deepcopy(network)} | {r: prune(search, r, Plan())[0] for r in PRUNED_GOALS}
        x = (np.random.default_rng(0).standard_normal((16, *SHAPE), np.float32),)
        with tempfile.TemporaryDirectory() as folder:
            calls: dict[str, Callable[[], object]] = {}
            for ratio, net in nets.items():
                model = Static(net).eval()
                model.input_shape, model.classes = SHAPE, tuple(map(str, range(100)))
                for engine, one in predictors(model, Path(folder, str(ratio)), threads).items():
                    calls[f"{engine} {ratio}"] = lambda one=one, x=x: one.run_point("full", x)
            ms = medians(calls, max(5, rounds // 2))
        engines = sorted({call.rsplit(" ", 1)[0] for call in calls})
        best = min(engines, key=lambda engine: ms[f"{engine} 0.0"])
        for ratio, most in PRUNED_GOALS.items():
            share = macs(nets[ratio]) / macs(network)
            for engine in engines:
                over = ms[f"{engine} {ratio}"] / share / ms[f"{engine} 0.0"]
                limit = most if engine == best else None
                print(
                    f"| {name} | {ratio:.0%} | {share:.3f} | {engine} | {over:.2f} | {goal(over, limit)} |", flush=True
                )


PARTS = {"full": full, "chains": chains, "widths": widths, "pruned": pruned}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(PARTS))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    print(f"{machine()}, torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, {given.threads} threads")
    for part in given.only.split(","):
        PARTS[part](given.rounds, given.threads)


if __name__ == "__main__":
    main()
