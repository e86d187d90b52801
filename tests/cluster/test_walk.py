"""A request's way on nodes that die, hang, are late and come back: in one process, with a clock of its own."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from supple.cluster.members import PAUSE_S, Facts, Members
from supple.cluster.route import Block
from supple.cluster.walk import Died, Late, Walker
from supple.errors import ClusterError

BLOCK_S, HOP_S = 0.010, 0.002


@dataclass
class World:
    """Layer k multiplies by 10 and adds k: the digits of an answer are the layers that ran, in their order."""

    holds: dict[str, tuple[int, ...]]
    layers: int = 4
    any_order: bool = True
    now: float = 0.0
    dead: set[str] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    calls: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)
    before: Callable[[int], None] = lambda call: None  # what happens before a call, by its number from 1
    sibling: int = 0

    def __post_init__(self) -> None:
        self.members = Members(lambda: self.now)
        for name in self.holds:
            self.join(name)
        how = {"any_order": self.any_order, "patience_s": 0.0, "clock": lambda: self.now}
        self.walker = Walker(self, self.members, self, **how)

    def join(self, name: str, pid: int = 1) -> None:
        model = self.sibling if name.startswith("s") else 0
        blocks = frozenset(Block(layer, model) for layer in self.holds[name])
        self.members.seen(Facts(name, blocks, ("weights",), (1,), 1000 * BLOCK_S, pid))

    def stem(self, x: np.ndarray) -> np.ndarray:
        return x

    def head(self, state: np.ndarray) -> np.ndarray:
        return state

    def run(self, node, blocks, place, state, timeout_s):
        self.calls.append((node, tuple(block.layer for block in blocks), place))
        self.before(len(self.calls))
        if node in self.dead:
            self.now += 0.05
            raise Died(node)
        took = HOP_S + BLOCK_S * len(blocks)
        if node in self.hung or took > timeout_s:
            self.now += timeout_s
            raise Late(node)
        self.now += took
        for block in blocks:
            state = 10 * state + block.layer
        return state, 1000 * BLOCK_S * len(blocks)

    def answer(self, deadline_ms: float | None = None):
        walked = self.walker.walk(np.zeros((1, 1)), deadline_ms)
        assert "".join(map(str, walked.layers)) == f"{walked.logits[0, 0]:.0f}"  # it says what was run
        assert sorted((*walked.layers, *walked.skipped)) == list(range(1, self.layers + 1))
        return walked


def test_all_layers_run_in_order_with_a_hop_for_each_node():
    world = World({"a": (1, 2), "b": (3, 4)})
    walked = world.answer()
    assert (walked.layers, walked.nodes, walked.reason) == ((1, 2, 3, 4), ("a", "b"), "full")
    assert [place for _, _, place in world.calls] == [0, 2]  # where the first of the blocks stands
    assert walked.elapsed_ms == pytest.approx(2 * 2 + 4 * 10)


def test_a_request_on_a_node_that_dies_goes_on_from_the_last_state_on_its_replica():
    world = World({"a": (1, 2), "b": (3, 4), "c": (3, 4)})
    world.before = lambda call: world.dead.add("b") if call == 2 else None
    walked = world.answer()
    assert [name for name, _, _ in world.calls] == ["a", "b", "c"]  # a is not asked again
    assert (walked.layers, walked.nodes, walked.reason, walked.replays) == ((1, 2, 3, 4), ("a", "c"), "full", 1)
    assert walked.lost_ms == pytest.approx(50)


def test_layers_that_died_with_their_node_are_skipped_and_the_next_request_does_not_ask_it():
    world = World({"a": (1, 2), "b": (3,), "c": (4,)})
    world.dead.add("b")
    walked = world.answer()
    assert (walked.layers, walked.skipped, walked.reason) == ((1, 2, 4), (3,), "nodes")
    world.calls.clear()
    assert world.answer().replays == 0
    assert "b" not in [name for name, _, _ in world.calls]


def test_a_hung_node_costs_its_hop_deadline_once():
    world = World({"a": (1, 2), "b": (3, 4), "c": (3, 4)})
    world.hung.add("b")
    walked = world.answer()
    assert (walked.reason, walked.replays) == ("full", 1)
    assert walked.lost_ms == pytest.approx(world.walker.hop_deadline_ms)
    assert world.answer().replays == 0


def test_a_hop_deadline_follows_what_is_expected():
    world = World({"a": (1, 2, 3, 4)})
    world.walker.hop_deadline_ms = 1.0
    world.hung.add("a")
    with pytest.raises(ClusterError):
        world.answer()
    assert world.now == pytest.approx(3 * (2 + 4 * 10) / 1000)  # the hop was not measured yet: 2 ms


def test_a_late_node_is_asked_again_after_a_pause_that_grows_and_a_dead_one_at_once():
    world = World({"a": (1,), "b": (1,)})
    world.members.died("a")
    world.members.late("b")
    assert world.members.to_ask(["a", "b", "c"]) == ["a", "c"]  # c is new
    world.now = PAUSE_S
    assert world.members.to_ask(["b"]) == ["b"]
    world.join("b")
    world.members.late("b")
    world.now = PAUSE_S + 1.9 * PAUSE_S
    assert world.members.to_ask(["b"]) == []
    world.now = PAUSE_S + 2 * PAUSE_S
    assert world.members.to_ask(["b"]) == ["b"]


def test_a_layer_runs_late_when_its_node_comes_back_in_time():
    world = World({"a": (1, 2), "b": (3,), "c": (4,)})
    world.members.died("a")
    world.before = lambda call: world.join("a", pid=2) if call == 2 else None
    walked = world.answer()
    assert (walked.layers, walked.reason) == ((3, 4, 1, 2), "order")


def test_in_order_only_it_does_not():
    world = World({"a": (1, 2), "b": (3,), "c": (4,)}, any_order=False)
    world.members.died("a")
    world.before = lambda call: world.join("a", pid=2) if call == 2 else None
    walked = world.answer()
    assert (walked.layers, walked.reason) == ((3, 4), "nodes")


def test_what_a_failed_hop_gave_up_may_still_run():
    """In order only, layer 1 is passed over for b's; b dies, and a, which is back, has it."""
    world = World({"a": (1,), "b": (2,)}, layers=2, any_order=False)
    world.members.died("a")
    world.dead.add("b")
    world.before = lambda call: world.join("a", pid=2) if call == 1 else None
    assert world.answer().layers == (1,)


def test_a_sibling_s_layer_is_named():
    world = World({"a": (1, 2, 4), "s": (3,)}, sibling=1)
    walked = world.answer()
    assert (walked.layers, walked.siblings, walked.reason) == ((1, 2, 3, 4), {3: 1}, "sibling")


def test_a_deadline_drops_layers_and_is_kept():
    world = World({"a": (1, 2), "b": (3, 4)})
    walked = world.answer(deadline_ms=35)  # a: 22, and 12 for one layer of b's
    assert (walked.layers, walked.reason) == ((1, 2, 3), "deadline")
    assert walked.elapsed_ms <= 35
    assert world.answer(deadline_ms=100).reason == "full"


def test_a_node_that_is_late_for_a_short_deadline_is_not_blamed():
    world = World({"a": (1, 2), "b": (3, 4)})
    world.hung.add("b")
    walked = world.answer(deadline_ms=60)
    assert (walked.layers, walked.reason) == ((1, 2), "deadline")
    assert walked.elapsed_ms == pytest.approx(60)
    assert len(world.members.alive()) == 2


def test_the_first_hop_runs_even_if_the_deadline_is_too_short():
    walked = World({"a": (1, 2, 3, 4)}).answer(deadline_ms=1)
    assert (walked.layers, walked.reason) == ((1,), "deadline")


def test_nobody_alive_is_an_error_after_the_patience_not_before():
    world = World({"a": (1, 2, 3, 4)})
    world.dead.add("a")
    with pytest.raises(ClusterError, match="no node is alive"):
        world.answer()


def test_values_that_are_not_finite_are_no_answer():
    world = World({"a": (1, 2, 3, 4)})
    with pytest.raises(ClusterError, match="not finite"):
        world.walker.walk(np.full((1, 1), np.nan))


def test_many_requests_are_answered_in_order_and_errors_in_their_places():
    world = World({"a": (1, 2, 3, 4)})
    batches = [np.zeros((1, 1)), np.full((1, 1), np.nan), np.ones((1, 1))]
    first, second, third = world.walker.walk_many(batches, in_flight=1)
    assert (first.logits[0, 0], third.logits[0, 0]) == (1234, 11234)
    assert isinstance(second, ClusterError)


# --- members ----------------------------------------------------------------------------------------------------------


def test_times_follow_what_calls_took():
    world = World({"a": (1, 2, 3, 4)})
    assert [(one.block_ms, one.hop_ms) for one in world.members.alive()] == [(10, 2)]
    for _ in range(20):  # twice as slow as it said
        world.members.sent("a", 40)
        world.members.answered("a", 40, 4, 1, 80, 85)
    (node,) = world.members.alive()
    assert node.block_ms == pytest.approx(20)
    assert node.hop_ms == pytest.approx(5 * 2)  # measured: 5; times how much slower than usual things are
    assert node.wait_ms == 0


def test_what_is_on_its_way_to_a_node_counts_as_its_queue():
    world = World({"a": (1,), "b": (1,)})
    world.members.sent("a", 30)
    world.members.sent("a", 12)
    assert {one.name: one.wait_ms for one in world.members.alive()} == {"a": 42, "b": 0}
    world.members.returned("a", 30)
    assert {one.name: one.wait_ms for one in world.members.alive()} == {"a": 12, "b": 0}


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (Facts("b", frozenset(), ("weights",), (2,), 1.0), "state"),
        (Facts("b", frozenset(), ("others",), (1,), 1.0), "weights"),
    ],
)
def test_nodes_that_do_not_fit_are_refused_by_name(facts, word):
    world = World({"a": (1,)})
    with pytest.raises(ClusterError, match=f"b and a do not fit: their {word} differ"):
        world.members.seen(facts)
    assert list(world.members.everybody()) == ["a"]
