"""The operations as the SL-ViT paper counts them, by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.backbones import BACKBONES
from supple.backbones.classifier import swap
from supple.methods.branches import SelfAttention
from supple.paper_count import paper_flops


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(*inputs)


MAP = torch.empty(2, 3, 8, 8, device="meta")
ROWS = torch.empty(2, 6, 4, device="meta")


@pytest.mark.parametrize(
    ("module", "x", "count"),
    [
        (nn.Conv2d(3, 5, 3, bias=False), MAP, 2 * 5 * 6 * 6 * 2 * 27),
        (nn.Conv2d(3, 5, 3), MAP, 2 * 5 * 6 * 6 * (2 * 27 + 1)),
        (nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3), MAP, 2 * 6 * 4 * 4 * (2 * 9 + 1)),
        (nn.Linear(4, 7), ROWS, 2 * 6 * 7 * (2 * 4 + 1)),
        (nn.Linear(4, 7), ROWS[:, 0], 2 * 7 * (2 * 4 + 1)),
        (nn.Linear(4, 7, bias=False), ROWS.transpose(0, 1), 2 * 6 * 7 * 2 * 4),
        (nn.MaxPool2d(2), MAP, 2 * 3 * 4 * 4 * 4),
        (nn.MaxPool2d(3, stride=2, padding=1), MAP, 2 * 3 * 4 * 4 * 9),
        (nn.AvgPool2d((2, 4)), MAP, 2 * 3 * 4 * 2 * 8),
        (Call(lambda x: F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)), MAP, 2 * 3 * 8 * 8 * 9),
        (nn.AdaptiveAvgPool2d(1), MAP, 2 * 3 * 64),
        (nn.AdaptiveAvgPool2d((4, 8)), MAP, 2 * 3 * 4 * 8 * 2),
        (nn.AdaptiveAvgPool2d((3, 1)), MAP, 2 * 3 * (3 + 4 + 3) * 8),  # rows 0-2, 2-5, 5-7
        (Call(lambda x: x.mean((2, 3))), MAP, 2 * 3 * 64),
        (nn.Softmax(1), ROWS, 5 * 2 * 6 * 4),
        (Call(lambda x: x.softmax(-1)), ROWS, 5 * 2 * 6 * 4),
        (Call(lambda x: x * x), ROWS, 2 * 6 * 4),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)
def test_what_is_counted(module, x, count):
    assert paper_flops(module.to("meta"), x) == count


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.BatchNorm1d(6), ROWS),
        (nn.LayerNorm(4), ROWS),
        (nn.ReLU(), MAP),
        (nn.GELU(), MAP),
        (nn.Flatten(), MAP),
        (Call(lambda x: x + x), MAP),
        (Call(lambda x: torch.cat((x, 0.5 * x))), MAP),
    ],
    ids=str,
)
def test_what_is_not_counted(module, x):
    assert paper_flops(module.to("meta").eval(), x) == 0


@pytest.mark.parametrize(("heads", "around"), [(1, False), (3, False), (3, True)])
def test_of_attention_only_the_softmax_counts(heads, around):
    layers = nn.Sequential(SelfAttention(4, heads), *([nn.Linear(4, 7)] if around else []))
    expected = 5 * 2 * heads * 6 * 6 + (2 * 6 * 7 * (2 * 4 + 1) if around else 0)
    assert paper_flops(layers.to("meta"), ROWS) == expected


def test_counting_leaves_nothing_behind_even_after_an_error():
    attention = SelfAttention(4, 2).to("meta")
    with pytest.raises(RuntimeError):
        paper_flops(attention, torch.empty(2, 6, 5, device="meta"))
    assert paper_flops(attention, ROWS) == 5 * 2 * 2 * 6 * 6
    assert not attention._forward_hooks
    assert not attention._forward_pre_hooks


@pytest.mark.parametrize(("name", "published"), [("resnet_v1", 22.5847), ("densenet", 8.5816), ("inception_v3", 5.684)])
def test_the_backbones_without_their_classifier_have_the_operations_of_the_arithmetic(name, published):
    with torch.device("meta"):
        net = BACKBONES[name](num_classes=10, classifier=256).eval()
        swap(net, net.classifier, nn.Identity())
        assert paper_flops(net, torch.empty(1, 3, 224, 224)) / 1e9 == pytest.approx(published, abs=5e-5)
