"""Cutting a network at layer names into stages, so that a stopped run executes only its prefix.

Only the modules around a cut are traced (torch.fx); all others stay whole and are called as they are. What is alive at
a cut is carried as a tuple of tensors, the tensor that a branch reads first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from supple.backbones._cut.tap import Tap, find_tap
from supple.backbones._cut.trace import CutError, Traced, check_names, weightless
from supple.errors import RecipeError
from supple.model import Shape, example
from supple.text import one_line


@dataclass(frozen=True)
class Cuts:
    """A network as graphs: one per stage, in train and in eval mode (tracing bakes the mode in), and one per prefix."""

    taps: tuple[Tap, ...]  # what a branch reads at each cut
    stages: dict[bool, tuple[fx.Graph, ...]]  # by training mode; one more than there are cuts
    prefixes: tuple[fx.Graph, ...]  # eval mode: from the input to the tensor at each cut
    altered: tuple[bool, ...]  # whether the next stage writes into the tensor that the branch reads


def cut(network: nn.Module, at: Sequence[str], input_shape: tuple[int, ...]) -> Cuts:
    """Cuts a network after the named modules, in execution order; `name#2` is the second call of a shared module."""
    check_names(network, at)
    try:
        return _cut(network, at, input_shape)
    except CutError as error:
        from supple.backbones._cut.cut_points import nearest

        near = ", ".join(nearest(network, error.name, input_shape))
        raise RecipeError(error.cause, f"{error.cure} Nearest: {near}." if near else error.cure) from None


def _cut(network: nn.Module, at: Sequence[str], input_shape: tuple[int, ...]) -> Cuts:
    skeleton = weightless(network)
    stages: dict[bool, tuple[fx.Graph, ...]] = {}
    for mode in (True, False):
        traced = Traced(skeleton.train(mode), at)
        kinds = Kinds(skeleton.eval(), traced.graph, input_shape)
        nodes = [traced.find(name) for name in at]
        places = [kinds.order[node] for node in nodes]
        check_order(at, places)
        for name, node in zip(at, nodes):
            if any(user.op == "output" for user in node.users):
                raise CutError(name, f"the network cannot be cut at {name}: it is the end of the network.")
        stages[mode] = tuple(split(traced.graph, nodes, kinds, at))
    prefixes = tuple(prefix(traced.graph, node) for node in nodes)
    taps = tuple(find_tap(network, name, kinds.shapes[node], node) for name, node in zip(at, nodes))
    bodies = [fx.GraphModule(skeleton, graph) for graph in stages[False]]
    return Cuts(taps, stages, prefixes, altered(bodies, input_shape))


def check_order(at: Sequence[str], places: Sequence[int]) -> None:
    """Refuses cuts that are named twice, or whose places in the run do not rise."""
    twice = [name for place, name in enumerate(at) if name in at[:place]]
    if twice:
        raise RecipeError(f"the cut {twice[0]} is given twice.", "Give each cut once.")
    if list(places) != sorted(set(places)):
        names = [name for _, name in sorted(zip(places, at))]
        raise RecipeError(
            f"the cuts {', '.join(at)} are not in execution order, or meet.", f"Write them as: {', '.join(names)}."
        )


class Kinds(fx.Interpreter):
    """What each value of a graph is: a tensor with the batch first, something computed from constants, or else."""

    def __init__(self, network: nn.Module, graph: fx.Graph, input_shape: tuple[int, ...]) -> None:
        super().__init__(fx.GraphModule(network, graph))
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.named = {node.name: node for node in graph.nodes}
        self.fixed: set[fx.Node] = set()  # does not depend on the input
        for node in graph.nodes:
            if node.op != "placeholder" and all(arg in self.fixed for arg in node.all_input_nodes):
                self.fixed.add(node)
        found = []
        for batch in (2, 3):
            self.seen: dict[fx.Node, tuple[int, ...] | None] = {}
            try:
                with torch.no_grad():
                    self.run(torch.empty((batch, *input_shape), device="meta"))
            except Exception as error:
                cause = f"{type(network).__name__} does not take inputs of shape {input_shape}: {one_line(error)}"
                raise RecipeError(cause, "Give the shape it takes: input_shape, or data.size in a recipe.") from None
            found.append(self.seen)
        two, three = found
        self.shapes = {node: shape[1:] for node, shape in two.items() if shape is not None and shape}
        self.tensors = {node for node, shape in two.items() if shape is not None}
        self.batched = {n for n, s in two.items() if s and three[n] and (s[0], three[n][0]) == (2, 3)}  # type: ignore[index]

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.seen[self.named[n.name]] = tuple(value.shape) if isinstance(value, Tensor) else None
        return value


def split(graph: fx.Graph, cuts: Sequence[fx.Node], kinds: Kinds, names: Sequence[str]) -> Iterator[fx.Graph]:
    """One graph per stage: state in, state out. A node runs in the first stage that needs it."""
    output = next(node for node in graph.nodes if node.op == "output")
    stage_of = assign(graph, [*cuts, output])
    live = [carried(k, cuts, stage_of, kinds, names) for k in range(len(cuts))]
    source = next(node for node in graph.nodes if node.op == "placeholder")
    for k in range(len(cuts) + 1):
        new, known = fx.Graph(), {}
        state = new.placeholder("state")
        if k == 0:
            known[source] = state
        else:
            known.update({node: new.call_function(_item, (state, i)) for i, node in enumerate(live[k - 1])})
        for node in graph.nodes:
            if stage_of.get(node) == k and node.op not in ("placeholder", "output"):
                bring(node, new, known)
        if k < len(cuts):
            new.output(tuple(bring(node, new, known) for node in live[k]))
        else:
            for node in output.all_input_nodes:
                bring(node, new, known)
            new.output((map_arg(output.args[0], known.__getitem__),))
        yield new


def _item(state: tuple[Tensor, ...], index: int) -> Tensor:
    return state[index]


def bring(node: fx.Node, graph: fx.Graph, known: dict[fx.Node, fx.Node]) -> fx.Node:
    """Copies a node into a graph, and before it whatever it needs that is not there yet."""
    if node not in known:
        for arg in node.all_input_nodes:
            bring(arg, graph, known)
        known[node] = graph.node_copy(node, lambda n: known[n])
    return known[node]


def assign(graph: fx.Graph, ends: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """The stage in which each node runs: the first whose end needs it. Checks without a result run as early."""
    stage_of: dict[fx.Node, int] = {}
    for k, end in enumerate(ends):
        waiting = [end]
        while waiting:
            node = waiting.pop()
            if node not in stage_of:
                stage_of[node] = k
                waiting += node.all_input_nodes
    for node in graph.nodes:
        if node not in stage_of and node.is_impure() and node.all_input_nodes:
            stages = [stage_of[arg] for arg in node.all_input_nodes if arg in stage_of]
            if len(stages) == len(node.all_input_nodes):
                stage_of[node] = max(stages)
    return stage_of


def carried(
    k: int, cuts: Sequence[fx.Node], stage_of: dict[fx.Node, int], kinds: Kinds, names: Sequence[str]
) -> list[fx.Node]:
    """The tensors to carry over cut k: what the branch reads, then whatever later stages need of earlier ones.

    Sizes and constants are computed anew: a batch may have become smaller at the cut.
    """
    live = [cuts[k]]
    waiting = [arg for node, stage in stage_of.items() if stage > k for arg in node.all_input_nodes]
    seen: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or node in kinds.fixed or stage_of[node] > k:
            continue
        seen.add(node)
        if node not in kinds.tensors:
            waiting += node.all_input_nodes
        elif node not in kinds.batched:
            raise CutError(
                names[k],
                f"the network cannot be cut at {names[k]}: later layers need {node.name}, whose batch is not first.",
            )
        elif node is not cuts[k]:
            live.append(node)
    if cuts[k] not in kinds.batched:
        raise CutError(
            names[k], f"the network cannot be cut at {names[k]}: it does not give a tensor with the batch first."
        )
    return [live[0], *sorted(live[1:], key=kinds.order.__getitem__)]


def prefix(graph: fx.Graph, end: fx.Node) -> fx.Graph:
    """Only what leads from the input to one value."""
    new, known = fx.Graph(), {}
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = new.node_copy(node)
    new.output(bring(end, new, known))
    return new


@torch.inference_mode(False)  # tensors made in inference mode do not count their versions
@torch.no_grad()
def altered(stages: Sequence[nn.Module], input_shape: Shape) -> tuple[bool, ...]:
    """For each cut, whether the stage behind it writes into the tensor at the cut (an in-place activation)."""
    state: Any = example(input_shape, 2, torch.empty, device="meta")
    found = []
    for k, stage in enumerate(stages):
        before = state[0]._version if k else 0
        after = stage(state)
        if k:
            found.append(bool(state[0]._version != before))
        state = after
    return tuple(found)
