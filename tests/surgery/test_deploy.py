"""Folding norms away changes nothing but the time."""

import copy

import pytest
import timm
import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.testing import assert_close

from supple.surgery.deploy import Deployed, fold_norms, prepare


def net() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), inner, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.train()(torch.randn(64, 3, 8, 8) * 3 + 1)
    return model.eval()


def test_folding_removes_every_norm_behind_a_convolution_and_keeps_the_outputs():
    x = torch.randn(2, 3, 8, 8)
    plain = net()
    expected = plain(x)
    folded = fold_norms(plain)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    assert_close(folded(x), expected, atol=1e-5, rtol=1e-5)


def test_a_norm_that_follows_no_convolution_stays():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)).eval()
    assert isinstance(fold_norms(model)[0], nn.BatchNorm2d)


def test_preparing_works_on_a_copy_and_freezes_it():
    plain = net()
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    ready = prepare(plain, (3, 8, 8))
    assert not any(parameter.requires_grad for parameter in ready.parameters())
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    x = torch.randn(2, 3, 8, 8)
    assert_close(ready(x), plain(x), atol=1e-5, rtol=1e-5)


def test_the_input_may_come_in_any_memory_format():
    plain = net()
    x = torch.randn(2, 3, 8, 8)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        ready = Deployed(net(), memory_format)
        assert_close(ready(x), plain(x))
        assert_close(ready(x.contiguous(memory_format=torch.channels_last)), plain(x))


SHAPE = (3, 32, 32)


def filled(network: nn.Module) -> nn.Module:
    """With statistics that are neither 0 nor 1."""
    torch.manual_seed(0)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
            nn.init.normal_(part.bias, std=0.1)
    return network.eval()


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_035", "tf_efficientnet_lite0", "regnetx_002"])
@torch.inference_mode()
def test_ordinary_networks_lose_all_their_norms(name):
    network = filled(timm.create_model(name, num_classes=4))
    x = torch.randn(2, *SHAPE)
    expected = network(x)
    folded = fold_norms(copy.deepcopy(network), SHAPE)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    assert_close(folded(x), expected, atol=1e-4, rtol=1e-4)


class Both(nn.Module):
    """The output of a convolution goes to a norm, and past it; a norm behind a sum; a convolution that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.second, self.of_sum = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.twice, self.after = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        x = self.of_sum(self.second(self.norm(y)) + y)
        return self.after(self.twice(self.twice(x)))


@torch.inference_mode()
def test_a_norm_stays_where_something_else_reads_what_it_reads():
    network, x = filled(Both()), torch.randn(2, *SHAPE)
    folded = fold_norms(copy.deepcopy(network), SHAPE)
    assert_close(folded(x), network(x))
    assert all(isinstance(part, nn.BatchNorm2d) for part in (folded.norm, folded.of_sum, folded.after))


@torch.inference_mode()
def test_the_activation_of_a_folded_norm_stays():
    network, x = filled(nn.Sequential(nn.Conv2d(3, 4, 1), BatchNormAct2d(4))), torch.randn(2, *SHAPE)
    expected = network(x)
    folded = fold_norms(network)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    assert_close(folded(x), expected, atol=1e-5, rtol=1e-5)
