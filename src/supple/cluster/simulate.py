"""What a cluster would do: a discrete-event simulation that runs the same `route` as the real one, without any node.

Requests arrive, run their stem on a caller, hop from node to node, and end with the head. Each node does one hop after
the other. Nodes fail at random and are repaired; what was on them goes elsewhere once that was noticed. Simplified: all
blocks take the same time, the network has no limits, and a caller knows at once how long every node's queue is.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from supple.cluster.placement import placed
from supple.cluster.route import Block, Hop, Node, route
from supple.errors import RecipeError

WARM = 0.1  # share of the requests, from the first on, that are not counted


@dataclass(frozen=True)
class Setting:
    nodes: int = 4
    replicas: int = 1
    layers: int = 12
    block_ms: float = 1.0  # of one block on a node
    hop_ms: float = 2.0  # of a hop beside its blocks, both ways; the node is not busy with it
    ends_ms: float = 2.0  # stem and head, on the caller
    link_ms: float = 0.0  # one way, on top
    rate: float = 50.0  # requests per second
    requests: int = 1000
    even: bool = False  # arrivals: all as far apart; False: at random (Poisson)
    fails_every_s: float = 0.0  # mean time between failures of one node; 0: never
    repair_s: float = 5.0
    detect_ms: float = 50.0  # until a caller has noticed that a node is dead
    deadline_ms: float | None = None
    any_order: bool = True
    cores: int | None = None  # that all nodes and callers share; None: each has its own
    seed: int = 0

    def check(self) -> "Setting":
        positive = {"nodes": self.nodes, "layers": self.layers, "rate": self.rate, "requests": self.requests}
        for name, value in positive.items():
            if value <= 0:
                raise RecipeError(f"{name} is {value}.", "Give a number above 0.")
        for name, number in vars(self).items():
            if isinstance(number, int | float) and number < 0:
                raise RecipeError(f"{name} is {number}.", "Give a number from 0.")
        if self.cores == 0:
            raise RecipeError("cores is 0.", "Give 1 or more; without it each node has its own.")
        return self


@dataclass(frozen=True)
class Outcome:
    answered: int  # of the requests
    per_s: float  # answers, from the first arrival to the last answer
    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_layers: float
    whole: float  # share of the answers with all layers
    replays: int
    failures: int
    busy: float  # mean share of their time that the nodes work
    accuracy: float | None  # mean over the answers, from a table; None: there was none


@dataclass
class _Request:
    arrived: float
    wanted: list[int]
    ran: int = 0
    hop: Hop | None = None


@dataclass
class _Server:
    """One that does one thing after the other."""

    name: str
    holds: frozenset[Block] = frozenset()
    up: bool = True
    life: int = 0  # which of its lives: what was begun in an earlier one never ends
    queue: "deque[tuple[float, Callable[[], None], _Request]]" = field(default_factory=deque)
    running: "tuple[float, Callable[[], None], _Request] | None" = None
    until: float = 0.0
    queued_ms: float = 0.0
    busy_ms: float = 0.0


class _World:
    def __init__(self, setting: Setting) -> None:
        self.s, self.now, self.rng = setting.check(), 0.0, random.Random(setting.seed)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.number, self.free = 0, setting.cores if setting.cores is not None else 1 << 30
        self.starved: deque[_Server] = deque()  # those that have work, and no core
        blocks = placed(setting.layers, setting.nodes, setting.replicas)
        self.nodes = {f"node-{k}": _Server(f"node-{k}", held) for k, held in enumerate(blocks, 1)}
        self.caller = _Server("caller")
        self.finished: list[tuple[float, float, int]] = []  # arrival, end, layers
        self.parked: list[_Request] = []  # nobody alive, nothing run
        self.replays = self.failures = 0

    # --- time ---------------------------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, what))

    def run(self) -> None:
        at = 0.0
        for _ in range(self.s.requests):
            at += 1000 / self.s.rate if self.s.even else self.rng.expovariate(self.s.rate / 1000)
            self.at(at, lambda at=at: self.arrive(at))  # type: ignore[misc]
        if self.s.fails_every_s:
            for node in self.nodes.values():
                self.at(self.rng.expovariate(1 / (1000 * self.s.fails_every_s)), lambda node=node: self.fail(node))  # type: ignore[misc]
        while self.events and len(self.finished) < self.s.requests:
            self.now, _, what = heapq.heappop(self.events)
            what()

    # --- servers ------------------------------------------------------------------------------------------------------

    def work(self, server: _Server, ms: float, then: Callable[[], None], request: _Request) -> None:
        server.queue.append((ms, then, request))
        server.queued_ms += ms
        self.begin(server)

    def begin(self, server: _Server) -> None:
        if server.running is not None or not server.queue or not server.up:
            return
        if not self.free:
            if server not in self.starved:
                self.starved.append(server)
            return
        self.free -= 1
        server.running = server.queue.popleft()
        ms, life = server.running[0], server.life
        server.until, server.queued_ms = self.now + ms, server.queued_ms - ms
        self.at(server.until, lambda: self.end(server, life))

    def end(self, server: _Server, life: int) -> None:
        if life != server.life:
            return
        assert server.running is not None
        ms, then, _ = server.running
        server.running, server.busy_ms = None, server.busy_ms + ms
        self.release()
        then()
        self.begin(server)

    def release(self) -> None:
        self.free += 1
        while self.starved and self.free:
            self.begin(self.starved.popleft())

    def fail(self, node: _Server) -> None:
        self.failures += 1
        lost = [*([node.running] if node.running else []), *node.queue]
        node.queue.clear()
        if node.running:
            node.running = None
            self.release()
        node.up, node.life, node.queued_ms = False, node.life + 1, 0.0
        for _, _, request in lost:
            self.at(self.now + self.s.detect_ms, lambda request=request: self.again(request))  # type: ignore[misc]
        self.at(self.now + 1000 * self.s.repair_s, lambda: self.repair(node))

    def repair(self, node: _Server) -> None:
        node.up = True
        self.at(self.now + self.rng.expovariate(1 / (1000 * self.s.fails_every_s)), lambda: self.fail(node))
        waiting, self.parked = self.parked, []
        for request in waiting:
            self.go_on(request)

    # --- requests -----------------------------------------------------------------------------------------------------

    def arrive(self, at: float) -> None:
        request = _Request(at, [*range(1, self.s.layers + 1)])
        self.work(self.caller, self.s.ends_ms / 2, lambda: self.go_on(request), request)

    def alive(self) -> list[Node]:
        block_ms, hop_ms = self.s.block_ms, self.s.hop_ms + 2 * self.s.link_ms
        return [
            Node(one.name, one.holds, block_ms, hop_ms, one.queued_ms + (one.until - self.now if one.running else 0.0))
            for one in self.nodes.values()
            if one.up
        ]

    def go_on(self, request: _Request) -> None:
        left = None
        if self.s.deadline_ms is not None:
            left = self.s.deadline_ms - (self.now - request.arrived) - self.s.ends_ms / 2
        begun = request.ran > 0
        hop = route(request.wanted, self.alive(), left, any_order=self.s.any_order, begun=begun)
        if hop is None and not begun:
            self.parked.append(request)
        elif hop is None:
            self.head(request)
        else:
            request.hop = hop
            node, way_ms = self.nodes[hop.node], self.s.link_ms + self.s.hop_ms / 2
            work_ms, life = len(hop.blocks) * self.s.block_ms, node.life

            def reached() -> None:
                if node.life != life or not node.up:
                    self.at(self.now + self.s.detect_ms, lambda: self.again(request))
                else:
                    self.work(node, work_ms, lambda: self.at(self.now + way_ms, lambda: self.back(request)), request)

            self.at(self.now + way_ms, reached)

    def again(self, request: _Request) -> None:
        self.replays += 1
        self.go_on(request)

    def back(self, request: _Request) -> None:
        assert request.hop is not None
        done = [block.layer for block in request.hop.blocks]
        request.ran += len(done)
        request.wanted = [layer for layer in request.wanted if layer not in (*done, *request.hop.dropped)]
        if request.wanted:
            self.go_on(request)
        else:
            self.head(request)

    def head(self, request: _Request) -> None:
        def answer() -> None:
            self.finished.append((request.arrived, self.now, request.ran))

        self.work(self.caller, self.s.ends_ms / 2, answer, request)


def simulate(setting: Setting, accuracies: Mapping[int, float] | None = None) -> Outcome:
    """What comes out of a setting. accuracies: by number of layers run; between those named, on a straight line."""
    world = _World(setting)
    world.run()
    done = sorted(world.finished)
    counted = done[int(WARM * len(done)) :] or done
    if not counted:
        raise RecipeError("no request was answered: the nodes are always down.", "Let them fail less often.")
    times = sorted(end - arrived for arrived, end, _ in counted)
    layers = [ran for _, _, ran in counted]
    first, last = counted[0][0], max(end for _, end, _ in counted)
    busy = sum(node.busy_ms for node in world.nodes.values()) / (setting.nodes * max(1e-9, world.now))
    p50, p95, p99 = (times[min(len(times) - 1, int(share * len(times)))] for share in (0.5, 0.95, 0.99))
    return Outcome(
        answered=len(done),
        per_s=1000 * len(counted) / max(1e-9, last - first),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        mean_layers=sum(layers) / len(layers),
        whole=sum(ran == setting.layers for ran in layers) / len(layers),
        replays=world.replays,
        failures=world.failures,
        busy=busy,
        accuracy=None if not accuracies else sum(between(accuracies, ran) for ran in layers) / len(layers),
    )


def between(table: Mapping[int, float], layers: int) -> float:
    """The value at a number of layers: on the straight line between those on either side; beyond, that of the end."""
    known = sorted(table)
    return float(np.interp(layers, known, [table[count] for count in known]))


def accuracy_table(scores: Mapping[str, float], layers: int) -> dict[int, float]:
    """By number of layers, from the scores in a run's ladder: of all of them, and of any so many, in order."""
    numbers = {name.removeprefix("any "): score for name, score in scores.items()}
    found = {int(number): score for number, score in numbers.items() if number.isdecimal()}
    return {**found, layers: scores["full"]} if "full" in scores else found
