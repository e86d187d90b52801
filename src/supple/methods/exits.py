"""Early exits: stop after any block that has a classifier of its own, or at any layer of a network you already have."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from supple.backbones._cut.tap import Tap
from supple.backbones.networks import check_outputs
from supple.backbones.protocols import WithExits, as_exits, cut_names
from supple.errors import PointError, RecipeError
from supple.methods.branches import make_branch
from supple.methods.staged import Bodies, Features, OnTap, bodies
from supple.model import FlexibleModel, Output, Outputs, Shape, Stage, is_empty, select
from supple.point import FULL, AnyPoint, Point
from supple.text import did_you_mean

Way = Literal["end_to_end", "classifier_wise", "layer_wise"]
Wanted = str | dict[str, bool | int | float | str]  # a branch by name, or with settings: {name: sl_vit, heads: 4}


class Exits(FlexibleModel):
    """Points `exit=1` ... `full`. A run stopped at exit k executes the stages up to k and only the heads asked for.

    The backbone either has `blocks` (state -> state) and `heads` (state -> logits) of its own, or is any traceable
    network that `at` cuts at the names of its layers, or of the stages it offers, with a branch at each cut (see
    `branches.py`); its own classifier is the last exit.

    Three ways to train the branches (SL-ViT, section 2.1): all together; classifier-wise, the backbone frozen and in
    eval mode, a classifier for new classes aside; layer-wise, each stage with its branch in a phase of its own, earlier
    ones frozen. In the last phase the rest of the backbone is trained.
    """

    backbone: nn.Module
    heads: nn.ModuleList | None  # of a cut network

    def __init__(
        self,
        backbone: nn.Module,
        *,
        at: tuple[str, ...] = (),  # layer names to cut a network at, in execution order; name#2: its second call
        branch: Wanted | tuple[Wanted, ...] = "linear",  # what is put there: one for all cuts, or one for each
        way: Way = "end_to_end",  # what learns
        unfrozen: tuple[str, ...] = (),  # classifier_wise: parts of the network that learn all the same
        freeze_random: bool = False,  # classifier_wise: allow a frozen network whose weights are random
        num_classes: int = 0,
        input_shape: Shape = (),
    ) -> None:
        super().__init__()
        if way not in get_args(Way):
            raise RecipeError(f'method.way is "{way}".', did_you_mean(str(way), get_args(Way)))
        self.backbone, self.heads = backbone, None
        self._bodies: Bodies | None = None
        self._asleep: list[nn.Module] = []  # what stays in eval mode
        self._awake: list[nn.Module] = []  # what does not, inside that
        if at:
            at = tuple(cut_names(backbone).get(name, name) for name in at)
            self._bodies = bodies(backbone, at, input_shape)
            classes = check_outputs(backbone, input_shape, num_classes)
            each = zip(one_each(branch, len(at)), self._bodies.taps, at)
            made = [OnTap(_made(b, tap, classes, name), tap.sound > 0) for b, tap, name in each]
            self.heads = nn.ModuleList([*made, OnTap(nn.Identity())])
        elif as_exits(backbone) is None:
            raise RecipeError(
                f"method exits does not know where to cut the backbone {type(backbone).__name__}.",
                "Say it: method.at=[layer1, layer2]; supple list --cuts MODEL shows the places.",
            )
        elif way != "end_to_end":
            raise RecipeError(
                f"method.way is {way}, but {type(backbone).__name__} has exits of its own.",
                "Use way=end_to_end, or cut a network with method.at.",
            )
        self.way = way
        self.points = (*(Point(exit=k) for k in range(1, len(self._heads))), FULL)
        if way == "classifier_wise":
            self._asleep = [backbone.requires_grad_(False)]
        self.unfreeze(unfrozen)

    def unfreeze(self, parts: Sequence[str]) -> None:
        """A new classifier of a frozen network learns with the branches: then the full model learns, too."""
        self._awake = [self.backbone.get_submodule(path).requires_grad_(True) for path in parts]

    def canonical(self, point: Point) -> Point:
        return FULL if point == Point(exit=len(self.points)) else point

    def validate(self, point: Point) -> None:
        if point.exit is not None and point.exit > len(self.points):
            raise PointError(
                f"this model cannot run {point!r}: it has {len(self.points)} exits.",
                f"Use exit=1 to exit={len(self.points)} (the last one is full).",
            )
        super().validate(point)

    def stages(self) -> list[Stage]:
        return [Stage(*parts) for parts in zip(self._blocks, self._heads, self.points)]

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        wanted = {self._place(point): point for point in self.order(points)}
        state, last = x, max(wanted, default=0)
        for place, (block, head) in enumerate(zip(self._blocks, self._heads), 1):
            if place > last:
                return
            state = (x.outputs[place - 1],) if isinstance(x, Features) else block(state)
            if place in wanted:
                keep = yield Output(wanted[place], head(state))
                if keep is not None:
                    if is_empty(keep):
                        return
                    state, x = select(state, keep), select(x, keep) if isinstance(x, Features) else x
            altered = self._bodies is not None and place < last and self._bodies.altered[place - 1]
            if altered and torch.is_grad_enabled():
                state = (state[0].clone(), *state[1:])  # the next stage writes into what the branch has read

    def features(self, x: Any) -> Features:
        """What the branches of a cut network read for a batch; the backbone runs as it is, without gradients."""
        assert self._bodies is not None, "only a cut network has taps"
        found, state = [], x
        with torch.no_grad():
            for body in self._bodies():
                state = body(state)
                found.append(state[0].clone())
        return Features(tuple(found))

    def cached_features(self) -> Callable[[Any], Features] | None:
        return self.features if self.way == "classifier_wise" and not self._awake else None

    def plain(self, point: Point) -> nn.Module:
        place = self._place(point)
        if self._bodies is None:
            return copy.deepcopy(nn.Sequential(*self._blocks[:place], self._heads[place - 1]))
        if place == len(self.points):
            return copy.deepcopy(self.backbone)
        return copy.deepcopy(nn.Sequential(self._bodies.prefix(place), *cast(OnTap, self._heads[place - 1])))

    def branch(self, point: Point) -> nn.Module | None:
        head = self._heads[self._place(point) - 1]
        return None if self._bodies is not None and point == FULL else head  # the classifier belongs to the network

    @property
    def taps(self) -> tuple[Tap, ...]:
        """None where the backbone has exits of its own."""
        return self._bodies.taps if self._bodies is not None else ()

    def num_phases(self) -> int:
        return len(self.points) if self.way == "layer_wise" else 1

    def begin_phase(self, phase: int) -> tuple[Point, ...]:
        if self.way != "layer_wise":  # the classifier of a frozen backbone does not learn, and need not run
            return self.points[:-1] if self.way == "classifier_wise" and not self._awake else self.points
        assert self._bodies is not None
        self._bodies.frozen = phase
        blocks = self._bodies()
        self._asleep = [part for block in blocks[:phase] for part in block.children()]
        self.requires_grad_(False)
        for part in (blocks[phase], self._heads[phase]):
            part.requires_grad_(True)
        for block in blocks[:phase]:  # a layer that is called again in this phase has learnt already
            block.requires_grad_(False)
        self.train(self.training)
        return (self.points[phase],)

    def train(self, mode: bool = True) -> "Exits":
        super().train(mode)
        for part in self._asleep:
            part.eval()
        for part in self._awake:
            part.train(mode)
        return self

    def refresh(self) -> None:
        if self._bodies is not None:
            self._bodies.forget()

    def _apply(self, fn: Any, recurse: bool = True) -> "Exits":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.refresh()
        return self

    @property
    def _blocks(self) -> Sequence[nn.Module]:
        return self._bodies() if self._bodies is not None else list(cast(WithExits, self.backbone).blocks)

    @property
    def _heads(self) -> nn.ModuleList:
        return self.heads if self.heads is not None else cast(WithExits, self.backbone).heads

    def _place(self, point: Point) -> int:
        return point.exit or len(self.points)


def _made(branch: Wanted, tap: Tap, num_classes: int, name: str) -> nn.Module:
    try:
        return make_branch(branch, tap, num_classes)
    except RecipeError as error:
        raise RecipeError(f"at {name}: {error.cause}", error.cure) from None


def one_each(branch: Wanted | Sequence[Wanted], count: int) -> list[Wanted]:
    """The branch of each cut."""
    if isinstance(branch, (str, Mapping)):
        return [branch] * count
    if not isinstance(branch, (tuple, list)):
        cure = "Give a name, or a mapping such as {'name': 'sl_vit', 'heads': 4}; one for all cuts, or a list."
        raise RecipeError(f"{type(branch).__name__} is not a valid branch.", cure)
    if len(branch) != count:
        raise RecipeError(f"method.branch names {len(branch)} branches for {count} cuts.", "Give one, or one per cut.")
    return list(branch)
