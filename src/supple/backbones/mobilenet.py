"""MobileNet-V1: a stem and thirteen depthwise separable convolutions (Howard et al., 2017)."""

import math
from typing import Literal

from torch import nn

from supple.backbones.classifier import check_choice, check_counts
from supple.errors import RecipeError

Stem = Literal["cifar", "imagenet"]


def scaled(channels: int, multiplier: float) -> int:
    """Channels at a width multiplier: rounded, halves up, never below one."""
    return max(1, math.floor(channels * multiplier + 0.5))


def conv_bn(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(cin, cout, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(cout), nn.ReLU6(inplace=True)]


class MobileNetV1(nn.Sequential):
    """MobileNet-V1 as one flat nn.Sequential of leaf layers.

    Departure: the "cifar" stem has stride 1, so images of 32 pixels end in a map of 2x2; pointwise convolutions have no
    bias, since the batch norm behind them has one.

    A slice of it is not a MobileNetV1: take `nn.Sequential(*list(model)[a:b])`, not `model[a:b]`.
    """

    def __init__(
        self,
        *,
        num_classes: int,  # classes to tell apart
        in_channels: int = 3,  # channels of the images
        multiplier: float = 1.0,  # share of the channels kept everywhere
        stem: Stem = "cifar",  # stride of the first convolution: cifar 1, imagenet 2
        channels: tuple[int, ...] = (32, 64, 128, 128, 256, 256, *(512,) * 6, 1024, 1024),  # stem, then each layer
        strides: tuple[int, ...] = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1),  # of each separable layer
    ) -> None:
        check_counts(
            "mobilenet_v1", num_classes=num_classes, in_channels=in_channels, channels=channels, strides=strides
        )
        check_choice("mobilenet_v1", "stem", stem, Stem)
        if not 0 < multiplier < math.inf:
            cure = "Give a number above 0, such as 0.5 or 1.0."
            raise RecipeError(f"mobilenet_v1: multiplier is {multiplier}.", cure)
        if len(channels) != len(strides) + 1:
            raise RecipeError(
                f"mobilenet_v1: {len(channels)} channels and {len(strides)} strides do not match.",
                "Give one number of channels for the stem and one for each stride.",
            )
        widths = [scaled(c, multiplier) for c in channels]
        layers = conv_bn(in_channels, widths[0], 3, stride=1 if stem == "cifar" else 2)
        for cin, cout, stride in zip(widths, widths[1:], strides):
            layers += conv_bn(cin, cin, 3, stride, groups=cin)
            layers += conv_bn(cin, cout, 1)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], num_classes))
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)
