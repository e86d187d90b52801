"""Folding norms away changes nothing but the time."""

import torch
from torch import nn
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
