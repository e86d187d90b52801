"""A picture of a crowd: where its heads are, and the sound of the place if there is one."""

import io
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from supple.data._io.paths import Source, read_bytes
from supple.errors import DataError

MOST = 50_000_000  # cells


def read_map(source: Source) -> Tensor:
    """The matrix `map` of a file, float32 (height, width); anything else is a DataError that names the file."""
    from scipy.io import loadmat, whosmat

    name = "a density map" if isinstance(source, bytes) else str(source)
    try:
        content = read_bytes(source)
        sizes = {name: shape for name, shape, _ in whosmat(io.BytesIO(content))}
        height, width = sizes["map"]
        if not 0 < height * width <= MOST:
            raise ValueError(f"its map has {height} x {width} cells")
        values = np.asarray(loadmat(io.BytesIO(content), variable_names=["map"])["map"], dtype=np.float32)
        if not np.isfinite(values).all() or values.min() < 0:
            raise ValueError("its map has cells that are negative or no numbers")
    except KeyError:
        raise DataError(
            f'{name} holds no matrix "map".', "Take the density maps of the data set as they are."
        ) from None
    except DataError:
        raise
    except Exception as problem:  # damaged files make scipy raise errors of many kinds
        reason = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise DataError(f"{name} is not a readable MATLAB file: {reason}.", "Copy or unpack it again.") from None
    return torch.from_numpy(np.ascontiguousarray(values))


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


@dataclass(frozen=True)
class CrowdSample:
    """Heads are given as points in the picture's own pixels, or by a stored density map."""

    picture: Source
    width: int  # of the picture the points lie in; of no account with a map
    height: int
    points: tuple[tuple[float, float], ...] = ()
    stored: Source | None = None  # a density map in a MATLAB file
    sound: Source | None = None

    def __str__(self) -> str:
        return str(self.picture)

    def read(self) -> bytes:
        """The bytes of the picture."""
        return read_bytes(self.picture)

    def density(self, height: int, width: int, sigma: float) -> Tensor:
        """The heads over a picture of this size, (height, width)."""
        if self.stored is not None:
            return resized_map(read_map(self.stored), height, width)
        scale = torch.tensor([width / max(1, self.width), height / max(1, self.height)])
        return density_map(torch.tensor(self.points).view(-1, 2) * scale, height, width, sigma)

    def heads(self, density: Tensor) -> float:
        """How many: the points, or the sum of the stored map."""
        return float(len(self.points)) if self.stored is None else float(density.double().sum())
