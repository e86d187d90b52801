"""DenseNet: every layer reads all the layers before it in its block (Huang et al., 2017)."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from supple.backbones.classifier import check_common, check_counts, check_size, dense_classifier
from supple.errors import RecipeError


class DenseNet(nn.Module):
    """torchvision's DenseNet, the names of its modules included, save the classifier. The defaults are DenseNet-201.

    Departure: SL-ViT, table 2, puts a branch after each of the first two transitions. Its figures are those of the
    first transition as a whole, but of the second before its pool: both maps are 28x28. `taps` says so.
    """

    taps: ClassVar[dict[str, str]] = {
        "transition1": "features.transition1",
        "transition2": "features.transition2.conv",
    }
    classifier: ClassVar[str] = "fc"

    def __init__(
        self,
        *,
        num_classes: int,  # classes to tell apart
        in_channels: int = 3,  # channels of the images
        input_shape: tuple[int, ...] = (),  # of one image: too small ones are refused
        growth_rate: int = 32,  # channels a layer adds
        blocks: tuple[int, ...] = (6, 12, 48, 32),  # layers of each block
        init_features: int = 64,  # channels of the stem
        classifier: int = 0,  # hidden units of a classifier of two dense layers; 0: one linear layer
        dropout: float = 0.5,  # between these two layers
    ) -> None:
        from torchvision.models.densenet import DenseNet as Parts  # imported late: it takes seconds

        super().__init__()
        check_common("densenet", num_classes, in_channels, classifier, dropout)
        check_counts("densenet", growth_rate=growth_rate, init_features=init_features)
        if not blocks or min(blocks) < 1:
            cure = "Give one number of layers per block, such as [6, 12, 48, 32]."
            raise RecipeError(f"densenet: blocks is {list(blocks)}.", cure)
        # The stem halves twice, rounding up; every transition halves, rounding down, and must leave something.
        check_size("densenet", input_shape, 4 * (2 ** (len(blocks) - 1) - 1) + 1)
        parts = Parts(growth_rate, blocks, init_features, num_classes=num_classes)
        self.features = parts.features
        self.fc = dense_classifier(parts.classifier.in_features, classifier, num_classes, dropout)
        if in_channels != 3:
            self.features.conv0 = nn.Conv2d(in_channels, init_features, 7, stride=2, padding=3, bias=False)
            nn.init.kaiming_normal_(self.features.conv0.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.features(x), inplace=True)
        logits: Tensor = self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
        return logits
