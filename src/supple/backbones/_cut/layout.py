"""How the tensor at a cut is laid out: found from its shape and from the layers next to it."""

import math
from collections.abc import Iterable, Iterator

from torch import fx, nn

from supple.backbones._cut.tap import Tap
from supple.errors import RecipeError

CHANNELS_FIRST = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, nn.GroupNorm, nn.InstanceNorm2d)
CHANNELS_LAST = (nn.Linear, nn.LayerNorm)


def find_tap(network: nn.Module, name: str, shape: tuple[int, ...], node: fx.Node) -> Tap:
    """The tap of a tensor of this shape (without the batch)."""
    if len(shape) == 1:
        return Tap("flat", shape[0])
    if len(shape) == 2:
        return _tokens(network, name, shape)
    if len(shape) != 3:
        raise RecipeError(
            f"{name} gives a tensor of shape {('batch', *shape)}: neither a map, nor tokens, nor features.",
            "Cut elsewhere; see supple list --cuts.",
        )
    first, second, third = shape
    if second == third and first != second:
        return Tap("nchw", first, second, third)
    if first == second and third != second:
        return Tap("nhwc", third, first, second)
    if next(_neighbours(network, node), CHANNELS_FIRST) is CHANNELS_FIRST:
        return Tap("nchw", first, second, third)
    return Tap("nhwc", third, first, second)


def _tokens(network: nn.Module, name: str, shape: tuple[int, ...]) -> Tap:
    count, channels = shape
    own = getattr(network, "num_prefix_tokens", None)  # of a transformer of timm
    for prefix in dict.fromkeys([own if isinstance(own, int) else 0, 0, 1, 2]):
        side = math.isqrt(max(0, count - prefix))
        if side and side * side == count - prefix:
            return Tap("tokens", channels, side, side, prefix)
    raise RecipeError(
        f"{name} gives {count} tokens, which do not form a square grid (with up to 2 class tokens).",
        "Cut elsewhere, or feed square images.",
    )


def _neighbours(network: nn.Module, node: fx.Node) -> Iterator[tuple[type[nn.Module], ...]]:
    """Which family the nearest telling layers belong to: the one that made the tensor, then those that read it."""
    for near in (node, *node.users, *node.all_input_nodes):
        if near.op == "call_module":
            parts = list(network.get_submodule(str(near.target)).modules())
            yield from _telling(reversed(parts) if near is node else parts)


def _telling(parts: Iterable[nn.Module]) -> Iterator[tuple[type[nn.Module], ...]]:
    for part in parts:
        for family in (CHANNELS_FIRST, CHANNELS_LAST):
            if isinstance(part, family):
                yield family
