"""The parts of a network that was cut for exits: its stages, the branches on them, and what the branches read."""

from typing import NamedTuple

from torch import Tensor, fx, nn

from supple.backbones.cut import Cuts


class Features(NamedTuple):
    """What the branches read, computed beforehand."""

    outputs: tuple[Tensor, ...]  # of the stages: the tensor at each cut, then the logits of the whole network


class OnTap(nn.Sequential):
    """A branch as a head: it reads the first tensor of the state at its cut."""

    def forward(self, state: tuple[Tensor, ...]) -> Tensor:
        logits: Tensor = super().forward(state[0])  # type: ignore[no-untyped-call]
        return logits


class Bodies:
    """The stages of a cut network as modules that share its weights; made when first asked for."""

    def __init__(self, network: nn.Module, cuts: Cuts) -> None:
        self.network, self.cuts = network, cuts
        self.frozen = 0  # so many stages have learnt, and run in eval mode
        self._made: dict[bool, list[nn.Module]] = {}

    def __call__(self) -> list[nn.Module]:
        if not self._made:
            for mode, graphs in self.cuts.stages.items():
                self._made[mode] = [fx.GraphModule(self.network, graph) for graph in graphs]
        if not self.network.training:
            return self._made[False]
        return self._made[False][: self.frozen] + self._made[True][self.frozen :]

    def forget(self) -> None:
        """After the network's tensors were replaced (another device): the modules hold some of them directly."""
        self._made.clear()
