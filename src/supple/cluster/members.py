"""What a caller knows of the nodes: who holds what, who is away, how busy and how fast each of them is.

A node that died or was late is away until it has answered a call again; one that was late is asked later each time it
is late once more. Times come from calls: what a node says that its blocks took, and what the hop took beside that.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from supple.cluster.route import Block, Node
from supple.errors import ClusterError
from supple.inference.latency import LatencyEstimator

HOP_MS = 2.0  # of a hop beside its blocks, until some were measured
PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # until a node that was late is asked again: doubled each time


@dataclass(frozen=True)
class Facts:
    """What a node says of itself."""

    name: str
    holds: frozenset[Block]
    models: tuple[str, ...]  # digests of the weights: of the run and of its siblings
    shape: tuple[int, ...]  # of the state between blocks, of one sample
    block_ms: float  # median of one block, measured at its start
    pid: int = 0
    host: str = ""
    hops: int = 0
    blocks: int = 0  # that it has run
    busy: float = 0.0  # share of its time


@dataclass
class Member:
    facts: Facts
    up: bool = True
    again_at: float = 0.0  # not asked before
    lates: int = 0  # one after the other
    deaths: int = 0
    waiting_ms: float = 0.0  # of this caller's calls that are there
    latency: LatencyEstimator = field(default_factory=LatencyEstimator)

    def __post_init__(self) -> None:
        self.latency.learn(("block", 1), [self.facts.block_ms])

    def as_node(self, batch: int) -> Node:
        known = self.latency.knows(("hop", batch))
        hop_ms = self.latency.ms(("hop", batch)) if known else HOP_MS
        block_ms = self.latency.expected_ms(("block",), batch)
        return Node(self.facts.name, self.facts.holds, block_ms, hop_ms, self.waiting_ms)


class Members:
    """Safe for calls from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._members: dict[str, Member] = {}
        self._changed = threading.Condition()
        self._clock = clock

    def alive(self, batch: int = 1) -> list[Node]:
        """The nodes that may be asked, as `route` takes them."""
        with self._changed:
            return [member.as_node(batch) for member in self._members.values() if member.up]

    def everybody(self) -> dict[str, Member]:
        with self._changed:
            return dict(self._members)

    def wait(self, timeout_s: float) -> bool:
        """Until any node is up; False: none was in this time."""
        with self._changed:
            return self._changed.wait_for(lambda: any(m.up for m in self._members.values()), max(0.0, timeout_s))

    # --- who is there -----------------------------------------------------------------------------------------------

    def seen(self, facts: Facts) -> None:
        """A node has told of itself: it is new, or back."""
        with self._changed:
            known = self._members.get(facts.name)
            must_fit([*(m.facts for name, m in self._members.items() if name != facts.name), facts])
            if known is None or known.facts.pid != facts.pid:  # its times were those of another process
                deaths = 0 if known is None else known.deaths
                self._members[facts.name] = Member(facts, deaths=deaths)
            else:
                known.facts, known.up = facts, True
            self._changed.notify_all()

    def left(self, name: str) -> None:
        with self._changed:
            self._members.pop(name, None)

    def to_ask(self, names: Iterable[str]) -> list[str]:
        """Of the nodes that there are, those that should tell of themselves: new ones, and those away for long."""
        with self._changed:
            now = self._clock()
            known = self._members
            return [name for name in names if name not in known or (not known[name].up and now >= known[name].again_at)]

    # --- what calls say ---------------------------------------------------------------------------------------------

    def sent(self, name: str, expected_ms: float) -> None:
        self._count(name, expected_ms)

    def answered(self, name: str, expected_ms: float, blocks: int, batch: int, node_ms: float, took_ms: float) -> None:
        """A call came back, after `took_ms`, of which the node spent `node_ms`."""
        with self._changed:
            self._count(name, -expected_ms)
            member = self._members.get(name)
            if member is not None:
                member.lates = 0
                member.latency.note(("block", batch), node_ms / max(1, blocks))
                if member.waiting_ms <= 0:  # else it had to wait for others
                    member.latency.note(("hop", batch), max(0.0, took_ms - node_ms))

    def died(self, name: str, expected_ms: float = 0.0) -> None:
        with self._changed:
            self._count(name, -expected_ms)
            member = self._members.get(name)
            if member is not None and member.up:
                member.up, member.waiting_ms = False, 0.0
                member.deaths += 1

    def late(self, name: str, expected_ms: float = 0.0) -> None:
        """A node did not answer in the time that its hop had."""
        with self._changed:
            self._count(name, -expected_ms)
            member = self._members.get(name)
            if member is not None and member.up:
                pause = min(LONGEST_PAUSE_S, PAUSE_S * 2**member.lates)
                member.up, member.again_at, member.waiting_ms = False, self._clock() + pause, 0.0
                member.lates += 1

    def returned(self, name: str, expected_ms: float) -> None:
        """A call ended that says nothing about its node."""
        self._count(name, -expected_ms)

    def _count(self, name: str, ms: float) -> None:
        with self._changed:
            member = self._members.get(name)
            if member is not None:
                member.waiting_ms = max(0.0, member.waiting_ms + ms)


def must_fit(facts: Iterable[Facts]) -> None:
    """Refuses nodes that cannot work on one state: of other weights, or with another shape of it."""
    known: dict[str, tuple[Any, Facts]] = {}
    for one in facts:
        for what, value in (("state", one.shape), ("weights", one.models[:1])):
            there, other = known.setdefault(what, (value, one))
            if there != value:
                cause = (
                    f"{one.name} and {other.name} do not fit: their {what} differ, {_short(value)} and {_short(there)}."
                )
                raise ClusterError(cause, "Start one cluster for each run: supple cluster stop, then start.")


def _short(value: tuple[Any, ...]) -> str:
    return "x".join(str(part)[:12] for part in value)
