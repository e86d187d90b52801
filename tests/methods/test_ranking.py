"""Rankings worked out by hand, and what holds for any scores."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from supple.backbones.dims import blocks_of, kept_dims
from supple.errors import RecipeError
from supple.methods.ranking import Scores, best_first, equal_scores, keep, magnitudes, random_scores
from tiny_transformers import SHAPES, network_of

# Two blocks: four dimensions of a head and four hidden ones each; of all 16, the largest is 0.9, then 0.8 and so on.
SCORES: Scores = [
    (tensor([0.9, -0.8, 0.1, 0.05]), tensor([0.7, 0.02, -0.6, 0.03])),
    (tensor([0.01, -0.5, 0.04, 0.4]), tensor([0.3, 0.29, 0.28, -0.27])),
]


def lists(kept) -> list[tuple[list[int], list[int]]]:
    return [(heads.tolist(), hidden.tolist()) for heads, hidden in kept.dims]


def scores_of(shape, seed: int) -> Scores:
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(dims, generator=rng), torch.randn(hidden, generator=rng)) for dims, hidden in shape]


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_the_global_ranking_by_hand():
    # Half of 16 stay: .9 .8 .7 .6 .5 .4 .3 .29
    kept = keep(SCORES, 0.5)
    assert lists(kept) == [([0, 1], [0, 2]), ([1, 3], [0, 1])]
    assert (kept.shape, kept.clamped) == (((2, 2), (2, 2)), 0)
    # A quarter more: .28 .27 .1 .05
    assert lists(keep(SCORES, 0.25)) == [([0, 1, 2, 3], [0, 2]), ([1, 3], [0, 1, 2, 3])]


def test_the_ranking_per_type_by_hand():
    # Three of the 8 of heads: .9 .8 .5; three of the 8 hidden: .7 .6 .3
    assert lists(keep(SCORES, 0.6, "per_type")) == [([0, 1], [0, 2]), ([1], [0])]
    # A block whose MLP outweighs everything takes nothing from the heads.
    heavy = [(heads, 100 * hidden) for heads, hidden in SCORES]
    assert lists(keep(heavy, 0.6, "per_type")) == lists(keep(SCORES, 0.6, "per_type"))
    assert lists(keep(heavy, 0.6)) != lists(keep(SCORES, 0.6))


def test_the_ranking_per_layer_by_hand():
    assert lists(keep(SCORES, 0.25, "per_layer")) == [([0, 1, 2], [0, 2, 3]), ([1, 3, 2], [0, 1, 2])]


def test_a_group_that_would_lose_everything_keeps_its_best_and_this_is_said():
    # Five of 16: .9 .8 .7 .6 .5 leave nothing for the MLP of the second block.
    kept = keep(SCORES, 0.65)
    assert lists(kept) == [([0, 1], [0, 2]), ([1], [0])]
    assert kept.clamped == 1
    assert (lists(keep(SCORES, 0.9, "per_layer")), keep(SCORES, 0.9, "per_layer").clamped) == (
        [([0], [0]), ([1], [0])],
        4,
    )


def test_kept_dimensions_are_rounded_to_the_nearest_multiple_that_there_is():
    scores = equal_scores(blocks_of(network_of("swin")))  # 12 and 96; 12 and 96; 12 and 192
    assert keep(scores, 0.4, "per_layer").shape == ((7, 57), (7, 57), (7, 115))
    assert keep(scores, 0.4, "per_layer", 8).shape == ((8, 56), (8, 56), (8, 112))
    assert keep(scores, 0.9, "per_layer", 8).shape == ((8, 8), (8, 8), (8, 16))  # 1 and 9; 1 and 9; 1 and 19
    assert keep(scores, 0.9, "per_layer", 16).shape == ((12, 16), (12, 16), (12, 16))  # heads have no 16
    assert keep(SCORES, 0.5, multiple=4).shape == ((4, 4), (4, 4))


def test_of_equal_scores_the_first_stay_and_every_group_alike():
    ones = [(torch.ones(4), torch.ones(8)), (torch.ones(4), torch.ones(16))]
    for ranking in ("global", "per_type", "per_layer"):
        assert lists(keep(ones, 0.5, ranking)) == [([0, 1], [0, 1, 2, 3]), ([0, 1], list(range(8)))]


def test_a_share_is_not_lost_to_binary_fractions():
    # (1 - 0.9) * 10 is 0.9999999999999998
    assert keep([(torch.ones(10), torch.ones(10))], 0.9, "per_layer").shape == ((1, 1),)
    assert keep([(torch.ones(10), torch.ones(10))], 0.9, "per_layer").clamped == 0


def test_best_first_goes_by_the_absolute_value():
    assert best_first(tensor([0.1, -3.0, 2.0, 0.1])).tolist() == [1, 2, 0, 3]


# --- for any scores ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ratio=st.floats(0.01, 0.9), ranking=st.sampled_from(["global", "per_type"]))
def test_what_stays_outranks_what_goes(seed, ratio, ranking):
    scores = scores_of(SHAPES["swin"], seed)
    kept = keep(scores, ratio, ranking)
    total = kept_dims(SHAPES["swin"])
    types = [slice(0, 1), slice(1, 2)] if ranking == "per_type" else [slice(0, 2)]
    assert kept_dims(kept.shape) - kept.clamped == sum(
        int((1 - ratio) * sum(len(score) for pair in scores for score in pair[of]) + 1e-9) for of in types
    )
    assert abs(kept_dims(kept.shape) - (1 - ratio) * total) <= 2 + kept.clamped
    for of in types:
        stay = [s.abs()[d] for pair, dims in zip(scores, kept.dims) for s, d in zip(pair[of], dims[of]) if len(d) > 1]
        go = [
            s.abs()[[i for i in range(len(s)) if i not in d.tolist()]]
            for pair, dims in zip(scores, kept.dims)
            for s, d in zip(pair[of], dims[of])
        ]
        if stay and sum(map(len, go)):
            assert torch.cat(stay).min() >= torch.cat(go).max()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), ratios=st.tuples(st.floats(0.05, 0.85), st.floats(0.05, 0.85)))
@pytest.mark.parametrize("ranking", ["global", "per_type", "per_layer"])
def test_a_smaller_network_begins_a_larger_one(ranking, seed, ratios):
    scores = scores_of(SHAPES["vit"], seed)
    few, many = (keep(scores, ratio, ranking) for ratio in (max(ratios), min(ratios)))
    for small, large in zip(lists(few), lists(many)):
        for some, more in zip(small, large):
            assert more[: len(some)] == some


@pytest.mark.parametrize("ratio", [1.0, -0.2, 1.5, float("nan")])
def test_a_ratio_outside_0_and_1_is_refused(ratio):
    with pytest.raises(RecipeError) as caught:
        keep(SCORES, ratio)
    assert f"{ratio:g}" in caught.value.cause
    assert "from 0 to below 1" in caught.value.cure


def test_fewer_dimensions_than_groups_are_refused():
    with pytest.raises(RecipeError) as caught:
        keep(SCORES, 0.85)
    assert "pruning 0.85 of 16 dimensions leaves 2 for 4 groups" in caught.value.cause
    assert "prune less" in caught.value.cure
    with pytest.raises(RecipeError, match="leaves 1 for 2 groups"):
        keep(SCORES, 0.85, "per_type")
    with pytest.raises(RecipeError, match="multiple"):
        keep(SCORES, 0.5, multiple=0)


# --- scores without a search ------------------------------------------------------------------------------------------


def test_magnitudes_by_hand():
    blocks = blocks_of(network_of("swin"))
    block = blocks[0]  # 2 heads of 12 dimensions, 24 inputs
    qkv, fc1 = block.attention.qkv.weight, block.mlp.fc1.weight
    with torch.no_grad():
        qkv.zero_()
        fc1.zero_()
        for part in range(3):
            for head in range(2):
                qkv[24 * part + 12 * head + 5] = 2.0  # dimension 5 in q, k, v and both heads
        qkv[24 + 12 + 7] = 6.0  # dimension 7 in k of the second head alone: root of 36 / 6
        fc1[3, :6] = 4.0  # a quarter of a row: root of 16 / 4
    heads, hidden = magnitudes(blocks)[0]
    assert_close(heads, torch.zeros(12).index_put((tensor([5, 7]),), tensor([2.0, 6.0**0.5])))
    assert_close(hidden, torch.zeros(96).index_fill(0, tensor([3]), 2.0))
    assert [(len(a), len(b)) for a, b in magnitudes(blocks)] == list(SHAPES["swin"])


def test_random_scores_depend_on_the_seed_alone():
    blocks = blocks_of(network_of("deit"))
    one, same, other = (random_scores(blocks, seed) for seed in (3, 3, 4))
    assert [(len(a), len(b)) for a, b in one] == list(SHAPES["deit"])
    assert all(torch.equal(a, b) for x, y in zip(one, same) for a, b in zip(x, y))
    assert not torch.equal(one[0][0], other[0][0])
    assert not torch.equal(one[0][0], one[1][0])
