"""What the front and a worker tell each other: plain data, pickled, each message behind its length. `Shorten`, `Forget`
and `Step` of jobs.py are told as they are.
"""

import pickle
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from supple.inference.engines import Stage
from supple.policy.policy import Policy
from supple.server.jobs import Step
from supple.server.slots import Slots

Times = dict[int, float]  # median ms by batch size
LENGTH = struct.Struct("!Q")


def packed(message: Any) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


def unpacked(heard: bytearray) -> list[Any]:
    """The messages that are complete; they are taken away."""
    found, begin = [], 0
    while len(heard) >= begin + LENGTH.size:
        (size,) = LENGTH.unpack_from(heard, begin)
        end = begin + LENGTH.size + size
        if len(heard) < end:
            break
        found.append(pickle.loads(memoryview(heard)[begin + LENGTH.size : end]))
        begin = end
    del heard[:begin]
    return found


@dataclass(frozen=True)
class Opening:
    """One model that a worker is to open."""

    name: str
    source: Path
    engine: str = "auto"
    precision: str | None = None


@dataclass(frozen=True)
class Setup:
    """The first message to a worker."""

    openings: tuple[Opening, ...]
    max_batch: int
    measure: bool  # False: what it takes is known from another worker
    imports: tuple[str, ...] = ()  # modules that bring methods or tasks of the user's


@dataclass(frozen=True)
class Facts:
    """What a worker found out about a model that it opened."""

    name: str
    task: str
    classes: tuple[str, ...]
    shape: tuple[Any, ...]
    engine: str
    precision: str
    skips: bool  # whether samples skip layers: its times are those of samples that skip none
    ladder: dict[str, Any]  # as JSON
    points: tuple[str, ...]  # each as a graph of its own
    stages: tuple[Stage, ...]  # of the chain
    policy: Policy | None
    policy_stages: tuple[Stage, ...]  # that the policy goes along
    preprocess: dict[str, Any] | None  # as it is saved
    kind: str  # of the files, in a word
    endings: tuple[str, ...]
    digests: tuple[tuple[str, str], ...] = ()  # of the files that it was opened from
    bodies: dict[int, Times] = field(default_factory=dict)  # of the chain's stages
    heads: dict[int, Times] = field(default_factory=dict)
    whole: dict[str, Times] = field(default_factory=dict)  # of points as graphs of their own

    def same_model(self, other: "Facts") -> bool:
        """Whether commands for one can be carried out with the other, with equal answers."""
        names = ("task", "classes", "shape", "engine", "precision", "points", "stages", "digests")
        return all(getattr(self, name) == getattr(other, name) for name in names)


class Failed(NamedTuple):
    """A model could not be opened."""

    name: str
    cause: str
    cure: str


class UseSlots(NamedTuple):
    """The second message: where inputs are."""

    slots: Slots


class Up(NamedTuple):
    """A worker takes commands."""


class Command(NamedTuple):
    """Carry these samples from one place to another. Along the chain places are stages; else only the last is run,
    a point from the start."""

    id: int
    model: str
    chain: bool
    points: tuple[str | None, ...]
    samples: tuple[int, ...]
    slots: tuple[int, ...]
    place: int
    target: int
    reads: frozenset[int]
    tells: frozenset[int]


class Told(NamedTuple):
    id: int
    steps: tuple[Step, ...]
    final: bool


class Broke(NamedTuple):
    """A command ended with an error of the engine's."""

    id: int
    what: str
