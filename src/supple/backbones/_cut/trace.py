"""Tracing a network as far as it must be taken apart to be cut: only the modules around the cuts (torch.fx)."""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx, nn

from supple.cost import on_meta
from supple.errors import RecipeError
from supple.text import did_you_mean, one_line


class CutError(RecipeError):
    """A module that cannot be cut at."""

    def __init__(self, name: str, cause: str, cure: str = "Cut elsewhere: see supple list --cuts.") -> None:
        super().__init__(cause, cure)
        self.name = name


def check_names(network: nn.Module, at: Sequence[str]) -> None:
    """Refuses names that the network does not have, or that stand for the whole of it."""
    names = [name for name, _ in network.named_modules() if name]
    for given in at:
        path, _, call = given.partition("#")
        if path not in names:
            raise RecipeError(
                f'there is no layer "{given}" to cut at.', f"{did_you_mean(path, names)[:300]} See supple list --cuts."
            )
        if call and not (call.isdigit() and int(call) >= 1):
            raise RecipeError(f'"{given}" is not a valid cut: "{call}" is not the number of a call.', "Write name#2.")


class Traced(fx.Tracer):
    """The graph of a network in which only what lies around the cuts is taken apart."""

    def __init__(self, network: nn.Module, at: Iterable[str]) -> None:
        import torchvision
        from timm.layers import _fx as timm_fx

        functions = tuple(timm_fx.get_notrace_functions())  # type: ignore[no-untyped-call]
        super().__init__(autowrap_modules=(math, torchvision.ops), autowrap_functions=functions)
        self.network = network
        self.around = {part for name in at for part in ancestors(name.partition("#")[0])}
        self.calls: Counter[str] = Counter()
        self.outputs: dict[str, Any] = {}  # by name#call
        settled = defaults(network)
        try:
            self.graph = self.trace(network, concrete_args=settled)
        except Exception as error:
            deepest = max(at, key=lambda name: name.count("."))
            cause = f"{type(network).__name__} cannot be cut at {', '.join(at)}: {one_line(error)}"
            raise CutError(deepest, cause) from None
        for node in [node for node in self.graph.nodes if node.op == "placeholder"][1:]:
            drop(self.graph, node)  # an input left at its default, and the checks that it stays there

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.around

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        path = self.path_of_module(m)
        self.calls[path] += 1
        name = f"{path}#{self.calls[path]}"
        self.outputs[name] = output = super().call_module(m, forward, args, kwargs)
        return output

    def find(self, name: str) -> fx.Node:
        """The value that a named call gives."""
        path, _, call = name.partition("#")
        output = self.outputs.get(f"{path}#{call or 1}")
        if output is None:
            times = self.calls[path]
            raise CutError(name, f"{name} does not run in this network" + (f": only {times} times." if times else "."))
        if not isinstance(output, fx.Proxy):
            raise CutError(name, f"{name} gives a {type(output).__name__}, not one tensor.")
        return output.node


def defaults(network: nn.Module) -> dict[str, Any]:
    """The inputs of a network besides the first, with their defaults; refused if one has none."""
    inputs = list(inspect.signature(network.forward).parameters.values())
    inputs = [one for one in inputs if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    needed = [one.name for one in inputs if one.default is one.empty]
    if len(needed) != 1:
        raise RecipeError(
            f"{type(network).__name__} takes {len(needed)} inputs ({', '.join(needed)}).",
            "Wrap it in a module whose forward takes one tensor.",
        )
    return {one.name: one.default for one in inputs if one.default is not one.empty}


def drop(graph: fx.Graph, node: fx.Node) -> None:
    """Erases a node and whatever uses it."""
    for user in list(node.users):
        drop(graph, user)
    graph.erase_node(node)


def weightless(network: nn.Module) -> nn.Module:
    """A copy to look at shapes with, on the meta device, where batch norms take most of the time and change none."""
    skeleton = on_meta(network)
    for part in skeleton.modules():
        if type(part) is nn.BatchNorm2d:
            part.forward = torch.empty_like  # type: ignore[method-assign]
    return skeleton


def ancestors(path: str) -> list[str]:
    """The root and every module around a path: `a.b.c` has "", `a`, `a.b`."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts))]
