"""Whether pruned dimensions save the time that their MACs promise, what a search costs, and Torch-Pruning beside it.

    pip install torch-pruning
    python benchmarks/pruning.py [--rounds 20] [--threads 2]

Everything that is compared runs in turn inside this process; the figures are ratios of medians. Prints Markdown tables.
"""

import argparse
import copy
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from supple import checkpoint
from supple.backbones.dims import blocks_of
from supple.backbones.networks import timm_network
from supple.cost import count_macs, count_params, on_meta
from supple.inference.timing import interleave
from supple.machine import machine
from supple.methods import build
from supple.methods.prune import Prune
from supple.methods.ranking import keep, magnitudes
from supple.methods.static import Static
from supple.recipe import make_recipe
from supple.surgery.deploy import prepare
from supple.surgery.prune import Plan, prune

SHAPE = (3, 224, 224)
NETWORKS = ("swin_tiny_patch4_window7_224", "deit_tiny_patch16_224")
GOALS = {0.2: 1.15, 0.4: 1.15, 0.6: 1.30, 0.8: None}


def made(name: str) -> nn.Module:
    return timm_network(num_classes=100, input_shape=SHAPE, model=name).eval()


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    return {name: found.p50_ms for name, found in interleave(calls, rounds, seconds=1e9).items()}


def macs(network: nn.Module) -> int:
    bare, x = on_meta(network), torch.empty((1, *SHAPE), device="meta")
    return count_macs(lambda: bare(x))


def searched(network: nn.Module) -> Prune:
    """A search whose scores are chance, but lower in early blocks: as uneven as those that training gives."""
    model = Prune(copy.deepcopy(network)).eval()
    model.input_shape = SHAPE
    with torch.no_grad():
        for place, score in enumerate(model.scores):
            score.uniform_().mul_(0.8 + 0.4 * place / len(model.scores))
    return model


@torch.inference_mode()
def times(rounds: int) -> None:
    print("\n224 px, batch 16, deployed: time over (MAC ratio x unpruned time)\n")
    print("| network | pruned | MAC ratio | ms | ratio | goal | padded |\n|---|---|---|---|---|---|---|")
    x = torch.randn(16, *SHAPE)
    for name in NETWORKS:
        network = made(name)
        model, whole = searched(network), prepare(network, SHAPE)
        fast = {ratio: prepare(prune(model, ratio, Plan())[0], SHAPE) for ratio in GOALS}
        share = {ratio: macs(prune(model, ratio, Plan())[0]) / macs(network) for ratio in GOALS}
        calls = {"0": lambda whole=whole: whole(x)} | {str(r): lambda m=m: m(x) for r, m in fast.items()}
        ms = medians(calls, rounds)
        for ratio, goal in GOALS.items():
            value = ms[str(ratio)] / share[ratio] / ms["0"]
            padded = all(block.hidden % 16 == 0 for block in blocks_of(fast[ratio]))
            said = "reported" if goal is None else f"at most {goal:.2f}"
            row = (name, f"{ratio:.0%}", f"{share[ratio]:.3f}", f"{ms[str(ratio)]:.1f}", f"{value:.2f}", said)
            print(f"| {' | '.join(row)} | {'yes' if padded else 'no'} |", flush=True)


def searching(rounds: int) -> None:
    """A training step with scores against one without."""
    network = made("deit_tiny_patch16_224").train()
    x, y = torch.randn(8, *SHAPE), torch.randint(100, (8,))
    models = {"plain": Static(copy.deepcopy(network)), "search": Prune(copy.deepcopy(network))}
    steps = {}
    for name, model in models.items():
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

        def step(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            outputs = model(x, model.points)
            optimizer.zero_grad()
            (F.cross_entropy(outputs[0].logits, y) + model.penalty(outputs)).backward()
            optimizer.step()

        steps[name] = step
    ms = medians(steps, 2 * rounds)
    print(f"\nA step of the search / a plain one, DeiT-Tiny, batch 8: {ms['search'] / ms['plain']:.3f} (at most 1.05)")


def building() -> None:
    began = time.perf_counter()
    recipe = make_recipe(
        {
            "data": {"name": "cifar100", "size": 224},
            "backbone": {"name": "timm", "model": NETWORKS[0]},
            "method": {"name": "prune"},
        }
    )
    model = build(recipe.backbone, recipe.method, 100, SHAPE)
    network, kept = prune(model.eval(), 0.4, Plan(by="magnitude"))
    backbone, method = {**recipe.backbone, "kept": kept.shape}, {"name": "static", "learn": "all"}
    small = build(backbone, method, 100, SHAPE)
    small.get_submodule("backbone").load_state_dict(network.state_dict())
    small.classes = tuple(map(str, range(100)))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder), small, recipe.model_copy(update={"backbone": backbone, "method": method}))
        print(f"\nBuilding, pruning and saving Swin-T: {time.perf_counter() - began:.1f} s (under 10)")


def against_torch_pruning(rounds: int) -> None:
    """DeiT-Tiny, pruned by magnitude in both, at (nearly) equal MACs."""
    if importlib.util.find_spec("torch_pruning") is None:
        print("\ntorch-pruning is not installed: pip install torch-pruning")
        return
    import torch_pruning as tp

    print("\nDeiT-Tiny by magnitude, supple and Torch-Pruning, batch 16\n")
    print("| pruned | whose | GMACs | params | ms | head dims |\n|---|---|---|---|---|---|")
    x = torch.randn(16, *SHAPE)
    for ratio in (0.2, 0.4):
        network = made("deit_tiny_patch16_224")
        theirs = by_torch_pruning(tp, copy.deepcopy(network), ratio)
        ours = at_macs(network, macs(theirs))
        pair = {"supple": prepare(ours, SHAPE), "Torch-Pruning": prepare(theirs, SHAPE)}
        with torch.inference_mode():
            ms = medians({name: lambda m=m: m(x) for name, m in pair.items()}, rounds)
        for name, plain in (("supple", ours), ("Torch-Pruning", theirs)):
            dims = sorted({block.attention.qkv.out_features // 3 // block.heads for block in blocks_of(plain)})
            cells = (f"{macs(plain) / 1e9:.3f}", f"{count_params(plain.parameters()):,}", f"{ms[name]:.1f}")
            print(f"| {ratio:.0%} | {name} | {' | '.join(cells)} | {', '.join(map(str, dims))} |", flush=True)


def by_torch_pruning(tp: object, network: nn.Module, ratio: float) -> nn.Module:
    """Its own way for timm: head dimensions and MLPs, the residual width left alone."""
    heads = {part.qkv: part.num_heads for part in network.modules() if hasattr(part, "qkv")}
    for part in network.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False  # its tracer does not follow fused attention
    pruner = tp.pruner.MagnitudePruner(  # type: ignore[attr-defined]
        network,
        torch.randn(1, *SHAPE),
        importance=tp.importance.GroupMagnitudeImportance(),  # type: ignore[attr-defined]
        pruning_ratio=ratio,
        num_heads=heads,
        prune_num_heads=False,
        prune_head_dims=True,
        ignored_layers=[network.head, *residual(network)],
    )
    pruner.step()
    for part in network.modules():
        if hasattr(part, "qkv"):
            part.num_heads = pruner.num_heads[part.qkv]
            part.head_dim = part.qkv.out_features // (3 * part.num_heads)
            part.attn_dim = part.qkv.out_features // 3
            part.fused_attn = True
    return network.eval()


def residual(network: nn.Module) -> list[nn.Module]:
    """What writes into the residual stream: its width is not pruned."""
    found = [network.patch_embed]
    for part in network.modules():
        found += [getattr(part, name) for name in ("proj", "fc2") if isinstance(getattr(part, name, None), nn.Linear)]
    return found


def at_macs(network: nn.Module, wanted: int) -> nn.Module:
    """Pruned by magnitude as little as keeps within so many MACs."""
    model = Static(copy.deepcopy(network))
    low, high = 0.0, 0.99
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if macs(prune(model, middle, Plan(by="magnitude"))[0]) > wanted else (low, middle)
    assert keep(magnitudes(blocks_of(network)), high).shape
    return prune(model, high, Plan(by="magnitude"))[0].eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{machine()}, torch {torch.__version__}, {arguments.threads} threads")
    times(arguments.rounds)
    searching(arguments.rounds)
    building()
    against_torch_pruning(arguments.rounds)


if __name__ == "__main__":
    main()
