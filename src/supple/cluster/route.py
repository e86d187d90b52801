"""Where a request goes next: a pure function of the layers it still wants and of the nodes that are alive.

The original order is kept as long as it can be. A layer that nobody alive holds is passed over, several layers in a row
on one node are one hop, and where the time left is short, the layers that cost the most time are dropped.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

Why = Literal["next", "ahead", "sibling", "order", "time"]


class Block(NamedTuple):
    """A layer of a model: of the run itself (0), or of one of its siblings, whose layers fit in the same places."""

    layer: int  # from 1
    model: int = 0


class Node(NamedTuple):
    """A node that is alive, as a caller knows it."""

    name: str
    holds: frozenset[Block]
    block_ms: float = 1.0  # expected, of one block
    hop_ms: float = 0.0  # on top of its blocks, there and back
    wait_ms: float = 0.0  # until it is free


class Hop(NamedTuple):
    """The next thing to do. why: next (in order), ahead (layers before these are passed over), sibling (the first block
    is one of a sibling), order (another order, to keep the deadline), time (layers were dropped, to keep it)."""

    node: str
    blocks: tuple[Block, ...]
    wait_ms: float  # until the node is free, as expected
    work_ms: float  # what the hop takes then
    dropped: tuple[int, ...]  # layers that this request gives up for good
    why: Why


class Leg(NamedTuple):
    """One visit of a plan."""

    node: Node
    blocks: tuple[Block, ...]

    @property
    def work_ms(self) -> float:
        return self.node.hop_ms + len(self.blocks) * self.node.block_ms


def route(
    wanted: Sequence[int],
    nodes: Iterable[Node],
    left_ms: float | None = None,
    *,
    any_order: bool = True,
    begun: bool = True,
) -> Hop | None:
    """The next hop of a request, or None: nothing more can be done.

    wanted: the layers still to be run, in the order that is liked best. nodes: those alive. left_ms: what is left for
    all hops together; None: as long as it takes. any_order: a layer that was passed over may run later. begun: whether
    the request has run a layer; until then one is run, whatever the time.
    """
    nodes = list(nodes)
    blocks = held(wanted, nodes)
    legs = list(islice(plan(blocks, nodes), 1 if left_ms is None else None))
    why: Why | None = None
    if left_ms is not None and finish_ms(legs) > left_ms:
        shuffled = sorted(legs, key=lambda leg: leg.node.wait_ms) if any_order else legs
        if finish_ms(shuffled) <= left_ms:
            legs, why = shuffled, "order"
        else:
            legs, why = within(legs, left_ms, keep_one=not begun), "time"
    if not legs:
        return None
    first, available = legs[0], {block.layer for block in blocks}
    before = wanted[: wanted.index(first.blocks[0].layer)]
    passed = {layer for layer in before if layer not in available}
    dropped = set() if any_order else passed
    if why == "time":
        dropped |= available - {block.layer for leg in legs for block in leg.blocks}
    why = why or ("sibling" if first.blocks[0].model else "ahead" if passed else "next")
    gone = tuple(layer for layer in wanted if layer in dropped)
    return Hop(first.node.name, first.blocks, first.node.wait_ms, first.work_ms, gone, why)


def held(wanted: Iterable[int], nodes: Iterable[Node]) -> list[Block]:
    """Of every wanted layer the block to run: the run's own where anybody has it, else one of a sibling, or none."""
    best: dict[int, int] = {}
    for node in nodes:
        for layer, model in node.holds:
            best[layer] = min(model, best.get(layer, model))
    return [Block(layer, best[layer]) for layer in wanted if layer in best]


def plan(blocks: Sequence[Block], nodes: Sequence[Node]) -> Iterator[Leg]:
    """All hops, one after the other: each goes where a layer costs least time, with all layers in a row that are there.

    A node that was visited is expected to be free again when the request returns to it.
    """
    while blocks:
        holders = (Leg(node, in_a_row(blocks, node)) for node in nodes if blocks[0] in node.holds)
        leg = min(holders, key=lambda leg: ((leg.node.wait_ms + leg.work_ms) / len(leg.blocks), leg.node.name))
        yield leg
        blocks = blocks[len(leg.blocks) :]


def in_a_row(blocks: Sequence[Block], node: Node) -> tuple[Block, ...]:
    """The blocks from the first on that a node holds."""
    end = next((place for place, block in enumerate(blocks) if block not in node.holds), len(blocks))
    return tuple(blocks[:end])


def finish_ms(legs: Iterable[Leg]) -> float:
    """When the last hop ends: a node's queue gets shorter while the request is elsewhere."""
    now = 0.0
    for leg in legs:
        now = max(now, leg.node.wait_ms) + leg.work_ms
    return now


def within(legs: Sequence[Leg], left_ms: float, keep_one: bool) -> list[Leg]:
    """As many layers as the time allows: again and again the hop whose layers cost most loses its last ones, or goes.

    keep_one: if nothing fits, the one layer that ends first.
    """
    kept = list(legs)
    while kept and (excess := finish_ms(kept) - left_ms) > 0:

        def saved(place: int) -> float:
            return finish_ms(kept) - finish_ms(kept[:place] + kept[place + 1 :])

        place = max(range(len(kept)), key=lambda place: (saved(place) / len(kept[place].blocks), place))
        leg = kept[place]
        fewer = math.ceil(excess / leg.node.block_ms) if leg.node.block_ms > 0 else len(leg.blocks)
        if fewer < len(leg.blocks):
            kept[place] = Leg(leg.node, leg.blocks[:-fewer])
        else:
            del kept[place]
    if not kept and keep_one:
        leg = min(legs, key=lambda leg: leg.node.wait_ms + leg.node.hop_ms + leg.node.block_ms)
        kept = [Leg(leg.node, leg.blocks[:1])]
    return kept
