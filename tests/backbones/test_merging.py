"""Token merging: who joins whom, what becomes of them, and attention that counts them as often as they are."""

import math

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from supple.backbones.merging import match, mergeable, merged, run_block
from supple.backbones.vit import Vit
from supple.methods.merge_tokens import MergeTokens

# Directions by angle in degrees: the cosine of the difference is how similar two are.


def keys(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees) * math.pi / 180
    return torch.stack([angles.cos(), angles.sin()], 1)[None]


def test_the_most_similar_pair_across_the_sides_is_matched_by_hand():
    # First side: tokens 0, 2, 4 at 0, 90, 200 degrees; second side: 1, 3 at 80, 190. Nearest: 2 to 1 and 4 to 3, by 10.
    found = match(keys(0, 80, 90, 190, 203), 1, 0)
    assert found.leaving.flatten().tolist() == [1]  # token 2 is the second of its side
    assert found.joined.flatten().tolist() == [0]  # token 1 is the first of the other
    assert found.staying.flatten().tolist() == [0, 2]
    cosine = lambda degrees: math.cos(degrees * math.pi / 180)
    # It would flip if token 4, 13 degrees from its partner, became nearer than 10, long before 2 preferred another one.
    assert_close(found.margin, torch.tensor([cosine(10) - cosine(13)]))


def test_the_class_token_neither_leaves_nor_is_joined():
    same = keys(0, 0, 0, 0, 90, 90)
    for prefix in (1, 2):
        found = match(same, mergeable(6, 99, prefix), prefix)
        assert 0 not in found.leaving.flatten().tolist()
        assert found.staying.flatten()[0] == 0
    assert 0 not in found.joined.flatten().tolist()  # the distillation token is the first of the second side


def test_merged_tokens_are_means_weighted_by_their_sizes():
    tokens, sizes = torch.tensor([[[1.0], [4.0], [7.0], [9.0]]]), torch.tensor([[[1.0], [2.0], [1.0], [3.0]]])
    found = match(keys(0, 90, 91, 180), 1, 0)  # token 2 joins token 1
    after, stand_for = merged((tokens, sizes), found, 0)
    assert_close(after, torch.tensor([[[1.0], [(7 * 1 + 4 * 2) / 3], [9.0]]]))
    assert_close(stand_for, torch.tensor([[[1.0], [3.0], [3.0]]]))


@pytest.mark.parametrize(
    ("tokens", "count", "prefix", "expected"),
    [
        (197, 8, 1, 8),
        (37, 30, 1, 18),
        (10, 99, 0, 5),
        (9, 99, 0, 4),
        (5, 9, 2, 1),
        (3, 9, 1, 1),
        (2, 9, 1, 0),
        (1, 5, 1, 0),
        (2, 9, 2, 0),
    ],
)
def test_no_more_are_merged_than_there_are(tokens, count, prefix, expected):
    assert mergeable(tokens, count, prefix) == expected
    if expected:
        torch.manual_seed(0)
        state = torch.randn(2, tokens, 4), torch.ones(2, tokens, 1)
        after, sizes = merged(state, match(torch.randn(2, tokens, 3), expected, prefix), prefix)
        assert after.shape[1] == tokens - expected
        assert_close(sizes.sum(1), torch.full((2, 1), float(tokens)))  # every patch is still there
        assert_close((after * sizes).sum(1), state[0].sum(1))


def block_of() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=24, num_classes=2).blocks[0].eval()


@torch.inference_mode()
def test_a_block_that_merges_nothing_is_timm_s_own():
    block, x = block_of(), torch.randn(2, 9, 24)
    (tokens, _), margin = run_block(block, (x, torch.ones(2, 9, 1)), 0, 1)
    assert_close(tokens, block(x))
    assert margin is None


@torch.inference_mode()
def test_a_token_of_size_two_counts_as_two_tokens():
    """Proportional attention: what the other tokens get is the same whether a token is there twice, or once as two."""
    block, x = block_of(), torch.randn(1, 5, 24)
    twice = torch.cat([x, x[:, 4:]], 1)
    (expected, _), _ = run_block(block, (twice, torch.ones(1, 6, 1)), 0, 1)
    sizes = torch.tensor([1.0, 1, 1, 1, 2])[None, :, None]
    (found, _), _ = run_block(block, (x, sizes), 0, 1)
    assert_close(found, expected[:, :5])


@torch.inference_mode()
def test_merging_equal_tokens_changes_nothing():
    """Tokens that are equal have equal keys: as one token of size two they do what they did as two."""
    block = block_of()
    x = torch.randn(1, 3, 24)
    x = torch.stack([x[:, 0], x[:, 1], x[:, 1], x[:, 2], x[:, 2]], 1)  # class token, a, a, b, b: 1 and 2 meet, 3 and 4
    (tokens, sizes), _ = run_block(block, (x, torch.ones(1, 5, 1)), 2, 1)
    whole = block(x)
    assert tokens.shape[1] == 3
    assert_close(tokens[:, 0], whole[:, 0])
    assert_close(tokens[:, 1:], whole[:, [1, 3]])
    assert sizes.flatten().tolist() == [1, 2, 2]


# --- the whole network, against the algorithm of the paper written out for one picture --------------------------------


def by_the_paper(network: nn.Module, image: Tensor, r: int) -> Tensor:
    """Bolya et al., sections 3.1 to 3.3, and their code for what they leave open: one picture, token by token."""
    prefix = network.num_prefix_tokens
    x = network.norm_pre(network._pos_embed(network.patch_embed(image[None])))[0]
    sizes = torch.ones(len(x))
    for block in network.blocks:
        attention, heads = block.attn, block.attn.num_heads
        query, key, value = attention.qkv(block.norm1(x)).view(len(x), 3, heads, -1).permute(1, 2, 0, 3)
        often = (query @ key.transpose(1, 2) * attention.scale + sizes.log()).softmax(-1)  # proportional attention
        x = x + attention.proj((often @ value).transpose(0, 1).flatten(1))
        metric = nn.functional.normalize(key.mean(0), dim=1)
        side = {0: [*range(0, len(x), 2)], 1: [*range(1, len(x), 2)]}
        best = {}
        for a in side[0]:
            if a >= prefix:
                score, b = max((float(metric[a] @ metric[b]), b) for b in side[1] if b >= prefix)
                best[a] = (score, b)
        leaving = sorted(best, key=lambda a: -best[a][0])[: min(r, (len(x) - prefix) // 2)]
        total, weight = x * sizes[:, None], sizes.clone()
        for a in leaving:
            total[best[a][1]] += sizes[a] * x[a]
            weight[best[a][1]] += sizes[a]
        kept = [*range(prefix), *(place for place in side[0] + side[1] if place >= prefix and place not in leaving)]
        x, sizes = total[kept] / weight[kept, None], weight[kept]
        x = x + block.mlp(block.norm2(x))
    x = network.norm(x)
    if network.global_pool == "avg":
        mean = (x * sizes[:, None])[prefix:].sum(0) / sizes[prefix:].sum()
        return network.head(network.fc_norm(mean))
    if hasattr(network, "head_dist"):
        return (network.head(x[0]) + network.head_dist(x[1])) / 2
    return network.head(network.fc_norm(x[0]))


@pytest.mark.parametrize("r", [1, 3, 50])
@pytest.mark.parametrize(
    ("model", "args"),
    [
        ("vit_tiny_patch16_224", {}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("vit_tiny_patch16_224", {"reg_tokens": 2}),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
        ("vit_tiny_patch16_224", {"reg_tokens": 1, "global_pool": "avg"}),
    ],
    ids=["class-token", "distilled", "registers", "mean", "mean-with-registers"],
)
@torch.inference_mode()
def test_a_network_that_merges_computes_what_the_paper_says(model, args, r):
    torch.manual_seed(0)
    small = {"patch_size": 4, "embed_dim": 24, "num_heads": 3, "depth": 3, **args}
    backbone = Vit(num_classes=5, input_shape=(3, 24, 24), model=model, args=small)
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, std=0.3)
    merging = MergeTokens(backbone, tokens=(r,), input_shape=(3, 24, 24)).eval()
    x = torch.randn(3, 3, 24, 24)
    expected = torch.stack([by_the_paper(backbone.network, image, r) for image in x])
    found = merging(x, f"tokens={r}")
    assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found, merging(x), atol=1e-3)
    assert_close(merging.extract(f"tokens={r}")(x), found)
