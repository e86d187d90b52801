"""What several methods share: a backbone as stem, blocks that keep the shape, and head; ranges; points run in turn."""

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import Tensor, nn

from supple.backbones.protocols import Trunk, as_trunk
from supple.errors import RecipeError
from supple.model import Output, Outputs, is_empty, select
from supple.point import Point


def trunk_of(backbone: nn.Module, method: str) -> Trunk:
    """The backbone as a trunk; refuses one whose layers cannot change places."""
    trunk = as_trunk(backbone)
    if trunk is None:
        cause = f"method {method} cannot hold this {type(backbone).__name__}: it has no stem, blocks and head."
        raise RecipeError(cause, "Use the backbone vit (any plain ViT or DeiT of timm) or vit_cifar.")
    if not len(trunk.blocks):
        raise RecipeError(f"this {type(backbone).__name__} has no layers.", "Give it at least one.")
    return trunk


def with_blocks(backbone: nn.Module, blocks: Iterable[nn.Module]) -> nn.Module:
    """A copy of the backbone with copies of these blocks in place of its own."""
    shared = cast(Trunk, backbone).blocks.modules()  # about to be replaced: not worth a copy
    copies = copy.deepcopy(list(blocks))  # together: what they share stays shared
    return _put(copy.deepcopy(backbone, {id(own): own for own in shared}), copies)


def without_blocks(backbone: nn.Module) -> nn.Module:
    """The backbone with no blocks; it shares all weights that are left."""
    own: list[object] = [*backbone.parameters(), *backbone.buffers(), *cast(Trunk, backbone).blocks.modules()]
    return _put(copy.deepcopy(backbone, {id(part): part for part in own}), [])


def _put(backbone: nn.Module, blocks: Iterable[nn.Module]) -> nn.Module:
    backbone.set_submodule(blocks_path(backbone, cast(Trunk, backbone)), nn.Sequential(*blocks))
    return backbone


def read_token(state: Tensor, how: str) -> Tensor:
    """One vector per sample: the class token, or the mean of all tokens."""
    return state[:, 0] if how == "class" else state.mean(1)


def check_range(name: str, value: float, least: float, below: float = math.inf) -> None:
    """A setting of a method that must lie in a range; NaN lies in none."""
    if not least <= value < below:
        upper = "" if math.isinf(below) else f" to below {below:g}"
        raise RecipeError(f"method.{name} is {value}.", f"Give a number from {least:g}{upper}.")


def check_read(trunk: Trunk, how: str, method: str) -> None:
    if how == "class" and not trunk.class_token:
        cause = f"method {method} reads the class token, and this backbone has none."
        raise RecipeError(cause, "Set method.read=mean: the mean of all tokens.")


def blocks_path(model: nn.Module, trunk: Trunk) -> str:
    """Where the blocks of a trunk lie in the model that holds it."""
    blocks: nn.Module = trunk.blocks
    path: str = next(name for name, part in model.named_modules() if part is blocks)
    return path


def in_turn(points: Iterable[Point], x: Any, answer: Callable[[Any, Point], Output]) -> Outputs:
    """Runs points that share nothing but the input, each from the start; samples that stop leave the batch."""
    for point in points:
        keep = yield answer(x, point)
        if keep is not None:
            if is_empty(keep):
                return
            x = select(x, keep)
