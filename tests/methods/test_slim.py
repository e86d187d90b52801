"""Slimmable networks: narrow means the first channels, with norms of its own."""

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.testing import assert_close

import supple
from supple.backbones import MobileNetV1
from supple.errors import PointError, RecipeError
from supple.methods.slim import Size, Slim, kept, leading, sliced
from supple.methods.static import Static
from supple.point import FULL, Point

LAYOUT = {"channels": (32, 64, 64), "strides": (2, 1)}
SHAPE = (3, 16, 16)


def make(widths=(0.25, 0.5, 1.0), **settings) -> Slim:
    torch.manual_seed(0)
    return Slim(MobileNetV1(num_classes=4, **LAYOUT), widths=widths, input_shape=SHAPE, **settings)


def norms_of(model: Slim, width: float) -> list[nn.BatchNorm2d]:
    return [part for part in model.view(width).modules() if isinstance(part, nn.BatchNorm2d)]


def test_kept_channels_by_hand():
    assert [kept(32, width, 8) for width in (0.25, 0.35, 0.4, 0.5, 0.99, 1)] == [8, 8, 16, 16, 32, 32]
    assert kept(32, 0.35, 1) == 11
    assert kept(4, 0.25, 8) == 4  # a layer narrower than the divisor stays whole
    assert kept(100, 0.01, 1) == 1


# --- layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_narrow", [sliced, leading])
def test_a_narrow_convolution_uses_the_first_filters_and_inputs(make_narrow):
    conv = nn.Conv2d(4, 8, 3, padding=1)
    x = torch.randn(2, 2, 5, 5)
    expected = nn.functional.conv2d(x, conv.weight[:4, :2], conv.bias[:4], padding=1)
    assert_close(make_narrow(conv, Size(4, 2))(x), expected)


@pytest.mark.parametrize("make_narrow", [sliced, leading])
def test_a_narrow_grouped_convolution_keeps_the_first_groups(make_narrow):
    conv = nn.Conv2d(8, 16, 3, groups=4, bias=False)  # groups of 2 inputs and 4 outputs
    x = torch.randn(1, 4, 5, 5)
    assert_close(make_narrow(conv, Size(8, 4, 2))(x), nn.functional.conv2d(x, conv.weight[:8], groups=2))


@pytest.mark.parametrize("make_narrow", [sliced, leading])
def test_a_narrow_linear_layer_uses_the_first_rows_and_columns(make_narrow):
    linear = nn.Linear(8, 6)
    x = torch.randn(2, 4)
    assert_close(make_narrow(linear, Size(3, 4))(x), x @ linear.weight[:3, :4].T + linear.bias[:3])


def test_a_narrow_layer_of_another_kind_computes_as_its_kind_does():
    same = timm.layers.Conv2dSame(4, 4, 3, stride=2)
    x = torch.randn(1, 2, 7, 7)
    padded = nn.functional.pad(x, (1, 1, 1, 1))  # 7 pixels at stride 2 give 4 cells: 2 zeros a side of 9
    expected = nn.functional.conv2d(padded, same.weight[:2, :2], same.bias[:2], stride=2)
    assert_close(sliced(same, Size(2, 2))(x), expected)


# --- one chain --------------------------------------------------------------------------------------------------------


def test_the_classifier_keeps_all_its_outputs():
    model = make()
    assert model(torch.randn(2, *SHAPE), Point(width=0.25)).shape == (2, 4)


def test_training_one_width_leaves_the_norms_of_the_others_alone():
    model = make().train()
    before = {name: value.clone() for name, value in model.state_dict().items() if "running" in name}
    model(torch.randn(8, *SHAPE), Point(width=0.5))
    changed = {
        name for name, value in model.state_dict().items() if name in before and not torch.equal(value, before[name])
    }
    assert changed
    assert all(name.startswith("norms.0_5.") for name in changed)


def test_a_width_equals_the_stand_alone_network_with_the_first_channels():
    model = make().eval()
    alone = MobileNetV1(num_classes=4, multiplier=0.5, **LAYOUT).eval()
    norms = iter(norms_of(model, 0.5))
    with torch.no_grad():
        for whole, layer in zip(model.backbone, alone):
            if isinstance(layer, nn.Conv2d):
                layer.weight.copy_(whole.weight[: layer.out_channels, : layer.weight.shape[1]])
            elif isinstance(layer, nn.BatchNorm2d):
                layer.load_state_dict(next(norms).state_dict())
            elif isinstance(layer, nn.Linear):
                layer.weight.copy_(whole.weight[:, : layer.in_features])
                layer.bias.copy_(whole.bias)
    x = torch.randn(2, *SHAPE)
    assert_close(model(x, Point(width=0.5)), alone(x))


def test_a_linear_layer_may_read_a_flattened_map():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 9, 2))  # maps of 3 x 3
    model, x = Slim(net, widths=(0.5, 1.0), divisor=1, input_shape=(3, 5, 5)), torch.randn(2, 3, 5, 5)
    maps = nn.functional.conv2d(x, net[0].weight[:4], net[0].bias[:4])
    assert_close(model(x, Point(width=0.5)), maps.flatten(1) @ net[2].weight[:, : 4 * 9].T + net[2].bias)


# --- ordinary networks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["resnet18", "mobilenetv2_050", "tf_efficientnet_lite0", "regnetx_002", "regnety_002", "resnext26ts"]
    + [f"torchvision.{name}" for name in ("resnet18", "mobilenet_v2")],
)
def test_ordinary_networks_run_narrow_as_their_extracts_do(name):
    torch.manual_seed(0)
    facts = {"num_classes": 4, "input_shape": (3, 32, 32)}
    if name.startswith("torchvision."):
        network = torchvision.models.get_model(name.partition(".")[2], weights=None, num_classes=4)
        model = supple.slim(network, widths=(0.5, 1.0), input_shape=facts["input_shape"])
    else:
        model = supple.slim(name, widths=(0.5, 1.0), **facts, pretrained=False)
    x = torch.randn(4, 3, 32, 32)
    for output in model.train()(x, model.points):
        output.logits.sum().backward()
    model.eval()
    with torch.inference_mode():
        assert torch.equal(model(x), model.backbone(x))  # full: the network as it is
        for point in model.points:
            assert_close(model.extract(point)(x), model(x, point))
        assert not torch.allclose(model(x, "width=0.5"), model(x))
    narrow = sum(parameter.numel() for parameter in model.extract("width=0.5").parameters())
    assert narrow < 0.5 * sum(parameter.numel() for parameter in model.backbone.parameters())


def test_a_narrow_resnet_by_hand():
    """One residual block: a sum of two maps of as many channels, whichever way they came."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv = nn.Conv2d(3, 8, 1, bias=False), nn.Conv2d(8, 8, 1, bias=False)
            self.top = nn.Linear(8, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            return self.top((x + self.conv(x)).mean((2, 3)))

    net = Residual()
    model, x = Slim(net, widths=(0.5, 1.0), divisor=1, input_shape=(3, 4, 4)), torch.randn(2, 3, 4, 4)
    seen = nn.functional.conv2d(x, net.stem.weight[:4])
    seen = seen + nn.functional.conv2d(seen, net.conv.weight[:4, :4])
    assert_close(model(x, "width=0.5"), seen.mean((2, 3)) @ net.top.weight[:, :4].T)


def test_norms_of_narrow_widths_begin_with_the_values_that_the_network_starts_from():
    model = make()
    for norm in (part for part in model.backbone.modules() if isinstance(part, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight)
        norm.running_var.uniform_(1, 2)
    model.start([name for name in model.state_dict() if name.startswith("norms.0_5.")])
    for own, narrow, untouched in zip(norms_of(model, 1.0), norms_of(model, 0.5), norms_of(model, 0.25)):
        assert_close(narrow.weight, own.weight[: narrow.num_features])
        assert_close(narrow.running_var, own.running_var[: narrow.num_features])
        assert torch.equal(untouched.weight, torch.ones_like(untouched.weight))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.Conv2d(8, 2, 1)), "1, a GroupNorm"),
        (nn.Sequential(nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 1, groups=3), nn.Conv2d(12, 2, 1)), "1, a Conv2d"),
        (nn.Sequential(nn.Flatten()), "no layer that it knows"),
    ],
)
def test_what_cannot_be_narrowed_is_named(network, said):
    with pytest.raises(RecipeError, match=said):
        Slim(network, widths=(0.5, 1.0), divisor=1, input_shape=(3, 4, 4))


@pytest.mark.parametrize(("name", "said"), [("densenet121", "concatenation"), ("convnext_atto", "LayerNorm2d")])
def test_networks_that_cannot_be_narrowed_say_what_is_in_the_way(name, said):
    with pytest.raises(RecipeError, match=said):
        supple.slim(name, widths=(0.5, 1.0), num_classes=4, input_shape=(3, 32, 32), pretrained=False)


# --- settling ---------------------------------------------------------------------------------------------------------


def test_settling_takes_affine_values_from_the_next_larger_width_and_statistics_from_data():
    model = make(divisor=1).eval()
    for norm in (*norms_of(model, 0.5), *norms_of(model, 1.0)):
        nn.init.uniform_(norm.weight)
    batches = [(torch.randn(16, *SHAPE) * 2 + 1, None) for _ in range(3)]
    model.settle(batches, [Point(width=0.4)])
    first = norms_of(model, 0.4)[0]
    assert first.num_features == 13  # 32 x 0.4, rounded
    assert_close(first.weight, norms_of(model, 0.5)[0].weight[:13])
    # The mean over the batches of what the first convolution gives, by hand.
    outputs = [nn.functional.conv2d(x, model.backbone[0].weight[:13], padding=1) for x, _ in batches]
    assert_close(
        first.running_mean, torch.stack([out.mean((0, 2, 3)) for out in outputs]).mean(0), atol=1e-5, rtol=1e-4
    )
    assert not model.training
    assert first.momentum == 0.1
    assert model.settled == (Point(width=0.4),)
    assert model(batches[0][0], Point(width=0.4)).shape == (16, 4)


def test_settling_changes_no_trained_width():
    model = make().eval()
    x = torch.randn(4, *SHAPE)
    before = [model(x, point) for point in model.points]
    model.settle([(x, None)], [Point(width=0.75), Point(width=0.5)])
    assert all(torch.equal(model(x, point), old) for point, old in zip(model.points, before))
    assert model.settled == (Point(width=0.75),)


def test_a_width_that_is_neither_trained_nor_settled_is_refused_with_the_way_to_settle_it():
    with pytest.raises(PointError, match=r"trained at widths 0.25, 0.5, 1") as caught:
        make()(torch.randn(1, *SHAPE), Point(width=0.3))
    assert "--settle width=0.3" in caught.value.cure
    with pytest.raises(PointError) as caught:
        make().settle([], [Point(width=0.1)])  # below the smallest trained width
    assert "only widths from 0.25 can be settled" in caught.value.cure


def test_extract_has_no_more_parameters_than_the_width_needs():
    model = make()
    narrow = sum(parameter.numel() for parameter in model.extract(Point(width=0.5)).parameters())
    alone = sum(parameter.numel() for parameter in MobileNetV1(num_classes=4, multiplier=0.5, **LAYOUT).parameters())
    assert narrow == alone
    assert model.extract(FULL)[0].weight.shape[0] == 32


@pytest.mark.parametrize("widths", [(), (0.5,), (1.0, 0.5), (0.5, 0.5, 1.0), (0.0, 1.0)])
def test_widths_that_do_not_rise_to_one_are_refused(widths):
    with pytest.raises(RecipeError, match="method.widths"):
        make(widths=widths)


def test_widths_that_differ_in_nothing_are_refused():
    """Of 32 channels, in eights, 0.1 and 0.12 both keep 8, of 64 too; of 8, every width keeps all."""
    with pytest.raises(RecipeError, match=r"0\.1 and 0\.12 keep the same channels") as caught:
        make(widths=(0.1, 0.12, 0.5, 1.0))
    assert "divisor" in caught.value.cure
    with pytest.raises(RecipeError, match=r"0\.5 and 1 keep the same channels"):
        Slim(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)), widths=(0.5, 1.0), input_shape=(3, 4, 4))


def test_a_width_that_leaves_a_layer_empty_is_refused_by_its_name():
    with pytest.raises(RecipeError, match=r"0, a Conv2d: width 0\.01 leaves none of its 32 channels"):
        make(widths=(0.01, 1.0))


# --- shared weights ---------------------------------------------------------------------------------------------------


def test_a_static_run_can_be_started_from():
    """Both have the same names for the same weights."""
    static, model = Static(MobileNetV1(num_classes=4, **LAYOUT)).state_dict(), make().state_dict()
    assert set(static) <= set(model)
    assert all(name.startswith("norms.") for name in set(model) - set(static))


def test_a_model_made_in_inference_mode_runs_narrow():
    with torch.inference_mode():
        model = make().eval()
        x = torch.randn(1, *SHAPE)
        assert_close(model(x, Point(width=0.5)), model.extract(Point(width=0.5))(x))


def test_narrow_weights_that_were_copied_for_speed_follow_the_training():
    model = make().eval()
    x = torch.randn(2, *SHAPE)
    with torch.inference_mode():
        before = model(x, Point(width=0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x, Point(width=0.5)).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        after = model(x, Point(width=0.5))
    assert not torch.allclose(before, after)
    assert_close(after, model.extract(Point(width=0.5))(x))
    model.requires_grad_(False)
    x.requires_grad_()
    model(x, Point(width=0.5)).sum().backward()  # gradients reach the input through the copies
    assert x.grad.abs().sum() > 0
