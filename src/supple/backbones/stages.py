"""Networks that offer their stages themselves, instead of being traced and cut."""

from dataclasses import dataclass

from torch import nn

from supple.backbones.tap import Tap


@dataclass(frozen=True)
class Stages:
    """By name, in execution order. Each maps a state to the next; the first takes the input, the last gives the logits
    in a tuple.
    """

    modules: dict[str, nn.Module]
    reads: dict[str, Tap]  # what a branch reads after a stage; the last has none


def own_stages(network: nn.Module) -> Stages | None:
    """Those of a network with `stages` (an nn.ModuleDict) and `reads`; None of any other."""
    modules, reads = getattr(network, "stages", None), getattr(network, "reads", None)
    if not isinstance(modules, nn.ModuleDict) or not isinstance(reads, dict):
        return None
    return Stages(dict(modules.items()), reads)
