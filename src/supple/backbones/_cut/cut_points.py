"""Where a network can be cut: every module call with the tensor it gives and the share of the MACs before it."""

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from supple.backbones._cut.cut import Kinds, assign, carried
from supple.backbones._cut.tap import Tap, find_tap
from supple.backbones._cut.trace import Traced, ancestors, weightless
from supple.backbones.protocols import as_stages
from supple.errors import RecipeError
from supple.model import Shape, example
from supple.text import one_line


@dataclass(frozen=True)
class CutPoint:
    """One call of one module. `reason` says why the network cannot be cut there, where it cannot."""

    name: str
    share: float  # of the network's MACs, done when it returns
    tap: Tap | None = None
    reason: str | None = None
    alive: int = 1  # tensors that the rest of the network needs: more than one inside a residual


def places(
    network: nn.Module, input_shape: Shape, depth: int = 99, within: Container[str] | None = None
) -> list[CutPoint]:
    """The module calls of a network in execution order: those with at most `depth` parts to their name, and only those
    right inside the modules `within`.
    """
    skeleton = weightless(network).eval()
    if as_stages(network) is not None:
        return own_places(skeleton, input_shape)
    calls, total = walk(skeleton, input_shape)
    found: dict[str, CutPoint] = {}
    parents: dict[str, list[str]] = {}
    for name in calls:
        parent = name.partition("#")[0].rpartition(".")[0]
        if name.count(".") < depth and (within is None or parent in within):
            parents.setdefault(parent, []).append(name)
    for names in parents.values():  # those with the same parent are looked at together
        try:
            traced = Traced(skeleton, names)
            kinds = Kinds(skeleton, traced.graph, input_shape)
        except RecipeError as error:
            found |= {name: CutPoint(name, calls[name] / total, reason=error.cause) for name in names}
            continue
        for name in names:
            found[name] = look(network, traced, kinds, name, calls[name] / total)
    return [found[name] for name in calls if name in found]


def own_places(network: nn.Module, input_shape: Shape) -> list[CutPoint]:
    """Those of a network, on the meta device, that offers its stages."""
    own = as_stages(network)
    assert own is not None
    state: Any = example(input_shape, 2, torch.empty, device="meta")
    done = []
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for stage in own.stages.values():
            state = stage(state)
            done.append(counter.get_total_flops())
    shares = [macs / max(1, done[-1]) for macs in done]
    return [
        CutPoint(name, share, own.reads.get(name), None if name in own.reads else "it is the end of the network.")
        for name, share in zip(own.stages, shares)
    ]


def cuts(network: nn.Module, input_shape: Shape, depth: int = 2) -> list[CutPoint]:
    """Where a network can be cut, in execution order: names with at most `depth` parts."""
    return [place for place in places(network, input_shape, depth) if place.reason is None]


def nearest(network: nn.Module, name: str, input_shape: tuple[int, ...], count: int = 3) -> list[str]:
    """The places to cut at that come nearest to a module, in execution order."""
    try:
        around = places(network, input_shape, within=ancestors(name.partition("#")[0]))
    except RecipeError:
        return []
    possible = [place for place in around if place.reason is None]
    path = name.partition("#")[0]
    here = next((place.share for place in around if place.name in (name, path)), 0.0)
    near = sorted(possible, key=lambda place: abs(place.share - here))[:count]
    return [place.name for place in possible if place in near]


def look(network: nn.Module, traced: Traced, kinds: Kinds, name: str, share: float) -> CutPoint:
    try:
        node = traced.find(name)
        output = next(node for node in traced.graph.nodes if node.op == "output")
        if node in output.all_input_nodes:
            raise RecipeError("it is the end of the network.", "")
        stage_of = assign(traced.graph, [node, output])
        live = carried(0, [node], stage_of, kinds, [name])
        return CutPoint(name, share, find_tap(network, name, kinds.shapes[node], node), alive=len(live))
    except RecipeError as error:
        return CutPoint(name, share, reason=error.cause)


def walk(network: nn.Module, input_shape: tuple[int, ...]) -> tuple[dict[str, int], int]:
    """Runs a network on the meta device: the MACs done when each module call returns, in that order, and in all."""
    calls: Counter[str] = Counter()
    done: dict[str, int] = {}
    with FlopCounterMode(display=False) as counter, torch.no_grad():

        def returned(name: str) -> Any:
            def note(module: nn.Module, args: Any, output: Any) -> None:
                calls[name] += 1
                if isinstance(output, Tensor):
                    label = name if calls[name] == 1 else f"{name}#{calls[name]}"
                    done[label] = counter.get_total_flops() // 2

            return note

        hooks = [module.register_forward_hook(returned(name)) for name, module in network.named_modules() if name]
        try:
            network(torch.empty((2, *input_shape), device="meta"))
        except Exception as error:
            cause = f"{type(network).__name__} does not run without data: {one_line(error)}"
            raise RecipeError(cause, "It decides by its data, or does not fit inputs of this size.") from None
        total = counter.get_total_flops() // 2
    for hook in hooks:
        hook.remove()
    return done, max(1, total)
