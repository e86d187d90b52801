"""The parts of a network that was cut for exits: its stages, the branches on them, and what the branches read."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, fx, nn

from supple.backbones._cut.cut import Cuts, altered, check_order, cut
from supple.backbones._cut.trace import weightless
from supple.backbones.protocols import WithStages, as_stages
from supple.errors import RecipeError
from supple.model import Shape
from supple.text import did_you_mean


class Features(NamedTuple):
    """What the branches read, computed beforehand."""

    outputs: tuple[Tensor, ...]  # of the stages: the tensor at each cut, then the logits of the whole network


class Read(nn.Module):
    """What a branch reads of the state at its cut: the first tensor, or, where there is sound, the first two."""

    def __init__(self, sound: bool) -> None:
        super().__init__()
        self.sound = sound

    def forward(self, state: tuple[Tensor, ...]) -> Any:
        return state[:2] if self.sound else state[0]


class OnTap(nn.Sequential):
    """A branch as a head on the state at its cut."""

    def __init__(self, branch: nn.Module, sound: bool = False) -> None:
        super().__init__(branch)
        self.sound = sound

    def forward(self, state: tuple[Tensor, ...]) -> Tensor:
        read = state[:2] if self.sound else state[0]
        logits: Tensor = super().forward(read)  # type: ignore[no-untyped-call]
        return logits


class Traced:
    """The stages of a network as modules that share its weights, made by tracing; built when first asked for."""

    def __init__(self, network: nn.Module, cuts: Cuts) -> None:
        self.network, self.cuts = network, cuts
        self.taps = cuts.taps  # what a branch reads at each cut
        self.altered = cuts.altered  # whether the next stage writes into the tensor that the branch reads
        self.frozen = 0  # so many stages have learnt, and run in eval mode
        self._made: dict[bool, list[nn.Module]] = {}

    def __call__(self) -> list[nn.Module]:
        if not self._made:
            for mode, graphs in self.cuts.stages.items():
                self._made[mode] = [fx.GraphModule(self.network, graph) for graph in graphs]
        if not self.network.training:
            return self._made[False]
        return self._made[False][: self.frozen] + self._made[True][self.frozen :]

    def prefix(self, place: int) -> nn.Module:
        """From the input to what the branch at a cut reads; they count from 1."""
        return fx.GraphModule(self.network, self.cuts.prefixes[place - 1])

    def forget(self) -> None:
        """After the network's tensors were replaced (another device): the modules hold some of them directly."""
        self._made.clear()


class Chain:
    """As `Traced`, with the stages that a network offers itself; those that no cut parts are joined."""

    def __init__(self, network: nn.Module, at: Sequence[str], input_shape: Shape) -> None:
        own = cast(WithStages, network)
        names = list(own.stages)
        for name in at:
            if name not in own.reads:
                what = "the end of the network" if name in names else "none of its stages"
                cause = f'{type(network).__name__} cannot be cut at "{name}": that is {what}.'
                raise RecipeError(cause, did_you_mean(name, own.reads))
        places = [names.index(name) + 1 for name in at]
        check_order(at, places)
        self.parts = list(zip((0, *places), (*places, len(names))))
        self.taps = tuple(own.reads[name] for name in at)
        self.frozen = 0
        self.made = self._joined(network)
        self.altered = altered(self._joined(weightless(network).eval()), input_shape)

    def _joined(self, network: nn.Module) -> list[nn.Module]:
        every = list(cast(WithStages, network).stages.values())
        return [nn.Sequential(*every[start:end]) for start, end in self.parts]

    def __call__(self) -> list[nn.Module]:
        return self.made

    def prefix(self, place: int) -> nn.Module:
        return nn.Sequential(*self.made[:place], Read(self.taps[place - 1].sound > 0))

    def forget(self) -> None:
        """The stages are the network's own modules: nothing is held beside them."""


Bodies = Traced | Chain


def bodies(network: nn.Module, at: Sequence[str], input_shape: Shape) -> Bodies:
    """A network cut at names: those of the stages it offers, or else those of its layers."""
    if as_stages(network) is not None:
        return Chain(network, at, input_shape)
    return Traced(network, cut(network, at, input_shape))
