"""Branches: the parameter counts and MACs of the SL-ViT paper, its formulas by hand, and one answer in every layout."""

import math
from inspect import Parameter, signature

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from supple.backbones._cut.tap import Tap
from supple.cost import count_macs, count_params
from supple.errors import RecipeError
from supple.methods.branches import (
    BRANCHES,
    Cnn,
    EncoderLayer,
    Linear,
    SelfAttention,
    SlVit,
    affordable,
    automatic_patch,
    checked_branch,
    make_branch,
)
from supple.recipe import options

# The taps of the paper. ResNet152 b1 and DenseNet201 b1 have the same size.
RN1 = Tap("nchw", 128, 28, 28)
DN2 = Tap("nchw", 256, 28, 28)
RN2 = Tap("nchw", 512, 28, 28)
IV3 = Tap("nchw", 288, 25, 25)
CROWD = Tap("nchw", 512, 72, 128)

SMALL = Tap("nchw", 3, 4, 6)  # not square, so that swapped sides would show
LAYOUTS = [
    SMALL,
    Tap("nhwc", 3, 4, 6),
    Tap("tokens", 3, 4, 6),
    Tap("tokens", 3, 4, 6, prefix=2),
]
KINDS = {
    "cnn": {"filters": 4, "hidden": 8},
    "cnn, 2 layers": {"filters": 4, "hidden": 8, "layers": 2, "padding": 1},
    "sl_vit": {"d": 8, "heads": 3, "hidden": 8},
    "sl_vit, 2 layers": {"d": 8, "heads": 3, "hidden": 8, "layers": 2, "last_residual": False},
    "linear": {"read": "mean"},
    "linear, normed": {"read": "mean", "norm": True},
}


def small(kind: str, tap: Tap = SMALL, **changes) -> nn.Module:
    torch.manual_seed(0)
    return make_branch({"name": kind.split(",")[0], **KINDS[kind], **changes}, tap, 5)


def laid_out(maps: torch.Tensor, tap: Tap) -> torch.Tensor:
    """A batch of NCHW maps as it would lie at a tap; class tokens are noise."""
    if tap.layout == "nchw":
        return maps
    last = maps.permute(0, 2, 3, 1)
    if tap.layout == "nhwc":
        return last.contiguous()
    return torch.cat([torch.randn(len(maps), tap.prefix, tap.channels), last.flatten(1, 2)], 1)


def params(kind: str, tap: Tap, classes: int, **changes) -> int:
    with torch.device("meta"):
        return count_params(make_branch({"name": kind, **changes}, tap, classes).parameters())


def macs(kind: str, tap: Tap, classes: int, **changes) -> int:
    with torch.device("meta"):
        branch, x = make_branch({"name": kind, **changes}, tap, classes).eval(), torch.empty(1, *tap.shape)
    return count_macs(lambda: branch(x))


# --- the papers' integers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "tap", "classes", "changes", "exact"),
    [
        ("cnn", RN1, 10, {}, 779_290),
        ("cnn", RN1, 12, {}, 779_804),
        ("cnn", RN1, 100, {}, 802_420),
        ("cnn", DN2, 12, {}, 798_236),
        ("cnn", DN2, 100, {}, 820_852),
        ("cnn", RN2, 10, {}, 834_586),
        ("cnn", IV3, 10, {}, 605_722),
        ("cnn", IV3, 100, {}, 628_852),
        ("cnn", CROWD, 1, {"padding": 1, "pool": 4}, 2_499_345),
        ("sl_vit", RN1, 10, {}, 591_818),
        ("sl_vit", RN1, 12, {}, 592_332),
        ("sl_vit", DN2, 10, {}, 657_354),
        ("sl_vit", DN2, 12, {}, 657_868),
        ("sl_vit", DN2, 100, {}, 680_484),
        ("sl_vit", RN2, 100, {}, 811_556),
        ("sl_vit", RN2, 12, {"heads": 24}, 839_244),
        ("sl_vit", RN2, 12, {"heads": 23}, 835_052),
        ("sl_vit", RN2, 10, {"heads": 24}, 838_730),
        ("sl_vit", RN2, 10, {"heads": 23}, 834_538),
        ("sl_vit", IV3, 10, {}, 559_306),
        ("sl_vit", IV3, 100, {"d": 36, "heads": 8}, 628_852 + 1_240),  # above its CNN by 1 240
        ("sl_vit", CROWD, 1, {}, 2_353_825),
        ("sl_vit", RN1, 10, {"heads": 1}, 545_706),
        ("sl_vit", RN1, 10, {"heads": 2}, 549_898),
        ("sl_vit", RN1, 10, {"heads": 8}, 575_050),
        ("cnn", RN1, 10, {"kernel": 15, "filters": 10, "padding": 6}, 789_268),
        ("cnn", RN1, 10, {"kernel": 11, "filters": 12, "padding": 4}, 773_654),
        ("cnn", RN1, 10, {"dilation": 2, "padding": 1}, 779_290),
        ("cnn", RN1, 10, {"dilation": 3, "padding": 2}, 779_290),
        ("cnn", RN1, 10, {"layers": 2}, 781_610),
    ],
)
def test_a_branch_has_the_parameters_that_follow_from_the_paper(kind, tap, classes, changes, exact):
    assert params(kind, tap, classes, **changes) == exact


@pytest.mark.parametrize(
    ("kind", "tap", "classes", "changes", "printed"),
    [
        ("cnn", RN2, 100, {}, 0.86),  # table 5
        ("cnn", RN2, 12, {}, 0.84),  # table 6
        ("cnn", IV3, 12, {}, 0.61),
        ("sl_vit", RN1, 100, {}, 0.61),  # table 5
        ("sl_vit", RN2, 10, {}, 0.79),  # table 4
        ("sl_vit", IV3, 12, {}, 0.56),  # table 6
        ("sl_vit", RN1, 10, {"heads": 4}, 0.56),  # table 11
        ("sl_vit", RN1, 10, {"heads": 16}, 0.61),
        ("sl_vit", RN1, 10, {"layers": 2}, 0.65),
    ],
)
def test_a_branch_has_the_millions_of_parameters_the_paper_prints(kind, tap, classes, changes, printed):
    assert round(params(kind, tap, classes, **changes) / 1e6, 2) == printed


@pytest.mark.parametrize(
    ("tap", "classes", "changes", "up_to_tap", "with_cnn", "with_sl_vit"),
    [
        (RN1, 10, {}, 811_646_976, 824_867_328, 819_780_864),  # ResNet152 b1
        (RN1, 10, {}, 1_261_223_936, 1_274_444_288, 1_269_357_824),  # DenseNet201 b1
        (IV3, 10, {}, 1_060_022_112, 1_082_524_512, 1_067_866_208),  # InceptionV3 b1
        (IV3, 10, {}, 1_237_622_112, 1_260_124_512, 1_245_466_208),  # InceptionV3 b2
        (IV3, 100, {"d": 36, "heads": 8}, 1_060_022_112, 1_082_547_552, 1_068_350_048),  # InceptionV3 b1, CIFAR-100
        (CROWD, 1, {}, 164_093_755_392, 164_775_657_728, 164_269_588_736),  # AudioCSRNet V1
    ],
)
def test_a_branch_takes_the_macs_that_follow_from_the_paper(tap, classes, changes, up_to_tap, with_cnn, with_sl_vit):
    crowd = {"padding": 1, "pool": 4} if tap is CROWD else {}
    assert up_to_tap + macs("cnn", tap, classes, **crowd) == with_cnn
    assert up_to_tap + macs("sl_vit", tap, classes, **changes) == with_sl_vit


@settings(max_examples=40, deadline=None)
@given(
    patch=st.integers(1, 4),
    grid=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    channels=st.integers(1, 8),
    d=st.integers(1, 12),
    heads=st.integers(1, 5),
    layers=st.integers(1, 3),
    ratio=st.integers(1, 4),
    hidden=st.integers(1, 9),
)
def test_sl_vit_parameters_follow_the_closed_formula(patch, grid, channels, d, heads, layers, ratio, hidden):
    tap, n = Tap("nchw", channels, patch * grid[0], patch * grid[1]), grid[0] * grid[1]
    attention = heads * (4 * d * d + 3 * d) + d
    encoder = 4 * d + attention + (2 * ratio * d * d + (ratio + 1) * d)
    head = (hidden * n * d + hidden) + (hidden * hidden + hidden) + (hidden * 7 + 7)
    expected = (patch * patch * channels * d + d) + n * d + layers * encoder + head
    given = {"patch": patch, "d": d, "heads": heads, "layers": layers, "mlp_ratio": ratio, "hidden": hidden}
    assert params("sl_vit", tap, 7, **given) == expected


@pytest.mark.parametrize(("side", "patch"), [(28, 4), (25, 5), (14, 2), (7, 1), (32, 4), (8, 2), (1, 1)])
def test_the_automatic_patch_divides_the_map_and_is_near_the_root_of_its_side(side, patch):
    assert automatic_patch(Tap("nchw", 1, side, side)) == patch


def test_the_automatic_patch_of_the_crowd_map_gives_16_by_9_patches():
    branch = SlVit(Tap("nchw", 1, 72, 128), 1)
    assert branch.embed.kernel_size == branch.embed.stride == (8, 8)
    assert len(branch.position) == 16 * 9


# --- formulas by hand -------------------------------------------------------------------------------------------------


def test_attention_of_width_one_by_hand():
    attention = SelfAttention(1, heads=1)
    for layer in (attention.qkv, attention.out):
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
    a = math.sqrt(math.log(3))  # tokens 0 and a: the second one attends with weights 1 / (1 + e^(a a)) = 1/4 and 3/4
    assert_close(attention(torch.tensor([[[0.0], [a]]])), torch.tensor([[[a / 2], [3 * a / 4]]]))


def test_attention_equals_the_softmax_formula_with_heads_as_wide_as_the_input():
    d, heads = 4, 3
    attention, x = SelfAttention(d, heads), torch.randn(2, 5, d)
    assert attention.qkv.out_features == 3 * heads * d
    q, k, v = (x @ w.T + b for w, b in zip(attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)))
    mixed = []
    for head in range(heads):
        own = slice(head * d, (head + 1) * d)
        weights = torch.softmax(q[..., own] @ k[..., own].transpose(1, 2) / math.sqrt(d), -1)
        mixed.append(weights @ v[..., own])
    assert_close(attention(x), torch.cat(mixed, -1) @ attention.out.weight.T + attention.out.bias)


@pytest.mark.parametrize("last_residual", [True, False])
def test_sl_vit_equals_the_formula_written_out_patch_by_patch(last_residual):
    branch = small("sl_vit", patch=2, last_residual=last_residual).eval()
    x = torch.randn(2, *SMALL.shape)
    cut = [x[:, :, i : i + 2, j : j + 2].flatten(1) for i in (0, 2) for j in (0, 2, 4)]  # 2x3 patches, row by row
    z = F.linear(torch.stack(cut, 1), branch.embed.weight.flatten(1), branch.embed.bias) + branch.position
    layer = branch.layers[0]
    norm, attention = layer.attention
    z = z + attention(F.layer_norm(z, (8,), norm.weight, norm.bias))
    norm, wide, _, narrow = layer.mlp
    y = F.linear(F.layer_norm(z, (8,), norm.weight, norm.bias), wide.weight, wide.bias)
    y = F.linear(y * (1 + torch.erf(y / math.sqrt(2))) / 2, narrow.weight, narrow.bias)
    y = (z + y if last_residual else y).flatten(1)
    first, second, last = (part for part in branch.head if isinstance(part, nn.Linear))
    for hidden in (first, second):
        y = F.linear(y, hidden.weight, hidden.bias).clamp(min=0)
    assert_close(branch(x), F.linear(y, last.weight, last.bias))


@pytest.mark.parametrize(("last_residual", "expected"), [(True, [13.5, 16.5]), (False, [10.0, 10.0])])
@torch.no_grad()
def test_the_last_residual_by_hand(last_residual, expected):
    branch = SlVit(Tap("nchw", 1, 1, 2), 2, d=1, heads=1, last_residual=last_residual).eval()
    branch.head = nn.Flatten()
    branch.embed.weight.fill_(2)
    branch.position.copy_(torch.tensor([[0.5], [-0.5]]))  # the map (1, 3) becomes the tokens 2.5 and 5.5
    attention, mlp = branch.layers[0].attention[1], branch.layers[0].mlp[3]
    attention.qkv.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))  # a norm of one number is 0: each value is its bias, 1
    attention.out.weight.fill_(1)  # so attention adds 1
    mlp.weight.zero_()
    mlp.bias.fill_(10)
    assert_close(branch(torch.tensor([[[[1.0, 3.0]]]])), torch.tensor([expected]))


@torch.no_grad()
def test_only_the_last_layer_loses_its_residual():
    branch = SlVit(SMALL, 2, d=8, heads=2, layers=3, last_residual=False).eval()
    branch.head = nn.Flatten()
    x = torch.randn(2, *SMALL.shape)
    kept = branch(x)
    for layer in branch.layers[:-1]:  # without a residual, a layer whose MLP gives 0 would wipe out the input
        layer.mlp[3].weight.zero_()
        layer.attention[1].out.weight.zero_()
    last = branch.layers[-1]
    tokens = branch.embed(x).flatten(2).transpose(1, 2) + branch.position
    assert_close(branch(x), last(tokens).flatten(1))
    assert not torch.allclose(branch(x), kept)
    last.mlp[3].weight.zero_()
    assert not branch(x).any()


def test_an_encoder_layer_starts_from_its_input():
    layer, x = EncoderLayer(4, 2, 2, residual=True), torch.randn(1, 3, 4)
    for narrow in (layer.attention[1].out, layer.mlp[3]):
        nn.init.zeros_(narrow.weight)
        nn.init.zeros_(narrow.bias)
    assert torch.equal(layer(x), x)


@pytest.mark.parametrize(("sign", "expected"), [(1.0, 28.0), (-1.0, 0.0)])
@torch.no_grad()
def test_the_cnn_branch_by_hand(sign, expected):
    branch = Cnn(Tap("nchw", 1, 3, 3), 2, kernel=2, filters=1)
    branch.head = nn.Flatten()
    branch.convs[0].weight.fill_(sign)
    # The map 1 ... 9 gives the window sums 12, 16, 24, 28; their largest is 28; ReLU leaves nothing of the negative.
    assert branch(torch.arange(1.0, 10).view(1, 1, 3, 3)).tolist() == [[expected]]


@torch.no_grad()
def test_later_convolutions_keep_the_size_with_any_dilation():
    branch = Cnn(Tap("nchw", 2, 9, 9), 2, kernel=3, dilation=2, layers=3, pool=1, filters=4)
    branch.head = nn.Identity()
    assert branch(torch.randn(1, 2, 9, 9)).shape == (1, 4, 5, 5)  # 9 - 2 * 2, once


def test_the_linear_branch_reads_the_mean_of_a_map_or_the_class_token():
    maps = torch.randn(4, 3, 4, 6)
    tokens = laid_out(maps, Tap("tokens", 3, 4, 6, prefix=2))
    for read, tap, x, vector in [
        ("auto", SMALL, maps, maps.mean((2, 3))),
        ("auto", Tap("tokens", 3, 4, 6), tokens[:, 2:], maps.mean((2, 3))),
        ("auto", Tap("tokens", 3, 4, 6, prefix=2), tokens, tokens[:, 0]),
        ("class", Tap("tokens", 3, 4, 6, prefix=2), tokens, tokens[:, 0]),
        ("mean", Tap("tokens", 3, 4, 6, prefix=2), tokens, maps.mean((2, 3))),
        ("auto", Tap("flat", 3), maps[..., 0, 0], maps[..., 0, 0]),
    ]:
        branch = Linear(tap, 5, read=read)
        assert_close(branch(x), vector @ branch.linear.weight.T + branch.linear.bias)


def test_the_linear_branch_can_norm_what_it_reads():
    branch = Linear(Tap("flat", 2), 2, norm=True)
    nn.init.eye_(branch.linear.weight)
    assert_close(branch(torch.tensor([[1.0, 5.0]])), torch.tensor([[-1.0, 1.0]]), atol=1e-5, rtol=0)


# --- what holds for every branch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_every_layout_of_the_same_map_gives_the_same_logits(kind):
    maps = torch.randn(3, *SMALL.shape)
    branch = small(kind).eval()
    expected = branch(maps)
    assert expected.shape == (3, 5)
    for tap in LAYOUTS:
        other = small(kind, tap).eval()
        other.load_state_dict(branch.state_dict())
        x = laid_out(maps, tap)
        assert x.shape[1:] == tap.shape
        assert_close(other(x), expected)
        assert macs(kind.split(",")[0], tap, 5, **KINDS[kind]) == macs(kind.split(",")[0], SMALL, 5, **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_sample_is_answered_alike_whatever_else_is_in_the_batch(kind):
    branch, x = small(kind).eval(), torch.randn(4, *SMALL.shape)
    together = branch(x)
    for i in range(4):
        assert_close(branch(x[i : i + 1]), together[i : i + 1])
    x[1:] = torch.randn(3, *SMALL.shape)
    assert_close(branch(x)[0], together[0])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter_and_the_input(kind):
    branch, x = small(kind).train(), torch.randn(16, *SMALL.shape, requires_grad=True)
    branch(x).square().sum().backward()
    assert [name for name, p in branch.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert x.grad.any()


@pytest.mark.parametrize("kind", ["cnn", "sl_vit"])
def test_dropout_acts_only_in_training(kind):
    x = torch.randn(8, *SMALL.shape)
    branch = small(kind)
    assert not torch.equal(branch.train()(x), branch(x))
    assert torch.equal(branch.eval()(x), branch(x))
    without = small(kind, dropout=0.0)
    assert torch.equal(without.train()(x), branch(x))


def test_weights_start_as_he_says_and_biases_at_zero():
    torch.manual_seed(0)
    for branch in (Cnn(RN1, 10), SlVit(RN1, 10), Linear(Tap("flat", 2048), 100)):
        for layer in branch.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                assert not layer.bias.any()
                if layer.weight.numel() > 10_000:
                    he = math.sqrt(2 / layer.weight[0].numel())
                    assert layer.weight.std().item() == pytest.approx(he, rel=0.05)
    positions = SlVit(CROWD, 1).position
    assert 0 < positions.std() < 0.05


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BRANCHES)
def test_a_name_stands_for_the_defaults_of_the_signature(name):
    found = signature(BRANCHES[name]).parameters.values()
    defaults = {p.name: p.default for p in found if p.kind is Parameter.KEYWORD_ONLY}
    assert checked_branch(name) == checked_branch({"name": name}) == {"name": name, **defaults}
    assert set(options(BRANCHES[name]).model_fields) == set(defaults)
    assert checked_branch(checked_branch(name)) == checked_branch(name)


def test_a_mapping_changes_single_settings():
    assert checked_branch({"name": "sl_vit", "heads": 4}) == {**checked_branch("sl_vit"), "heads": 4}
    assert make_branch({"name": "sl_vit", "heads": 4}, SMALL, 5).layers[0].attention[1].heads == 4
    assert isinstance(make_branch(checked_branch({"name": "linear", "norm": True}), SMALL, 5).norm, nn.LayerNorm)


def test_the_seed_alone_decides_the_weights():
    torch.manual_seed(3)
    made = make_branch("sl_vit", SMALL, 5)
    torch.manual_seed(3)
    for one, other in zip(made.parameters(), SlVit(SMALL, 5).parameters(), strict=True):
        assert torch.equal(one, other)


FLAT = Tap("flat", 64)


@pytest.mark.parametrize(
    ("given", "tap", "words"),
    [
        ("sl-vit", RN1, ['method.branch "sl-vit" is unknown', 'Did you mean "sl_vit"?']),
        ("tree", RN1, ["Possible: cnn, conv, linear, sl_vit."]),
        ({"heads": 4}, RN1, ["method.branch.name is missing", "sl_vit"]),
        ({"name": ["cnn"]}, RN1, ["method.branch", "is unknown"]),
        ({"name": "sl_vit", "hedas": 4}, RN1, ['"method.branch.hedas"', '"method.branch.heads"']),
        ({"name": "sl_vit", 3: 4}, RN1, ['"method.branch.3"']),
        ({"name": "linear", "heads": 4}, RN1, ['"method.branch.heads"']),
        ({"name": "sl_vit", "heads": "many"}, RN1, ["method.branch.heads is 'many'", "integer"]),
        ({"name": "sl_vit", "heads": None}, RN1, ["method.branch.heads is None"]),
        ({"name": "linear", "read": "median"}, RN1, ["method.branch.read is 'median'", "mean"]),
        (["cnn"], RN1, ["method.branch is ['cnn']", "name"]),
        (None, RN1, ["method.branch is None", "sl_vit"]),
        (3, RN1, ["method.branch is 3"]),
        ({"name": "sl_vit", "patch": 3}, RN1, ["method.branch.patch is 3", "28x28x128", "1, 2, 4, 7, 14, 28"]),
        ({"name": "sl_vit", "patch": 9}, CROWD, ["method.branch.patch is 9", "1, 2, 4, 8,"]),
        ({"name": "sl_vit", "patch": -1}, RN1, ["method.branch.patch is -1", "from 0"]),
        ({"name": "sl_vit", "heads": 10**9}, RN1, ["method.branch.heads is 1000000000", "to 4096"]),
        ({"name": "sl_vit", "d": 4096, "heads": 4096}, RN1, ["method.branch would have", "28x28x128", "smaller"]),
        ({"name": "cnn", "kernel": 5}, Tap("nchw", 8, 4, 9), ["method.branch.kernel is 5", "4x9x8", "padding"]),
        ({"name": "cnn", "dilation": 2}, Tap("nhwc", 8, 4, 9), ["method.branch.kernel is 3", "dilation 2", "5 cells"]),
        ({"name": "cnn", "pool": 5}, Tap("nchw", 8, 6, 9), ["method.branch.pool is 5", "4x7", "at most 4"]),
        ({"name": "cnn", "kernel": 4, "layers": 2}, RN1, ["method.branch.kernel is 4", "odd kernel"]),
        ({"name": "cnn", "padding": -1}, RN1, ["method.branch.padding is -1", "from 0"]),
        ({"name": "linear", "read": "class"}, RN1, ["method.branch.read is class", "mean"]),
        ({"name": "linear", "read": "class"}, FLAT, ["method.branch.read is class", "64 features"]),
        ({"name": "linear", "read": "class"}, Tap("tokens", 8, 2, 2), ["method.branch.read is class"]),
        ("cnn", FLAT, ["method.branch.name is cnn", "64 features", "linear"]),
        ("sl_vit", FLAT, ["method.branch.name is sl_vit", "64 features", "linear"]),
        *(
            ({"name": name, key: value}, RN1, [f"method.branch.{key} is {value}", "from 1"])
            for name, keys in {
                "cnn": ("kernel", "dilation", "filters", "pool", "layers", "hidden"),
                "sl_vit": ("d", "heads", "layers", "mlp_ratio", "hidden"),
            }.items()
            for key in keys
            for value in (0, -2)
        ),
        *(
            (
                {"name": name, "dropout": value},
                RN1,
                [f"method.branch.dropout is {value}", "below 1" if math.isfinite(value) else "finite"],
            )
            for name in ("cnn", "sl_vit")
            for value in (-0.1, 1.0, 1.5, math.nan, math.inf)
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_cure(given, tap, words):
    with pytest.raises(RecipeError) as caught:
        make_branch(given, tap, 10)
    assert "\n" not in caught.value.cause
    assert caught.value.cure
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("given", [{"name": "sl_vit", "heads": 0}, {"name": "cnn", "dropout": 2.0}, {"name": "cnm"}])
def test_what_no_tap_could_mend_is_refused_before_there_is_one(given):
    with pytest.raises(RecipeError):
        checked_branch(given)


@pytest.mark.parametrize(("kind", "settings"), [(Cnn, {"filters": 0}), (SlVit, {"d": 0}), (SlVit, {"patch": 5})])
def test_a_branch_built_directly_checks_its_settings_too(kind, settings):
    with pytest.raises(RecipeError, match=f"method.branch.{next(iter(settings))}"):
        kind(RN1, 10, **settings)


# --- the paper's rule -------------------------------------------------------------------------------------------------


def test_what_is_affordable_has_no_more_parameters_than_the_cnn_branch():
    rows = affordable(RN1, 10)
    counts = [row["params"] for row in rows]
    assert counts == sorted(counts, reverse=True)
    assert 0 < max(counts) <= params("cnn", RN1, 10)
    assert {"name": "sl_vit", "patch": 4, "d": 32, "heads": 12, "params": 591_818} in rows
    for row in rows[:3]:
        settings = {key: row[key] for key in ("patch", "d", "heads")}
        assert params("sl_vit", RN1, 10, **settings) == row["params"]


def test_the_grid_of_what_is_affordable_is_complete():
    most = max(row["params"] for row in affordable(RN1, 10, limit=10**12))
    everything = affordable(RN1, 10, limit=most)
    assert len(everything) == 6 * 7
    assert len(affordable(RN1, 10, limit=most - 1)) == 6 * 7 - 1
    assert affordable(RN1, 10, limit=0) == []


def test_the_rule_allows_23_heads_on_branch_2_of_resnet152_but_not_the_24_of_table_3():
    """23 stays below the CNN branch."""
    assert [row["heads"] for row in affordable(RN2, 10, d=(32,), heads=(22, 23, 24))] == [23, 22]


def test_the_rule_allows_inception_v3_on_cifar_100_only_after_rounding():
    """d=36 with 8 heads is above its CNN by 1 240."""
    limit = params("cnn", IV3, 100)
    assert affordable(IV3, 100, d=(36,), heads=(8,)) == affordable(IV3, 100, limit + 1_239, (36,), (8,)) == []
    assert len(affordable(IV3, 100, limit + 1_240, (36,), (8,))) == 1


def test_flat_features_have_no_affordable_patches():
    with pytest.raises(RecipeError, match="linear"):
        affordable(FLAT, 10)


@pytest.mark.parametrize(("fan_in", "variance"), [("d", 2 / 32), ("heads*d", 2 / (12 * 32))])
def test_queries_keys_and_values_start_with_the_fan_in_that_is_asked_for(fan_in, variance):
    torch.manual_seed(0)
    branch = make_branch({"name": "sl_vit", "d": 32, "heads": 12, "fan_in": fan_in}, RN1, 10)
    weight = branch.layers[0].attention[1].qkv.weight.detach()
    assert float(weight.var()) == pytest.approx(variance, rel=0.05)
    plain = branch.layers[0].attention[1].out.weight.detach()
    assert float(plain.var()) == pytest.approx(2 / (12 * 32), rel=0.05)
