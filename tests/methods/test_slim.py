"""Slimmable layers: narrow means the first channels, with norms of its own."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from supple.backbones import MobileNetV1
from supple.errors import PointError, RecipeError
from supple.methods.slim import Slim, SlimBatchNorm2d, SlimConv2d, SlimLinear, kept
from supple.point import FULL, Point

LAYOUT = {"channels": (32, 64, 64), "strides": (2, 1)}


def make(widths=(0.25, 0.5, 1.0), **settings) -> Slim:
    torch.manual_seed(0)
    return Slim(MobileNetV1(num_classes=4, **LAYOUT), widths=widths, **settings)


def test_kept_channels_by_hand():
    assert [kept(32, width, 8) for width in (0.25, 0.35, 0.4, 0.5, 0.99, 1)] == [8, 8, 16, 16, 32, 32]
    assert kept(32, 0.35, 1) == 11
    assert kept(4, 0.25, 8) == 4  # a layer narrower than the divisor stays whole
    assert kept(100, 0.01, 1) == 1


def test_a_slim_convolution_uses_the_first_filters_and_inputs():
    conv = nn.Conv2d(4, 8, 3, padding=1)
    x = torch.randn(2, 2, 5, 5)
    expected = nn.functional.conv2d(x, conv.weight[:4, :2], conv.bias[:4], padding=1)
    assert_close(SlimConv2d(conv, 1)(x, 0.5), expected)


def test_a_depthwise_convolution_keeps_as_many_filters_as_it_has_inputs():
    conv = nn.Conv2d(8, 8, 3, groups=8, bias=False)
    x = torch.randn(1, 3, 5, 5)
    assert_close(SlimConv2d(conv, 1)(x, 0.4), nn.functional.conv2d(x, conv.weight[:3], groups=3))


def test_the_last_linear_layer_keeps_all_its_outputs_and_others_do_not():
    linear = nn.Linear(8, 6)
    x = torch.randn(2, 4)
    assert_close(SlimLinear(linear, 1, last=True)(x, 0.5), x @ linear.weight[:, :4].T + linear.bias)
    assert_close(SlimLinear(linear, 1, last=False)(x, 0.5), x @ linear.weight[:3, :4].T + linear.bias[:3])


def test_training_one_width_leaves_the_norms_of_the_others_alone():
    model = make().train()
    before = {name: value.clone() for name, value in model.state_dict().items() if "norms" in name}
    model(torch.randn(8, 3, 16, 16), Point(width=0.5))
    changed = {
        name for name, value in model.state_dict().items() if name in before and not torch.equal(value, before[name])
    }
    assert changed
    assert all("norms.0_5." in name for name in changed)


def test_a_width_equals_the_stand_alone_network_with_the_first_channels():
    """slimmable width w == stand-alone net with the first channels."""
    model = make().eval()
    alone = MobileNetV1(num_classes=4, multiplier=0.5, **LAYOUT).eval()
    with torch.no_grad():
        for slim, layer in zip(model.layers, alone):
            if isinstance(layer, nn.Conv2d):
                layer.weight.copy_(slim.conv.weight[: layer.out_channels, : layer.weight.shape[1]])
            elif isinstance(layer, nn.BatchNorm2d):
                layer.load_state_dict(slim.at(0.5).state_dict())
            elif isinstance(layer, nn.Linear):
                layer.weight.copy_(slim.linear.weight[:, : layer.in_features])
                layer.bias.copy_(slim.linear.bias)
    x = torch.randn(2, 3, 16, 16)
    assert_close(model(x, Point(width=0.5)), alone(x))


def test_settling_takes_affine_values_from_the_next_larger_width_and_statistics_from_data():
    model = make(divisor=1).eval()
    norms = [layer for layer in model.layers if isinstance(layer, SlimBatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.at(0.5).weight)
        nn.init.uniform_(norm.at(1.0).weight)
    batches = [(torch.randn(16, 3, 16, 16) * 2 + 1, None) for _ in range(3)]
    model.settle(batches, [Point(width=0.4)])
    first = norms[0].at(0.4)
    assert first.num_features == 13  # 32 x 0.4, rounded
    assert_close(first.weight, norms[0].at(0.5).weight[:13])
    # The mean over the batches of what the first convolution gives, by hand.
    outputs = [nn.functional.conv2d(x, model.layers[0].conv.weight[:13], padding=1) for x, _ in batches]
    assert_close(
        first.running_mean, torch.stack([out.mean((0, 2, 3)) for out in outputs]).mean(0), atol=1e-5, rtol=1e-4
    )
    assert not model.training
    assert first.momentum == 0.1
    assert model.settled == (Point(width=0.4),)
    assert model(batches[0][0], Point(width=0.4)).shape == (16, 4)


def test_settling_changes_no_trained_width():
    model = make().eval()
    x = torch.randn(4, 3, 16, 16)
    before = [model(x, point) for point in model.points]
    model.settle([(x, None)], [Point(width=0.75), Point(width=0.5)])
    assert all(torch.equal(model(x, point), old) for point, old in zip(model.points, before))
    assert model.settled == (Point(width=0.75),)


def test_a_width_that_is_neither_trained_nor_settled_is_refused_with_the_way_to_settle_it():
    with pytest.raises(PointError, match=r"trained at widths 0.25, 0.5, 1") as caught:
        make()(torch.randn(1, 3, 16, 16), Point(width=0.3))
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


def test_networks_that_cannot_be_narrowed_are_refused():
    with pytest.raises(RecipeError, match="not one chain"):
        Slim(nn.Linear(1, 1))
    with pytest.raises(RecipeError, match="LayerNorm"):
        Slim(nn.Sequential(nn.LayerNorm(3)))
    with pytest.raises(RecipeError, match="depthwise"):
        Slim(nn.Sequential(nn.Conv2d(4, 4, 1, groups=2)))
    with pytest.raises(RecipeError, match="Pool to 1x1"):
        Slim(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 9, 2)))
    with pytest.raises(RecipeError, match="weights and statistics"):
        Slim(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)))


def test_a_model_made_in_inference_mode_runs_narrow():
    with torch.inference_mode():
        model = make().eval()
        x = torch.randn(1, 3, 16, 16)
        assert_close(model(x, Point(width=0.5)), model.extract(Point(width=0.5))(x))


def test_narrow_weights_that_were_copied_for_speed_follow_the_training():
    model = make().eval()
    x = torch.randn(2, 3, 16, 16)
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
