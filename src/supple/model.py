"""A FlexibleModel is an ordered family of points that share weights.

The point is an argument of the call, never a setting left on the module: two requests with different points may be in
flight at once. A method (see `methods/`) writes `points`, `run` and `plain`; the rest is inherited. What only some
methods can do (layers to merge, scores to prune by) is declared here too, with defaults that say no.
"""

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from supple.errors import PointError
from supple.ladder import Ladder
from supple.point import FIELDS, FULL, AnyPoint, Group, Point, as_point

if TYPE_CHECKING:
    from supple.backbones._cut.tap import Tap
    from supple.backbones.protocols import Trunk
    from supple.methods.gates import Gates
    from supple.methods.ranking import Scores
    from supple.methods.staged import Features
    from supple.policy.policy import Policy
    from supple.recipe import Recipe

Shape = tuple[Any, ...]  # of one sample: the sides of a tensor, or the shapes of several
State = Any  # what lives at a cut: a tensor, or a tuple or dict of tensors, all with the batch first
Batches = Iterable[tuple[Any, Any]]  # (x, y)
Outputs = Generator["Output", Tensor | None, None]  # what `run` gives


@dataclass
class Output:
    """What one point answered for one batch. What a penalty or an analysis needs travels here, never on the module."""

    point: Point
    logits: Tensor
    aux: dict[str, Tensor] = field(default_factory=dict)  # gate logits, position logits, dependency weights, ...
    cost: Tensor | None = None  # MACs of each sample, where they depend on the data
    margin: Tensor | None = None  # of each sample, how far its nearest discrete decision is from flipping; None: none
    losses: dict[str, Tensor] | None = None  # losses the model computes itself (detectors)


class Stage(nn.Module):
    """A piece between two cuts: `body` carries the state on; `head` reads the logits of `point` from it.

    A stage that answers no point has neither of the two.
    """

    def __init__(self, body: nn.Module, head: nn.Module | None = None, point: Point | None = None) -> None:
        super().__init__()
        assert (head is None) == (point is None), "a stage answers a point if, and only if, it has a head"
        self.body = body
        self.head = head
        self.point = point

    def forward(self, state: State, read: bool = True) -> tuple[State, Tensor | None]:
        state = self.body(state)
        return state, self.head(state) if read and self.head is not None else None


class FlexibleModel(nn.Module):
    """See the module's text. `points` is a short published list, cheapest first, the full model last."""

    points: tuple[Point, ...]
    groups: dict[str, Group]
    sampled: tuple[str, ...] = ()  # groups that `train.sample` may name: one of their points in each step
    settled: tuple[Point, ...] = ()  # further points that `settle` made room for
    publishes: bool = False  # whether its `points` may be others of those that it can run: see `publish`
    settles_on: str = "training"  # the images that `settle` is to be given: training or validation
    input_shape: Shape | None = None  # of one sample; set when the model is built from a recipe
    task: str = "classes"  # a key of supple.tasks.TASKS
    classes: tuple[str, ...] = ()
    preprocess: Any = None  # set by `supple.load`: what turns a file into an input
    policy: "Policy | None" = None  # when to stop early, as calibrated; set by `supple.load`
    ladder: Ladder  # empty, until `supple.load` or an evaluation fills it
    backbone: nn.Module | None  # the network that the method holds; None: it took the network apart
    backbone_spec: dict[str, Any] | None = None  # its section of a recipe; None: it is a module without a name
    method_spec: dict[str, Any] | None = None  # that of the method; None: it is not one of METHODS
    expected_input: Mapping[str, Any] = {}  # settings of `data` that the weights it started from were made for
    recipe: "Recipe | None" = None  # that it was trained with; set by `supple.load` and by training

    def __init__(self) -> None:
        super().__init__()
        self.backbone = None
        self.groups = {}
        self.ladder = Ladder()

    # --- what a method writes -------------------------------------------------------------------------------------

    def run(self, x: Any, points: Iterable[AnyPoint]) -> Outputs:
        """Yields each asked point's output as soon as it exists, in execution order.

        Stages that no asked point needs do not run. `keep = yield output`: the caller may send the indices (or a mask)
        of the samples of this output that go on; the others leave the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} must write run()")

    def plain(self, point: Point) -> nn.Module:
        """An ordinary module with copies of just the weights that a checked point uses, and equal outputs."""
        raise NotImplementedError(f"{type(self).__name__} must write plain()")

    def canonical(self, point: Point) -> Point:
        """The one spelling of a point: for example, the last exit is the full model. Default: as it stands."""
        return point

    def validate(self, point: Point) -> None:
        """Raises PointError, saying what is possible, for a canonical point that this model cannot run.

        Default: those in `points` and `settled` can be run.
        """
        if point not in (*self.points, *self.settled):
            possible = ", ".join(map(str, (*self.points, *self.settled)))
            raise PointError(f"this model cannot run {point!r}: it has the points {possible}.", "Use one of these.")

    def rank(self, point: Point) -> float:
        """Where a checked point comes in execution order. Default: its place in `points`."""
        return (*self.points, *self.settled).index(point)

    def draw(self, rng: random.Random) -> Point | None:
        """A random one of all points that it can run, published or not. Default: None, there are only `points`."""
        return None

    def mixtures(self) -> Iterator[Point]:
        """All points that it can run, one after the other: there may be millions. Default: there are only `points`."""
        yield from dict.fromkeys((*self.points, *self.settled))

    def layers_run(self, point: Point) -> tuple[int, ...]:
        """The layers that a checked point runs, where points differ in them. Default: those that it names."""
        return point.layers or ()

    def publish(self, points: Iterable[AnyPoint]) -> None:
        """Makes others of the points that it can run its `points`. Default: refused, there are no others."""
        raise PointError(f"the points of a {type(self).__name__} are fixed.", "Use those that it has.")

    def penalty(self, outputs: Sequence[Output]) -> Tensor:
        """The method's own loss term. Default: none."""
        return outputs[0].logits.new_zeros(())

    def no_weight_decay(self) -> Iterable[nn.Parameter]:
        """Parameters that weight decay leaves alone. Default: none."""
        return ()

    def resting(self, step: int) -> Iterable[nn.Parameter]:
        """Parameters that do not learn in a step of a training (steps count from 0). Default: all learn in all."""
        return ()

    def rates(self) -> Mapping[str, float]:
        """Factors of the rate for parameters, by name, that learn best at another one. Default: as the network says."""
        own = getattr(self.backbone, "rates", None)
        return {f"backbone.{name}": factor for name, factor in own.items()} if isinstance(own, Mapping) else {}

    def num_phases(self) -> int:
        """How many trainings follow one another, each with its own epochs and optimizer. Default: one."""
        return 1

    def begin_phase(self, phase: int) -> tuple[Point, ...]:
        """Called before a phase (they count from 0): says what may learn in it, and gives the points that do."""
        return self.points

    def unfreeze(self, parts: Sequence[str]) -> None:
        """Lets parts of a frozen network, by path, learn all the same. Default: whatever may learn does already."""

    def add_points(self, points: Iterable[AnyPoint]) -> None:
        """Makes room for further points (no statistics yet: `settle` finds them, a checkpoint brings them)."""
        for point in points:
            self.check(point)

    def start(self, fresh: Sequence[str]) -> None:
        """Once before training, when the weights that it starts from are there; fresh: names of those still random."""

    def refresh(self) -> None:
        """After parts of the network were replaced: forgets whatever was made from the old ones. Default: nothing."""

    def settle(self, loader: Batches, points: Iterable[AnyPoint] = ()) -> None:
        """Once after training: what must be computed from data, such as norm statistics for more widths."""
        self.add_points(points)

    def stages(self) -> list[Stage]:
        """The full model as a chain `state -> (state, logits or None)`; the first takes x, the last answers `full`.

        The logits of a stage are those of its `point`; a stage without a point gives none. Default: one stage.
        """
        return [Stage(nn.Identity(), _Full(self), FULL)]

    def compilable_modules(self) -> list[nn.Module]:
        """The modules torch.compile may take one by one: each is called alike in every step, whatever the points."""
        stages = self.stages()
        parts = [part for stage in stages for part in (stage.body, stage.head) if part is not None]
        return parts if len(stages) > 1 else []

    def branch(self, point: Point) -> nn.Module | None:
        """The part that only serves this point's own answer (an exit's classifier), if there is such a part."""
        return None

    def auxiliary_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters that no point uses when it answers; they are counted as `extra_params`."""
        return ()

    # --- what only some methods can do ------------------------------------------------------------------------------

    @property
    def trunk(self) -> "Trunk | None":
        """The network as stem, blocks and head, where it is such a one."""
        return None

    @property
    def taps(self) -> "tuple[Tap, ...]":
        """What the branches of a cut network read, cut by cut. Default: the network is not cut."""
        return ()

    def cached_features(self) -> "Callable[[Any], Features] | None":
        """From inputs to what `run` also takes in their place, worth keeping as it never changes in training.

        Default: None, there is nothing of that kind.
        """
        return None

    def mergeable(self) -> tuple[str, ...]:
        """Paths of the module lists whose k-th entry belongs to layer k alone, so that runs can exchange layers.

        Default: none, such runs cannot be merged.
        """
        return ()

    def pruning_scores(self) -> "Scores | None":
        """How much each dimension of the backbone matters, as a search found. Default: None, it was never searched."""
        return None

    def layer_gates(self) -> "Gates | None":
        """What decides, layer by layer, whether a sample runs it, where layers can run one by one. Default: None."""
        return None

    # --- what every model offers ----------------------------------------------------------------------------------

    @property
    def axes(self) -> tuple[str, ...]:
        """The fields in which the points of this model differ."""
        known = [point.chosen() for point in (*self.points, *self.settled)]
        return tuple(name for name in FIELDS if any(name in chosen for chosen in known))

    @property
    def offered(self) -> list[Point]:
        """The points that it answers at where nobody names others, in execution order: those that are published or
        settled, and those of its policy."""
        named = () if self.policy is None else self.policy.points
        return self.order((*self.points, *self.settled, *named))

    def check(self, point: AnyPoint) -> Point:
        """The canonical spelling of a point this model can run; PointError says what is possible instead."""
        given = as_point(point)
        canonical = self.canonical(given)
        if canonical != FULL:
            foreign = [name for name in canonical.chosen() if name not in self.axes]
            if foreign:
                differ = f"its points differ in {', '.join(self.axes)}" if self.axes else "it has one point, full"
                raise PointError(
                    f"this model cannot run {given!r}: it has no axis {', '.join(foreign)}, {differ}.",
                    f"Use one of its points: {', '.join(map(str, (*self.points, *self.settled)))}.",
                )
            self.validate(canonical)
        return canonical

    def order(self, points: Iterable[AnyPoint]) -> list[Point]:
        """The checked points, each once, in execution order."""
        if isinstance(points, (Point, str)) or not isinstance(points, Iterable):
            points = (points,)
        checked = [self.check(point) for point in points]
        if len(checked) < 2:
            return checked
        return sorted(set(checked), key=lambda point: (self.rank(point), point == FULL, str(point)))

    @overload
    def forward(self, x: Any, point: AnyPoint = FULL) -> Tensor: ...
    @overload
    def forward(self, x: Any, point: Sequence[AnyPoint]) -> tuple[Output, ...]: ...
    def forward(self, x: Any, point: AnyPoint | Sequence[AnyPoint] = FULL) -> Tensor | tuple[Output, ...]:
        """The logits of one point, or the outputs of several (what the training loop asks for)."""
        if not isinstance(point, (Point, str)):
            return tuple(self.run(x, point))  # in execution order
        for output in self.run(x, (point,)):
            return output.logits
        raise AssertionError(f"run() yielded nothing for {point}")

    def extract(self, point: AnyPoint = FULL, deploy: bool = False) -> nn.Module:
        """A plain, physically smaller module with the outputs of `point`.

        deploy=True also folds the norms into the convolutions and picks the memory format (equal to 1e-5), for
        inference only.
        """
        module = self.plain(self.check(point)).train(self.training)
        if not deploy:
            return module
        from supple.surgery.deploy import prepare

        return prepare(module, self.input_shape)

    def save(self, folder: str | PathLike[str]) -> Path:
        """Writes the model into a new run folder, with its ladder and policy; `supple.load` opens it."""
        from supple import checkpoint

        return checkpoint.save_new(Path(folder), self)


class _Full(nn.Module):
    """The full model as a head of its own, so that a model without cuts is still a chain of one stage."""

    def __init__(self, model: FlexibleModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Tensor:
        logits: Tensor = self.model(x)
        return logits


def as_output(point: Point, answer: Tensor | Mapping[str, Any]) -> Output:
    """The output of a point, made from what a network gave: logits, or a mapping of `Output`'s fields (detectors)."""
    return Output(point, answer) if isinstance(answer, Tensor) else Output(point, **answer)


def example(shape: Shape, batch: int = 1, make: Callable[..., Tensor] = torch.zeros, **where: Any) -> Any:
    """A batch of inputs of this shape: `make` gives each tensor (torch.zeros, torch.randn, torch.empty)."""
    if all(isinstance(side, int) for side in shape):
        return make((batch, *shape), **where)
    return tuple(example(part, batch, make, **where) for part in shape)


def select(state: State, keep: Tensor) -> State:
    """The samples `keep` (indices, or a mask over the batch) of a state; None, a part that is not there, stays so."""
    if keep.dtype == torch.bool:
        keep = keep.nonzero().squeeze(1)
    if isinstance(state, dict):
        return {name: select(value, keep) for name, value in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(select(value, keep) for value in state))
    if isinstance(state, (tuple, list)):
        return tuple(select(value, keep) for value in state)
    return None if state is None else state.index_select(0, keep)


def is_empty(keep: Tensor) -> bool:
    return not keep.any() if keep.dtype == torch.bool else keep.numel() == 0
