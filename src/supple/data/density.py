"""Density maps: each head is a small hill of volume 1, so that the map sums to their number."""

import torch
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
    """A map brought to another size: a cell gives each new one the share of it that lies there: the sum stays."""
    return shares(density.shape[0], height) @ density @ shares(density.shape[1], width).T


def shares(old: int, new: int) -> Tensor:
    """(new, old): how much of each of `old` cells lies in each of `new` ones of the same whole length."""
    edges = torch.arange(new + 1, dtype=torch.float64) * (old / new)
    cells = torch.arange(old, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], cells + 1) - torch.maximum(edges[:-1, None], cells)
    return overlap.clamp(min=0).float()
