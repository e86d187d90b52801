"""One request, from its input to its answer: stem and head run here, the layers on whatever nodes are alive.

The caller keeps the state of the last hop that came back. When a node dies, or does not answer in the time its hop has,
that state goes to another one: what had been done before is not done again.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from supple.cluster.members import Members
from supple.cluster.route import Block, Hop, route
from supple.errors import ClusterError, SuppleError
from supple.inference.latency import LatencyEstimator

Array = np.ndarray[Any, Any]

HOP_DEADLINE_MS = 200.0  # of a hop, at least
TIMES_EXPECTED = 3.0  # a hop that takes so many times what is expected is given up, if that is more
PATIENCE_S = 20.0  # for a node to come back, where none is alive


class Died(Exception):
    """The node is gone."""


class Late(Exception):
    """The node did not answer in time."""


class Transport(Protocol):
    """How blocks are run elsewhere."""

    def run(
        self, node: str, blocks: tuple[Block, ...], place: int, state: Array, timeout_s: float
    ) -> tuple[Array, float]:
        """The state after these blocks, of which the first is the `place`-th that the request runs (from 0), and how
        many ms the node spent on them. Raises Died or Late, the latter as soon as the time is up."""


class Ends(Protocol):
    """What the caller runs itself."""

    layers: int

    def stem(self, x: Any) -> Array: ...
    def head(self, state: Array) -> Array: ...


@dataclass(frozen=True)
class Walked:
    """What was run for a request, and what came out."""

    logits: Array
    layers: tuple[int, ...]  # in the order they ran
    nodes: tuple[str, ...]  # hop by hop
    skipped: tuple[int, ...]
    siblings: dict[int, int]  # layers of siblings: which of them
    reason: str  # full, sibling, order, nodes (layers that nobody alive held are left out), deadline
    elapsed_ms: float
    replays: int  # hops that were done again elsewhere
    lost_ms: float  # spent on hops that did not come back


class Walker:
    """Carries requests along. Safe for calls from several threads."""

    def __init__(
        self,
        ends: Ends,
        members: Members,
        transport: Transport,
        *,
        any_order: bool = True,
        hop_deadline_ms: float = HOP_DEADLINE_MS,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.ends, self.members, self.transport, self.any_order = ends, members, transport, any_order
        self.hop_deadline_ms, self.patience_s, self._clock = hop_deadline_ms, patience_s, clock
        self._times = LatencyEstimator()  # of the head, which deadlines leave room for

    def walk(self, x: Any, deadline_ms: float | None = None) -> Walked:
        """The answer for a batch; all of its samples go the same way."""
        began = self._clock()

        def elapsed_ms() -> float:
            return 1000 * (self._clock() - began)

        state = self.ends.stem(x)
        every, head = range(1, self.ends.layers + 1), ("head", len(state))
        wanted, ran, nodes = list(every), list[Block](), list[str]()
        replays, lost_ms, short = 0, 0.0, False
        while wanted:
            head_ms = self._times.ms(head) if self._times.knows(head) else 0.0
            left = None if deadline_ms is None else deadline_ms - elapsed_ms() - head_ms
            alive = self.members.alive(len(state))
            hop = route(wanted, alive, left, any_order=self.any_order, begun=bool(ran))
            if hop is None and not ran:
                self._wait(elapsed_ms())
                continue
            if hop is None:
                short |= left is not None and route(wanted, alive, any_order=self.any_order) is not None
                break
            start = elapsed_ms()
            try:
                state = self._hop(hop, len(ran), state, left if ran else None)
            except (Died, Late):
                replays, lost_ms = replays + 1, lost_ms + elapsed_ms() - start
                continue
            ran += hop.blocks
            nodes.append(hop.node)
            short |= hop.why == "time"
            done = {*hop.dropped, *(block.layer for block in hop.blocks)}
            wanted = [layer for layer in wanted if layer not in done]
        start = elapsed_ms()
        logits = self.ends.head(state)
        self._times.note(head, elapsed_ms() - start)
        if not np.isfinite(logits).all():
            cause = "the answer holds values that are not finite."
            raise ClusterError(cause, "Its input or the weights hold such ones.")
        layers = tuple(block.layer for block in ran)
        skipped = tuple(layer for layer in every if layer not in layers)
        siblings = {block.layer: block.model for block in ran if block.model}
        whole = "sibling" if siblings else "full" if layers == tuple(sorted(layers)) else "order"
        reason = whole if not skipped else "deadline" if short else "nodes"
        return Walked(logits, layers, tuple(nodes), skipped, siblings, reason, elapsed_ms(), replays, lost_ms)

    def _hop(self, hop: Hop, place: int, state: Array, left_ms: float | None) -> Array:
        limit_ms = max(self.hop_deadline_ms, TIMES_EXPECTED * (hop.wait_ms + hop.work_ms))
        allowed_ms = limit_ms if left_ms is None else min(limit_ms, max(0.0, left_ms))
        self.members.sent(hop.node, hop.work_ms)
        start = self._clock()
        try:
            after, node_ms = self.transport.run(hop.node, hop.blocks, place, state, allowed_ms / 1000)
        except Died:
            self.members.died(hop.node, hop.work_ms)
            raise
        except Late:
            if allowed_ms < limit_ms:  # the request was short of time; that says nothing of the node
                self.members.returned(hop.node, hop.work_ms)
            else:
                self.members.late(hop.node, hop.work_ms)
            raise
        except BaseException:
            self.members.returned(hop.node, hop.work_ms)
            raise
        took_ms = 1000 * (self._clock() - start)
        self.members.answered(hop.node, hop.work_ms, len(hop.blocks), len(state), node_ms, took_ms)
        return after

    def _wait(self, elapsed_ms: float) -> None:
        """Nobody is alive, and nothing has been run: until somebody is."""
        if not self.members.wait(self.patience_s - elapsed_ms / 1000):
            cause = f"no node is alive, and none came back within {self.patience_s:g} s."
            raise ClusterError(cause, "Look at supple cluster status; start nodes: supple cluster add.")

    def walk_many(
        self, batches: Iterable[Any], in_flight: int = 8, deadline_ms: float | None = None
    ) -> Iterator[Walked | SuppleError]:
        """Answers in order, with several requests on their way at once, so that all nodes have work."""
        with ThreadPoolExecutor(in_flight, "walk") as pool:
            waiting: deque[Future[Walked]] = deque()
            for x in batches:
                waiting.append(pool.submit(self.walk, x, deadline_ms))
                if len(waiting) >= 2 * in_flight:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())


def _result(future: "Future[Walked]") -> Walked | SuppleError:
    try:
        return future.result()
    except SuppleError as error:
        return error
