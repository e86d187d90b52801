"""What a backbone may offer beyond `forward`, and how the rest of supple asks for it.

Each is small, and a backbone needs none of them: methods say what they need and refuse a network without it. (The
questions are functions, not isinstance: the members of an nn.Module cannot be seen by a runtime check of a Protocol.)
"""

from collections.abc import Mapping
from typing import Any, Protocol, cast

from torch import Tensor, nn

from supple.backbones._cut.tap import Tap


class Trunk(Protocol):
    """A network as stem, blocks that keep the shape of their state, and head: for methods that change the depth."""

    blocks: nn.Sequential
    width: int  # of a token
    class_token: bool  # whether the first token is one

    def stem(self, x: Any) -> Tensor: ...
    def head(self, state: Tensor) -> Tensor: ...


class WithExits(Protocol):
    """A network with classifiers of its own on the way. A state is a tuple of tensors: all that comes later needs."""

    blocks: nn.ModuleList  # each maps a state to the next; the first takes the input
    heads: nn.ModuleList  # as many: each maps the state after its block to logits


class WithStages(Protocol):
    """A network of several inputs, or whose state is more than a tensor: it is not traced, but says where to cut."""

    stages: nn.ModuleDict  # state -> state by the names to cut at; the first takes the input, the last gives (logits,)
    reads: dict[str, Tap]  # what a branch reads after each stage but the last


class WithCutNames(Protocol):
    """A network with further names for places to cut at, such as those of a paper."""

    taps: Mapping[str, str]  # to the names of its layers


class WithClassifier(Protocol):
    """A network that says which of its layers gives the logits. (Those of timm do, in their own way.)"""

    classifier: str  # the path of a submodule


class WithDataInit(Protocol):
    """A network that starts from statistics of its inputs."""

    started: bool  # whether that has been done

    def start_from(self, images: Tensor) -> None: ...  # some training inputs, as it will see them


class WithOutputs(Protocol):
    """A network whose answer for a sample is not one row of logits says how many numbers a branch is to give."""

    outputs: int


class Detector(Protocol):
    """A network that answers with a mapping of `Output`'s fields instead of logits names its task."""

    task: str  # a key of supple.tasks.TASKS; it answers no other, and no other backbone answers it
    objective: str  # a key of losses.OBJECTIVES: the losses that it computes itself


class Listener(Protocol):
    """A network that takes a picture and the sound beside it says so (on its class, before it is built)."""

    takes_sound: bool


def as_trunk(network: nn.Module | None) -> Trunk | None:
    parts = ("stem", "blocks", "head", "width", "class_token")
    return cast(Trunk, network) if all(hasattr(network, part) for part in parts) else None


def as_exits(network: nn.Module) -> WithExits | None:
    blocks, heads = getattr(network, "blocks", None), getattr(network, "heads", None)
    if not isinstance(blocks, nn.ModuleList) or not isinstance(heads, nn.ModuleList) or len(blocks) != len(heads):
        return None
    return cast(WithExits, network)


def as_stages(network: nn.Module) -> WithStages | None:
    stages, reads = getattr(network, "stages", None), getattr(network, "reads", None)
    known = isinstance(stages, nn.ModuleDict) and isinstance(reads, dict)
    return cast(WithStages, network) if known else None


def cut_names(network: nn.Module) -> Mapping[str, str]:
    """Further names for places to cut at; most networks have none."""
    return cast(WithCutNames, network).taps if isinstance(getattr(network, "taps", None), Mapping) else {}


def classifier_of(network: nn.Module) -> str | None:
    """The path of the layer that gives the logits, of a network that says so itself or as timm's networks do."""
    if isinstance(getattr(network, "classifier", None), str):
        return cast(WithClassifier, network).classifier
    path = getattr(network, "pretrained_cfg", {}).get("classifier")
    return path if isinstance(path, str) else None


def starts_from_data(network: nn.Module | None) -> WithDataInit | None:
    return cast(WithDataInit, network) if callable(getattr(network, "start_from", None)) else None


def own_outputs(network: nn.Module) -> int | None:
    return cast(WithOutputs, network).outputs if isinstance(getattr(network, "outputs", None), int) else None


def own_task(make: Any) -> str | None:
    """The task that a backbone answers alone, from its class; None: whatever it is trained for."""
    return cast(Detector, make).task if hasattr(make, "task") else None


def own_objective(make: Any) -> str | None:
    """The objective that a recipe must have for a backbone with losses of its own; None: it has none."""
    return cast(Detector, make).objective if hasattr(make, "objective") else None


def takes_sound(make: Any) -> bool:
    return hasattr(make, "takes_sound") and cast(Listener, make).takes_sound
