"""Where a request goes next, worked out by hand."""

import random

import pytest

from supple.cluster.route import Block, Hop, Node, finish_ms, held, plan, route


def node(name: str, *layers: int, sibling: int = 0, **times: float) -> Node:
    return Node(name, frozenset(Block(layer, sibling) for layer in layers), **times)


def layers(hop: Hop | None) -> list[int]:
    assert hop is not None
    return [block.layer for block in hop.blocks]


def walked(wanted: list[int], nodes: list[Node], **how: object) -> list[tuple[str, list[int]]]:
    """All hops of a request on nodes that stay as they are."""
    found = []
    while wanted and (hop := route(wanted, nodes, begun=bool(found), **how)) is not None:
        found.append((hop.node, layers(hop)))
        wanted = [layer for layer in wanted if layer not in (*layers(hop), *hop.dropped)]
    return found


def test_layers_in_a_row_on_one_node_are_one_hop_and_the_order_is_kept():
    nodes = [node("b", 3, 4), node("a", 1, 2)]
    assert walked([1, 2, 3, 4], nodes) == [("a", [1, 2]), ("b", [3, 4])]
    assert route([1, 2, 3, 4], nodes).why == "next"


def test_a_hop_ends_where_the_node_lacks_a_layer_that_another_has():
    assert walked([1, 2, 3], [node("a", 1, 3), node("b", 2)]) == [("a", [1]), ("b", [2]), ("a", [3])]


def test_a_layer_that_nobody_alive_holds_is_passed_over_and_waits_for_its_node():
    hop = route([1, 2, 3], [node("a", 1, 3)])
    assert (layers(hop), hop.dropped) == ([1, 3], ())  # 2 may come later
    hop = route([2, 3], [node("a", 3)])
    assert (layers(hop), hop.dropped, hop.why) == ([3], (), "ahead")


def test_in_order_only_a_layer_that_was_passed_over_is_given_up():
    assert route([2, 3], [node("a", 3)], any_order=False).dropped == (2,)
    assert route([3, 2], [node("a", 3)], any_order=False).dropped == ()  # it comes after


def test_among_replicas_the_free_one_is_taken_and_then_the_one_that_goes_further():
    busy, free = node("a", 1, 2, block_ms=1, wait_ms=9), node("b", 1, block_ms=1)
    assert route([1, 2], [busy, free]).node == "b"  # a: (9 + 2) / 2 a layer, b: 1
    longer, shorter = node("b", 1, 2, hop_ms=3), node("a", 1, hop_ms=3)
    assert route([1, 2], [shorter, longer]).node == "b"  # (3 + 2) / 2 a layer, not 4


def test_a_sibling_stands_in_only_where_nobody_holds_the_layer_itself():
    own, other = node("a", 1), node("b", 1, 2, sibling=1)
    assert held([1, 2], [other, own]) == [Block(1, 0), Block(2, 1)]
    assert route([1, 2], [own, other]).node == "a"
    hop = route([2], [own, other])
    assert (hop.blocks, hop.why) == ((Block(2, 1),), "sibling")


def test_nothing_is_left_to_do_when_nobody_alive_holds_a_wanted_layer():
    assert route([1], [node("a", 2)]) is None
    assert route([1], []) is None
    assert route([], [node("a", 1)]) is None


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_queue_gets_shorter_while_the_request_is_elsewhere():
    first, second = node("a", 1, hop_ms=1, block_ms=4), node("b", 2, hop_ms=1, block_ms=1, wait_ms=3)
    assert finish_ms(plan([Block(1), Block(2)], [first, second])) == 5 + 2  # b is free when a is done
    assert finish_ms(plan([Block(2), Block(1)], [first, second])) == 3 + 2 + 5


def test_enough_time_changes_nothing():
    nodes = [node("a", 1, 2, hop_ms=1), node("b", 3, 4, hop_ms=1)]  # 3 ms each
    assert route([1, 2, 3, 4], nodes, 6.0) == route([1, 2, 3, 4], nodes)


def test_when_time_is_short_the_dearest_layers_are_dropped():
    nodes = [node("a", 1, 2, 3, hop_ms=1), node("b", 4, hop_ms=5)]  # 4 ms, and 6 ms for one layer
    hop = route([1, 2, 3, 4], nodes, 5.0)
    assert (hop.node, layers(hop), hop.dropped, hop.why) == ("a", [1, 2, 3], (4,), "time")
    hop = route([1, 2, 3, 4], nodes, 3.0)  # then as many of a's as fit: 1 + 2
    assert (layers(hop), hop.dropped) == ([1, 2], (3, 4))


def test_a_slow_node_is_skipped_when_time_is_short():
    slow, quick = node("a", 1, 2, block_ms=200), node("b", 3, 4, block_ms=1)
    assert walked([1, 2, 3, 4], [slow, quick], left_ms=50.0) == [("b", [3, 4])]


def test_another_order_keeps_all_layers_where_the_first_node_is_busy():
    busy, free = node("a", 1, block_ms=1, wait_ms=5), node("b", 2, block_ms=4)
    assert finish_ms(plan([Block(1), Block(2)], [busy, free])) == 10
    hop = route([1, 2], [busy, free], 6.0)
    assert (hop.node, hop.dropped, hop.why) == ("b", (), "order")  # 4, then from 5 to 6
    hop = route([1, 2], [busy, free], 6.0, any_order=False)
    assert (hop.why, len(hop.dropped)) == ("time", 1)


def test_without_time_the_first_layer_runs_and_then_no_more():
    nodes = [node("a", 1, block_ms=9), node("b", 2, 3, block_ms=2)]
    hop = route([1, 2, 3], nodes, 0.0, begun=False)
    assert (hop.node, layers(hop), hop.dropped) == ("b", [2], (1, 3))
    assert route([1, 2, 3], nodes, 0.0, begun=True) is None


@pytest.mark.parametrize("seed", range(50))
def test_what_ever_the_nodes_are_no_layer_runs_twice_and_time_is_kept(seed):
    rng = random.Random(seed)
    nodes = [
        Node(
            f"n{k}",
            frozenset(Block(rng.randint(1, 8), rng.randint(0, 1)) for _ in range(rng.randint(1, 6))),
            rng.uniform(0.1, 3),
            rng.uniform(0, 2),
            rng.choice((0, rng.uniform(0, 5))),
        )
        for k in range(rng.randint(1, 5))
    ]
    wanted, left = list(range(1, 9)), rng.choice((None, rng.uniform(1, 20)))
    alone = {block.layer for one in nodes for block in one.holds}
    ran = [layer for _, part in walked(wanted, nodes, any_order=rng.random() < 0.5) for layer in part]
    assert len(set(ran)) == len(ran)
    assert set(ran) <= alone
    hop = route(wanted, nodes, left)
    if hop is not None and left is not None:
        assert hop.wait_ms + hop.work_ms <= left + 1e-9
    if left is None:
        assert set(ran) == alone  # nothing is left out that somebody holds
        assert ran == sorted(ran)
