"""Transformers as stem, blocks and head: equal to timm's, of the papers' sizes, and refused where they do not fit."""

import math

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from supple.backbones.vit import Vit
from supple.backbones.vit_cifar import VitCifar
from supple.cost import count_macs, count_params
from supple.errors import RecipeError

SMALL = {"patch_size": 4, "embed_dim": 24, "num_heads": 3, "depth": 3}
PLAIN, DEIT, DISTILLED = "vit_tiny_patch16_224", "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"
X = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def made(model: str, readout: str = "timm", **args: object) -> Vit:
    """A small one with random weights everywhere: some that timm starts with are 0 or 1."""
    torch.manual_seed(0)
    vit = Vit(num_classes=5, input_shape=(3, 16, 16), model=model, readout=readout, args={**SMALL, **args})
    for parameter in vit.parameters():
        nn.init.normal_(parameter, std=0.3)
    return vit


# --- timm's own -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (PLAIN, {}),
        (DEIT, {}),
        (DISTILLED, {}),
        (PLAIN, {"class_token": False, "global_pool": "avg"}),
        (PLAIN, {"reg_tokens": 2, "pre_norm": True, "no_embed_class": True}),
    ],
    ids=["vit", "deit", "distilled", "no-class-token", "registers"],
)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_vit_equals_the_untouched_network_of_timm_to_the_last_bit(model, args, training):
    vit = made(model, **args).train(training)
    timms = timm.create_model(model, num_classes=5, img_size=16, **SMALL, **args).train(training)
    timms.load_state_dict(vit.network.state_dict())
    assert torch.equal(vit(X), timms(X))
    assert torch.equal(vit.head(vit.blocks(vit.stem(X))), timms(X))
    assert (len(vit.blocks), vit.width, vit.class_token) == (3, 24, args.get("class_token", True))


def test_dropout_and_stochastic_depth_reach_the_blocks():
    facts = {"num_classes": 5, "input_shape": (3, 16, 16), "model": PLAIN, "args": SMALL}
    for settings in ({"dropout": 0.5}, {"drop_path": 0.9}):
        vit = Vit(**facts, **settings).train()
        assert not torch.equal(vit(X), vit(X))
        assert torch.equal(vit.eval()(X), vit(X))


# --- the readout of a distilled DeiT ----------------------------------------------------------------------------------


def test_the_class_readout_reads_the_class_token_alone_and_timms_the_mean_of_both_heads():
    both, single = made(DISTILLED).eval(), made(DISTILLED, "class").eval()
    weights = {name: value for name, value in both.state_dict().items() if "head_dist" not in name}
    assert set(weights) == set(single.state_dict())  # the second head is gone
    single.load_state_dict(weights)
    state = both.blocks(both.stem(X))
    assert state.shape[1] == 16 + 2  # the distillation token stays in the sequence
    assert torch.equal(single.blocks(single.stem(X)), state)
    class_token, distillation = both.network.norm(state)[:, :2].unbind(1)
    first, second = both.network.head(class_token), both.network.head_dist(distillation)
    assert_close(single(X), first)
    assert_close(both(X), (first + second) / 2)
    assert not torch.allclose(single(X), both(X))
    other = state.clone()
    other[:, 1:] = 0
    assert torch.equal(single.head(other), single.head(state))
    assert not torch.equal(both.head(other), both.head(state))


def test_both_readouts_of_a_network_without_distillation_are_one():
    assert torch.equal(made(PLAIN, "class").eval()(X), made(PLAIN).eval()(X))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("swin_tiny_patch4_window7_224", "SwinTransformer"),
        ("cait_xxs24_224", "Cait"),
        ("beit_base_patch16_224", "Beit"),
        ("resnet18", "ResNet"),
        ("vit_small_patch16_18x2_224", "ParallelThingsBlock"),
        ("vit_relpos_small_patch16_rpn_224", "VisionTransformerRelPos"),
    ],
)
def test_what_is_no_stack_of_ordinary_blocks_is_refused_with_its_kind(model, kind):
    with torch.device("meta"), pytest.raises(RecipeError, match=kind) as caught:
        Vit(num_classes=5, input_shape=(3, 224, 224), model=model)
    assert model in caught.value.cause
    assert "deit_tiny_patch16_224" in caught.value.cure


def test_the_class_readout_needs_a_class_token():
    with pytest.raises(RecipeError, match="no class token") as caught:
        made(PLAIN, "class", class_token=False, global_pool="avg")
    assert "backbone.readout" in caught.value.cure


# --- vit_cifar (arithmetic 3.1) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "classes", "params"),
    [
        ({"layers": 7}, 10, 6_268_810),
        ({"layers": 10}, 100, 8_969_188),
        ({"layers": 16, "grid": 16}, 100, 14_360_548),
        ({"layers": 16}, 100, 18_816 + 384 + 24_960 + 16 * 888_576 + 768 + 38_500),
    ],
)
def test_vit_cifar_has_the_parameters_of_the_arithmetic(settings, classes, params):
    with torch.device("meta"):
        assert count_params(VitCifar(num_classes=classes, **settings).parameters()) == params


def test_one_layer_has_the_parameters_and_macs_of_the_arithmetic():
    with torch.device("meta"):
        net = VitCifar(num_classes=100)
        state = net.stem(torch.empty(1, 3, 32, 32))
    assert state.shape == (1, 65, 384)
    assert count_params(net.blocks[0].parameters()) == 888_576
    assert count_macs(lambda: net.blocks[0](state)) == 60_752_640


@pytest.mark.parametrize(("scale", "divisor"), [("width", 6), ("head", 3)])
def test_a_layer_by_its_formula(scale, divisor):
    """Attention is divided by the root of the whole width (or of a head's), and the MLP ends with an activation."""
    torch.manual_seed(0)
    net = VitCifar(num_classes=2, width=6, mlp=5, heads=2, layers=1, grid=2, scale=scale, input_shape=(3, 4, 4))
    layer = net.blocks[0].double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    query, key, value = layer.qkv(layer.norm1(x)).chunk(3, dim=2)

    def attend(head: slice) -> Tensor:
        scores = query[..., head] @ key[..., head].transpose(1, 2) / math.sqrt(divisor)
        return scores.softmax(-1) @ value[..., head]

    y = x + layer.out[0](torch.cat([attend(slice(0, 3)), attend(slice(3, 6))], 2))
    hidden = F.gelu(layer.mlp[0](layer.norm2(y)))
    assert_close(layer(x), y + F.gelu(layer.mlp[3](hidden)))


def test_the_classifier_reads_the_class_token_alone():
    net = VitCifar(num_classes=2, width=6, mlp=5, heads=2, layers=1, grid=2, input_shape=(3, 4, 4))
    state = torch.randn(3, 5, 6)
    assert torch.equal(net.head(state), net.classifier(net.norm(state[:, 0])))


def test_the_initial_scale_is_that_of_class_token_and_positions_alone():
    made = []
    for settings in ({}, {"init_std": 1.0}, {"init_std": 0.02}):
        torch.manual_seed(0)
        made.append(VitCifar(num_classes=10, **settings).state_dict())
    usual, one, small = made
    for name, value in one.items():
        assert torch.equal(usual[name], value)  # as in the paper: N(0, 1)
        assert torch.equal(small[name], 0.02 * value if name in ("token", "positions") else value)
    assert one["positions"].std().item() == pytest.approx(1, abs=0.02)  # of 65 * 384 values


def test_both_stems_give_a_token_for_every_patch_and_one_more():
    for stem in ("patch", "conv"):
        net = VitCifar(num_classes=2, width=24, mlp=5, heads=2, layers=1, grid=4, stem=stem, input_shape=(3, 16, 16))
        assert net.stem(X).shape == (4, 17, 24)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 25, "heads": 3}, "multiple of backbone.heads 3"),
        ({"heads": 0}, "backbone.heads is 0"),
        ({"layers": 0}, "backbone.layers is 0"),
        ({"mlp": 100_000}, "backbone.mlp is 100000"),
        ({"grid": 5}, "backbone.grid is 5, which does not divide images of 32x32"),
        ({"dropout": 1.0}, "backbone.dropout is 1.0"),
        ({"dropout": -0.1}, "backbone.dropout is -0.1"),
        ({"init_std": 0}, "backbone.init_std is 0"),
        ({"stem": "conv", "grid": 32}, "patches are 1x1"),
        ({"stem": "conv", "grid": 8, "input_shape": (3, 48, 48)}, "patches are 6x6"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, words):
    with torch.device("meta"), pytest.raises(RecipeError, match=words) as caught:
        VitCifar(num_classes=10, **settings)
    assert caught.value.cure
