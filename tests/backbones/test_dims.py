"""Cutting the dimensions of a transformer: on a ViT, a distilled DeiT and a Swin, and on both paths of attention."""

import copy
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from supple.backbones.dims import (
    Shape,
    blocks_of,
    check_shape,
    cut_block,
    kept_dims,
    pad_block,
    per_head,
    prunable,
    resize,
    shape_of,
)
from supple.backbones.networks import timm_network
from supple.errors import RecipeError
from supple.surgery.deploy import pad_dims
from tiny_transformers import INPUT, NETWORKS, PATHS, PLAIN, SHAPES, images, network_of

EQUAL = {"atol": 1e-10, "rtol": 1e-10}


def subsets(shape: Shape, rng: random.Random) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Some dimensions of every block, at least one, in any order."""
    some = lambda size: torch.tensor(rng.sample(range(size), rng.randint(1, size)))
    return [(some(dims), some(hidden)) for dims, hidden in shape]


@torch.no_grad()
def masked(network: nn.Module, kept: list[tuple[torch.Tensor, torch.Tensor]]) -> nn.Module:
    """The same network, of full size, whose other dimensions are zero in q, k, v and the MLPs."""
    network = copy.deepcopy(network)
    for block, (dims, hidden) in zip(blocks_of(network), kept):
        heads = torch.zeros(block.head_dims).index_fill(0, dims, 1).repeat(3 * block.heads)
        for linear, mask in (
            (block.attention.qkv, heads),
            (block.mlp.fc1, torch.zeros(block.hidden).index_fill(0, hidden, 1)),
        ):
            linear.weight *= mask[:, None]
            if linear.bias is not None:
                linear.bias *= mask
    return network


def cut(network: nn.Module, kept: list[tuple[torch.Tensor, torch.Tensor]]) -> nn.Module:
    network = copy.deepcopy(network)
    for block, (dims, hidden) in zip(blocks_of(network), kept):
        cut_block(block, dims, hidden)
    return network


# --- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_every_block_is_found_with_its_dimensions(name):
    network = network_of(name)
    assert shape_of(network) == SHAPES[name]
    assert kept_dims(SHAPES["swin"]) == 3 * 12 + 2 * 96 + 192
    wrapped = nn.Sequential(nn.Identity(), network)
    assert [block.path for block in blocks_of(wrapped)] == [f"1.{block.path}" for block in blocks_of(network)]


def test_the_rows_of_a_dimension_are_those_of_every_head():
    swin = blocks_of(network_of("swin"))[0]  # 2 heads of 12 dimensions
    assert per_head(swin, torch.tensor([0, 5])).tolist() == [0, 5, 12, 17]


# --- cutting ----------------------------------------------------------------------------------------------------------


@PATHS
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_cutting_equals_masking(name, fused, seed):
    network, x = network_of(name, fused), images(2)
    kept = subsets(SHAPES[name], random.Random(seed))
    small = cut(network, kept)
    assert shape_of(small) == tuple((len(dims), len(hidden)) for dims, hidden in kept)
    assert_close(small(x), masked(network, kept)(x), **EQUAL)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_was_cut_did_matter(name):
    kept = subsets(SHAPES[name], random.Random(0))
    network = network_of(name)
    assert (cut(network, kept)(images()) - network(images())).abs().max() > 0.01


@pytest.mark.parametrize("name", NETWORKS)
def test_both_paths_of_attention_agree_after_a_cut_and_a_second_one(name):
    kept = subsets(SHAPES[name], random.Random(1))
    again = subsets(tuple((len(dims), len(hidden)) for dims, hidden in kept), random.Random(2))
    networks = [cut(cut(network_of(name, fused), kept), again) for fused in (True, False)]
    assert_close(networks[0](images()), networks[1](images()), **EQUAL)
    both = [(dims[second], hidden[few]) for (dims, hidden), (second, few) in zip(kept, again)]
    assert_close(networks[0](images()), masked(network_of(name), both)(images()), **EQUAL)


@PATHS
def test_dimensions_in_another_order_compute_the_same(name, fused):
    rng = torch.Generator().manual_seed(0)
    orders = [tuple(torch.randperm(size, generator=rng) for size in pair) for pair in SHAPES[name]]
    network = network_of(name, fused)
    mixed = cut(network, orders)
    assert not torch.equal(blocks_of(mixed)[0].mlp.fc1.weight, blocks_of(network)[0].mlp.fc1.weight)
    assert_close(mixed(images()), network(images()), **EQUAL)


@PATHS
def test_layers_without_biases_are_cut_too(name, fused):
    network = network_of(name, fused, qkv_bias=False)
    kept = subsets(SHAPES[name], random.Random(3))
    assert_close(cut(network, kept)(images()), masked(network, kept)(images()), **EQUAL)
    padded = pad_dims(cut(network, kept), 8, 8)
    assert padded is not None
    assert_close(padded(images()), cut(network, kept)(images()), **EQUAL)


@pytest.mark.parametrize("name", NETWORKS)
def test_only_heads_and_mlps_change_their_shape(name):
    network = network_of(name)
    small = cut(network, [(torch.arange(3), torch.arange(5))] * len(SHAPES[name]))
    parts = ("attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight")
    after = small.state_dict()
    for key, value in network.state_dict().items():
        assert (after[key].shape == value.shape) != key.endswith(parts), key
        if not key.endswith(parts):
            assert torch.equal(after[key], value)
    tables = [key for key in after if "relative_position_bias_table" in key]
    assert len(tables) == (3 if name == "swin" else 0)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_shape_keeps_the_first_dimensions(name):
    shape = tuple((dims - 2, hidden // 3) for dims, hidden in SHAPES[name])
    network = network_of(name)
    kept = [(torch.arange(dims), torch.arange(hidden)) for dims, hidden in shape]
    small = copy.deepcopy(network)
    resize(small, shape)
    assert shape_of(small) == shape
    assert_close(small(images()), masked(network, kept)(images()), **EQUAL)
    resize(network, SHAPES[name])
    assert shape_of(network) == SHAPES[name]


# --- padding ----------------------------------------------------------------------------------------------------------


@PATHS
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), of_heads=st.integers(1, 16), of_hidden=st.integers(1, 16))
def test_padded_equals_unpadded(name, fused, seed, of_heads, of_hidden):
    small = cut(network_of(name, fused), subsets(SHAPES[name], random.Random(seed)))
    padded = copy.deepcopy(small)
    for block in blocks_of(padded):
        pad_block(block, of_heads, of_hidden)
    up = lambda size, multiple: (size + multiple - 1) // multiple * multiple
    assert shape_of(padded) == tuple((up(dims, of_heads), up(hidden, of_hidden)) for dims, hidden in shape_of(small))
    assert_close(padded(images(2)), small(images(2)), **EQUAL)


def test_only_odd_dimensions_are_padded():
    assert pad_dims(network_of("vit"), 8, 16) is None
    assert pad_dims(nn.Linear(3, 3), 8, 16) is None
    small = cut(network_of("vit"), [(torch.arange(8), torch.arange(96)), (torch.arange(5), torch.arange(7))])
    padded = pad_dims(small, 2, 16)
    assert padded is not None
    assert shape_of(padded) == ((8, 96), (6, 16))


# --- what cannot be cut -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "args", "reason"),
    [
        ("swinv2_tiny_window8_256", {"window_size": 2}, "normalises its queries and keys"),
        ("vit_tiny_patch16_224", {**PLAIN, "qk_norm": True}, "normalises its queries"),
        ("vit_tiny_patch16_224", {**PLAIN, "scale_attn_norm": True}, "normalises what its heads give"),
        ("vit_tiny_patch16_224", {**PLAIN, "scale_mlp_norm": True}, "normalises inside its MLP"),
        ("vit_giant_patch14_dinov2", {**PLAIN, "num_heads": 3}, "gates its MLP"),
        ("beit_base_patch16_224", {**PLAIN, "num_heads": 3}, "has attention of the kind"),
        ("resnet18", {}, "no block with `attn` and `mlp` was found"),
    ],
)
def test_networks_that_cannot_be_cut_are_refused_with_the_reason(model, args, reason):
    with torch.device("meta"):
        network = timm_network(num_classes=5, input_shape=(3, 64, 64), model=model, args=args)
    with pytest.raises(RecipeError) as caught:
        blocks_of(network)
    assert reason in caught.value.cause
    assert type(network).__name__ in caught.value.cause
    assert "ViT, DeiT or Swin" in caught.value.cure
    assert prunable(network) == []


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (((8, 96),), "the network has 2 blocks, kept dimensions are given for 1"),
        (((8, 96), (9, 96)), "block 2 cannot keep 9 and 96 dimensions: it has 8 and 96"),
        (((0, 96), (8, 96)), "block 1 cannot keep 0 and 96"),
        (((8, 96), (8, 97)), "block 2"),
        ((8, 96), "not a list of pairs"),
        (("ab", "cd"), "not a list of pairs"),
        (None, "not a list of pairs"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shape, said):
    with pytest.raises(RecipeError) as caught:
        check_shape(shape, SHAPES["vit"])
    assert said in caught.value.cause
    assert "Give 2 pairs" in caught.value.cure


def test_a_network_is_built_in_a_kept_shape():
    small = timm_network(num_classes=5, input_shape=INPUT, **NETWORKS["swin"], kept=((3, 10), (12, 96), (1, 1)))
    assert shape_of(small) == ((3, 10), (12, 96), (1, 1))
    with pytest.raises(RecipeError, match="resnet|ResNet"):
        timm_network(num_classes=5, model="resnet18", kept=((3, 10),))
