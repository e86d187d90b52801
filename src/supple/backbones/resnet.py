"""ResNet as it was first published (He et al., 2015), with the convolution biases of the Keras networks."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from supple.backbones.classifier import check_choice, check_common, check_counts, dense_classifier
from supple.errors import RecipeError

Stem = Literal["imagenet", "cifar"]


class ResNetV1(nn.Module):
    """ResNet of bottlenecks, version 1: the first 1x1 convolution of a layer halves the map, not the 3x3 behind it.

    The defaults are ResNet-152. Modules have torchvision's names, so its weights (of version 1.5, without biases) fit.

    Departure: SL-ViT, table 2, counts convolutions in execution order. Only these readings give its parameters and
    FLOPs, with the convolutions of shortcuts counted: the 12th is the first one of layer2, read behind its norm and
    ReLU; the 36th is the last one of layer2, read where that layer ends. `taps` keeps the paper's names for them.
    """

    taps: ClassVar[dict[str, str]] = {"conv12": "layer2.0.relu", "conv36": "layer2"}  # relu: its first call
    classifier: ClassVar[str] = "fc"

    def __init__(
        self,
        *,
        num_classes: int,  # classes to tell apart
        in_channels: int = 3,  # channels of the images
        layers: tuple[int, ...] = (3, 8, 36, 3),  # bottlenecks of the four layers
        width: int = 64,  # channels of the stem and of the first layer's bottlenecks; each layer doubles them
        stem: Stem = "imagenet",  # first layer: imagenet 7x7 of stride 2 and a max pool, cifar 3x3 of stride 1
        classifier: int = 0,  # hidden units of a classifier of two dense layers; 0: one linear layer
        dropout: float = 0.5,  # between these two layers
    ) -> None:
        super().__init__()
        check_common("resnet_v1", num_classes, in_channels, classifier, dropout)
        check_counts("resnet_v1", width=width)
        check_choice("resnet_v1", "stem", stem, Stem)
        if len(layers) != 4 or min(layers) < 1:
            cure = "Give four numbers of at least 1, such as [3, 8, 36, 3]."
            raise RecipeError(f"resnet_v1: layers is {list(layers)}.", cure)
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3)
        else:
            self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.layer1 = layer(width, width, layers[0], stride=1)
        self.layer2 = layer(4 * width, 2 * width, layers[1], stride=2)
        self.layer3 = layer(8 * width, 4 * width, layers[2], stride=2)
        self.layer4 = layer(16 * width, 8 * width, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = dense_classifier(32 * width, classifier, num_classes, dropout)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                module.bias = nn.Parameter(torch.zeros(module.out_channels))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def layer(cin: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    """Bottlenecks that squeeze to `width` channels and end in four times as many."""
    from torchvision.models.resnet import Bottleneck  # imported late: it takes seconds, and most runs do without

    shortcut = nn.Sequential(nn.Conv2d(cin, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))
    first = Bottleneck(cin, width, downsample=shortcut)
    first.conv1.stride = (stride, stride)
    return nn.Sequential(first, *(Bottleneck(4 * width, width) for _ in range(blocks - 1)))
