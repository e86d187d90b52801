"""A picture of a crowd: where its heads are, and the sound of the place if there is one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from supple.data.density import density_map, resized_map
from supple.data.matlab import read_map
from supple.data.source import Source, read_bytes


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
