"""A convolution that listens: its output is scaled and shifted by what was heard."""

import torch.nn.functional as F
from torch import Tensor, nn


def initialise(module: nn.Module) -> None:
    """He initialisation of a convolution or a linear layer (SL-ViT, section 4.3); others stay as they are."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        assert module.bias is not None
        nn.init.zeros_(module.bias)


class Fusion(nn.Module):
    """Convolution, batch norm without scale and shift, gamma times it plus beta, ReLU (SL-ViT, section 2.4).

    gamma and beta, one of each per channel, are linear in the vector `heard`, (batch, sound). With `sound` 0 nothing is
    heard, and the norm has a scale and shift of its own.

    Departure: fresh weights give a gamma near 1 and a beta near 0, so that a block starts as one that does not listen.
    """

    def __init__(
        self, channels: int, filters: int, sound: int, kernel: int = 3, padding: int = 2, dilation: int = 2
    ) -> None:
        super().__init__()
        conv = nn.Conv2d(channels, filters, kernel, padding=padding, dilation=dilation)
        self.conv = nn.Sequential(conv, nn.BatchNorm2d(filters, affine=sound == 0))
        self.heard = nn.Linear(sound, 2 * filters) if sound else None
        initialise(conv)
        if self.heard is not None:
            nn.init.normal_(self.heard.weight, std=0.01)
            gamma, beta = self.heard.bias.data.chunk(2)
            nn.init.ones_(gamma)
            nn.init.zeros_(beta)

    def forward(self, x: Tensor, heard: Tensor | None = None) -> Tensor:
        x = self.conv(x)
        if self.heard is not None:
            gamma, beta = self.heard(heard)[:, :, None, None].chunk(2, 1)
            x = x * gamma + beta
        return F.relu(x)
