"""Which node gets which blocks. Pure."""

from collections.abc import Collection, Iterable

from supple.cluster.route import Block
from supple.errors import RecipeError


def placed(layers: int, nodes: int, replicas: int = 1, models: int = 1) -> list[frozenset[Block]]:
    """The blocks of every node: parts of consecutive layers, in a ring.

    Node k holds part k, and of every further copy the part after that, so that the copies of a part lie on different
    nodes, and what one node holds are layers in a row. Copies are `replicas` of the run, then as many of each sibling.
    """
    if nodes < 1 or replicas < 1:
        raise RecipeError(f"{nodes} nodes and {replicas} replicas are asked for.", "Give at least one of each.")
    parts = min(layers, nodes)
    copies = replicas * models
    if copies > nodes:
        cause = f"{copies} copies of every layer do not fit on {nodes} node{'s' if nodes > 1 else ''}."
        raise RecipeError(cause, f"Give --nodes {copies} or more, or fewer --replicas and --sibling.")
    bounds = [part * layers // parts for part in range(parts + 1)]

    def part(number: int, model: int) -> list[Block]:
        number %= parts
        return [Block(layer + 1, model) for layer in range(bounds[number], bounds[number + 1])]

    return [
        frozenset(block for copy in range(copies) for block in part(node + copy, copy // replicas))
        for node in range(nodes)
    ]


def scarcest(layers: int, held: Iterable[Collection[Block]]) -> list[int]:
    """What a further node should hold: as many layers in a row as the others do on average, of those with the fewest
    copies."""
    held = list(held)
    copies = [sum(Block(layer) in blocks for blocks in held) for layer in range(1, layers + 1)]
    size = min(layers, max(1, round(sum(copies) / max(1, len(held))))) if any(copies) else layers
    first = min(range(layers - size + 1), key=lambda first: sum(copies[first : first + size]))
    return list(range(first + 1, first + size + 1))


def parse_layers(text: str, count: int) -> list[int]:
    """`1-3,7` as layers."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise RecipeError(f'--layers is "{text}".', "Give layers such as 1-3,7.")
        found += range(int(low), int(high or low) + 1)
    if not found or not all(1 <= layer <= count for layer in found):
        raise RecipeError(f'--layers is "{text}"; the model has layers from 1 to {count}.', "Give some of these.")
    return sorted(set(found))
