"""Who holds what."""

import pytest

from supple.cluster.placement import parse_layers, placed, scarcest
from supple.cluster.route import Block
from supple.errors import RecipeError


def numbers(blocks: frozenset[Block]) -> list[int]:
    return sorted(block.layer for block in blocks)


def test_layers_in_a_row_by_hand():
    assert [numbers(held) for held in placed(12, 4)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    assert [numbers(held) for held in placed(5, 2)] == [[1, 2], [3, 4, 5]]
    assert [numbers(held) for held in placed(6, 3, 2)] == [[1, 2, 3, 4], [3, 4, 5, 6], [1, 2, 5, 6]]


def test_more_nodes_than_layers_hold_copies():
    assert [numbers(held) for held in placed(2, 5)] == [[1], [2], [1], [2], [1]]


@pytest.mark.parametrize("nodes", range(1, 10))
@pytest.mark.parametrize("replicas", range(1, 4))
def test_every_layer_is_on_as_many_nodes_as_there_are_replicas(nodes, replicas):
    if replicas > nodes:
        with pytest.raises(RecipeError, match="do not fit"):
            placed(7, nodes, replicas)
        return
    found = placed(7, nodes, replicas)
    assert len(found) == nodes
    for layer in range(1, 8):
        assert sum(Block(layer) in held for held in found) >= replicas


def test_a_sibling_s_layer_is_on_another_node_than_the_layer_itself():
    found = placed(6, 3, models=2)
    assert found[0] == {Block(1), Block(2), Block(3, 1), Block(4, 1)}
    for layer in range(1, 7):
        (own,) = [k for k, held in enumerate(found) if Block(layer) in held]
        (other,) = [k for k, held in enumerate(found) if Block(layer, 1) in held]
        assert own != other


def test_a_further_node_takes_the_layers_with_the_fewest_copies():
    held = placed(6, 3)
    assert scarcest(6, [held[0], held[2]]) == [3, 4]  # those of the node that is missing
    assert scarcest(6, []) == [1, 2, 3, 4, 5, 6]


def test_layers_are_written_as_ranges():
    assert parse_layers("1-3,7", 8) == [1, 2, 3, 7]
    for text in ("", "0", "9", "3-1", "a", "1-", "1--2"):
        with pytest.raises(RecipeError, match="--layers"):
            parse_layers(text, 8)


@pytest.mark.parametrize(("nodes", "replicas"), [(0, 1), (1, 0)])
def test_nothing_cannot_be_placed(nodes, replicas):
    with pytest.raises(RecipeError):
        placed(3, nodes, replicas)
