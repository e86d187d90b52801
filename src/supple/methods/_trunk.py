"""What several methods share: a backbone as stem, blocks that keep the shape, and head; ranges; points run in turn."""

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from supple.backbones.protocols import Trunk, as_trunk
from supple.cost import on_meta
from supple.errors import RecipeError
from supple.model import Output, Outputs, Shape, State, example, is_empty, select
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


@torch.no_grad()
def run_stem(backbone: nn.Module, input_shape: Shape, called: list[str] | None = None) -> Tensor:
    """What the stem gives for one input without values; notes the paths of all modules that it calls."""
    bare: Any = on_meta(backbone)
    for path, part in bare.named_modules():
        part.register_forward_hook(lambda *_, path=path: None if called is None else called.append(path))
    state: Tensor = bare.stem(example(input_shape, 1, torch.empty, device="meta"))
    return state


def stem_alone(backbone: nn.Module, input_shape: Shape) -> nn.Module:
    """The backbone without the layers that its stem does not call; it shares all weights that are left."""
    called: list[str] = []
    run_stem(backbone, input_shape, called)
    new = without_blocks(backbone)
    for path, part in list(new.named_modules()):
        if path and path not in called and not list(part.children()):
            new.set_submodule(path, nn.Identity())
    return new


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


class Ends(nn.Module):
    """The stem or the head of a backbone as a module of its own; it shares all weights."""

    def __init__(self, backbone: nn.Module, part: Literal["stem", "head"]) -> None:
        super().__init__()
        self.backbone, self.part = without_blocks(backbone), part

    def forward(self, x: Any) -> Tensor:
        result: Tensor = getattr(self.backbone, self.part)(x)
        return result


def in_turn(points: Iterable[Point], x: Any, answer: Callable[[Any, Point], Output]) -> Outputs:
    """Runs points that share nothing but the input, each from the start; samples that stop leave the batch."""
    for point in points:
        keep = yield answer(x, point)
        if keep is not None:
            if is_empty(keep):
                return
            x = select(x, keep)


def in_steps(
    asked: Sequence[tuple[Point, tuple[Hashable, ...]]],
    start: Callable[[], State],
    step: Callable[[State, Any, int], State],
    answer: Callable[[Point, State], Output],
) -> Outputs:
    """Runs points that are sequences of steps; those that begin alike share what they have in common.

    step: from a state, a step and its place in the sequence to the next state.
    """
    known: dict[tuple[Hashable, ...], State] = {(): start()} if asked else {}
    for place, (point, steps) in enumerate(asked):
        later = [other for _, other in asked[place + 1 :]]
        done = max((begun for begun in known if steps[: len(begun)] == begun), key=len)
        state = known[done]
        for position in range(len(done), len(steps)):
            state = step(state, steps[position], position)
            begun = steps[: position + 1]
            if any(other[: position + 1] == begun for other in later):
                known[begun] = state
        keep = yield answer(point, state)
        known = {b: held for b, held in known.items() if any(other[: len(b)] == b for other in later)}
        if keep is not None:
            if is_empty(keep):
                return
            known = {b: select(held, keep) for b, held in known.items()}
