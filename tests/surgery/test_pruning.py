"""From a searched run to a smaller one: slicing, and the verb `prune`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from supple.backbones.dims import blocks_of, shape_of
from supple.cost import count_params
from supple.errors import RecipeError
from supple.methods.prune import Prune, folded
from supple.methods.ranking import keep, magnitudes
from supple.methods.static import Static
from supple.surgery.prune import Plan, block_inputs, changes, prune, scores_of
from tiny_transformers import INPUT, PATHS, SHAPES, drop, images, network_of, searched

EQUAL = {"atol": 1e-10, "rtol": 1e-10}
RANKINGS = ("global", "per_type", "per_layer")


# --- pruning ----------------------------------------------------------------------------------------------------------


@PATHS
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), ratio=st.floats(0.05, 0.85), ranking=st.sampled_from(RANKINGS))
def test_slicing_equals_masking_for_any_scores_and_ratio(name, fused, seed, ratio, ranking):
    model, x = searched(name, fused, seed), images(2)
    network, kept = prune(model, ratio, Plan(ranking))
    assert shape_of(network) == kept.shape == keep(model.pruning_scores(), ratio, ranking).shape
    drop(model, kept)
    assert_close(network(x), model(x), **EQUAL)


@PATHS
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_dimensions_with_score_0_can_be_cut_with_no_change(name, fused, seed):
    model, rng = searched(name, fused, seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for score in model.scores:
            score[torch.randperm(len(score), generator=rng)[: len(score) // 2]] = 0
    network, kept = prune(model, 0.5, Plan())
    assert kept.shape == tuple((dims // 2, hidden // 2) for dims, hidden in SHAPES[name])
    assert_close(network(images(2)), model(images(2)), **EQUAL)


def test_pruning_leaves_the_searched_model_as_it_was():
    model = searched("swin")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prune(model, 0.7, Plan())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_each_way_to_rank_uses_its_own_scores():
    model, plain = searched("vit"), Static(network_of("vit"))
    assert all(
        torch.equal(a, b) for x, y in zip(scores_of(model, "score"), model.pruning_scores()) for a, b in zip(x, y)
    )
    for one, same in zip(scores_of(plain, "magnitude"), magnitudes(blocks_of(plain.backbone))):
        assert torch.equal(one[0], same[0])
        assert torch.equal(one[1], same[1])
    kept = {seed: prune(plain, 0.5, Plan(by="random", seed=seed))[1] for seed in (0, 1)}
    assert not torch.equal(kept[0].dims[0][1].sort().values, kept[1].dims[0][1].sort().values)


def test_the_smallest_weights_go_when_pruned_by_magnitude():
    network = network_of("swin")
    with torch.no_grad():
        for block in blocks_of(network):
            block.mlp.fc1.weight[::2] *= 1e-3
            block.attention.qkv.weight.view(3, block.heads, block.head_dims, -1)[:, :, 3] *= 1e-3
    _, kept = prune(Static(network), 0.5, Plan(by="magnitude"))
    for heads, hidden in kept.dims:
        assert 3 not in heads
        assert (hidden % 2 == 1).sum() >= 0.99 * len(hidden)


def test_a_searched_network_is_ranked_by_the_weights_that_it_computes_with():
    model = searched("vit")
    with torch.no_grad():
        model.scores[1][7] = 0.0
    assert float(scores_of(model, "magnitude")[0][1][7]) == 0.0
    for one, same in zip(scores_of(model, "magnitude"), magnitudes(blocks_of(model.extract()))):
        assert torch.equal(one[0], same[0])
        assert torch.equal(one[1], same[1])


def test_a_run_that_was_never_searched_has_no_scores_and_another_way_is_offered():
    shaped = Prune(network_of("vit"), ratio=0.5)
    for model in (Static(network_of("vit")), shaped):
        with pytest.raises(RecipeError) as caught:
            scores_of(model, "score")
        assert "never searched" in caught.value.cause
        assert "--by magnitude" in caught.value.cure


# --- what it did to each block ----------------------------------------------------------------------------------------


def test_changes_are_counted_block_by_block():
    model = searched("swin", seed=3)
    before, (after, kept) = folded(model.backbone), prune(model, 0.6, Plan())
    before, after = before.float(), after.float()
    found = changes(before, after, INPUT)
    assert [change.path for change in found] == ["layers.0.blocks.0", "layers.0.blocks.1", "layers.1.blocks.0"]
    assert tuple((change.dims[1], change.hidden[1]) for change in found) == kept.shape
    assert tuple((change.dims[0], change.hidden[0]) for change in found) == SHAPES["swin"]
    for side, network in enumerate((before, after)):
        for change, (d, n, h) in zip(found, ((24, 64, 2), (24, 64, 2), (48, 16, 4))):
            a, m = h * change.dims[side], change.hidden[side]  # windows of 16 tokens: arithmetic 2.1
            assert change.params[side] == 4 * d + 3 * a * d + 3 * a + a * d + d + 49 * h + 2 * d * m + m + d
            assert change.macs[side] == n * 3 * a * d + 2 * n * 16 * a + n * a * d + 2 * n * d * m
        inside = sum(change.params[side] for change in found)
        assert count_params(network.parameters()) - inside == count_params(before.parameters()) - sum(
            change.params[0] for change in found
        )


def test_looking_at_the_inputs_of_blocks_leaves_no_hooks_behind():
    network = network_of("vit")
    seen = block_inputs(network, images())
    assert list(seen) == ["blocks.0", "blocks.1"]
    assert_close(network.blocks[0](seen["blocks.0"]), seen["blocks.1"])
    assert not any(part._forward_pre_hooks for part in network.modules())
