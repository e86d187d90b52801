"""Density maps: each head is a small hill of volume 1, so that the map sums to their number."""

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 15  # cells of the hill along each side (SL-ViT, section 4.1.4)
SIGMA = 4.0  # its deviation, in pixels


def density_map(points: Tensor, height: int, width: int, sigma: float = SIGMA, side: int = SIDE) -> Tensor:
    """Heads at (x, y) pixels, (heads, 2), to float32 (height, width): a Gaussian of side x side cells around each.

    The cell of a head is the one its point lies in. At the border the part of the hill that is inside the picture gets
    the whole volume. Departure: the published maps lose what is outside.
    """
    found = torch.zeros(height * width, dtype=torch.float64)
    if len(points) == 0:
        return found.view(height, width).float()
    reach = torch.arange(side) - side // 2
    column = (points[:, 0].long().clamp(0, width - 1)[:, None] + reach)[:, None, :]  # (heads, 1, side)
    row = (points[:, 1].long().clamp(0, height - 1)[:, None] + reach)[:, :, None]  # (heads, side, 1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    one = torch.exp(-(reach.double() ** 2) / (2 * sigma**2))
    hill = inside * (one[:, None] * one)  # (heads, side, side)
    hill = hill / hill.sum((1, 2), keepdim=True)
    cells = (row * width + column)[inside]
    return found.index_add_(0, cells, hill[inside]).view(height, width).float()


def resized_map(density: Tensor, height: int, width: int) -> Tensor:
    """A map of any size brought to another one with the same sum: means over areas, times how many cells each was."""
    scale = density.shape[0] * density.shape[1] / (height * width)
    return F.adaptive_avg_pool2d(density[None, None].double(), (height, width))[0, 0].mul_(scale).float()
