"""Inception-v3: branches of several kernel sizes side by side, joined by concatenation (Szegedy et al., 2015)."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from supple.backbones.classifier import check_common, check_size, dense_classifier

SMALLEST = 75  # pixels of a side that leave something to pool at the end


class InceptionV3(nn.Module):
    """torchvision's Inception-v3 without auxiliary head, change of the input and dropout before the classifier.

    Modules have torchvision's names. The paper's images have 224 pixels a side, not the usual 299.

    Departure: SL-ViT, table 2, puts its branches after the first and second filter concatenation. Its figures are
    those of the second and third (288 channels each; the first has 256). `taps` says so.
    """

    taps: ClassVar[dict[str, str]] = {"concat1": "Mixed_5c", "concat2": "Mixed_5d"}
    classifier: ClassVar[str] = "fc"

    def __init__(
        self,
        *,
        num_classes: int,  # classes to tell apart
        in_channels: int = 3,  # channels of the images
        input_shape: tuple[int, ...] = (),  # of one image: too small ones are refused
        classifier: int = 0,  # hidden units of a classifier of two dense layers; 0: one linear layer
        dropout: float = 0.5,  # between these two layers
    ) -> None:
        from torchvision.models.inception import Inception3  # imported late: it takes seconds

        super().__init__()
        check_common("inception_v3", num_classes, in_channels, classifier, dropout)
        check_size("inception_v3", input_shape, SMALLEST)
        parts = Inception3(num_classes, aux_logits=False, transform_input=False, init_weights=False)
        if in_channels != 3:
            parts.Conv2d_1a_3x3.conv = nn.Conv2d(in_channels, 32, 3, stride=2, bias=False)
        for name, part in parts.named_children():
            if name not in ("dropout", "fc"):
                self.add_module(name, part)
        self.fc = dense_classifier(parts.fc.in_features, classifier, num_classes, dropout)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        for name, part in self.named_children():
            if name != self.classifier:
                x = part(x)
        logits: Tensor = self.fc(torch.flatten(x, 1))
        return logits
