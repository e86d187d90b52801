"""From a picture of any size to what a detector sees: brought to size, with mean and deviation taken out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supple.data._io.decode import MAX_PIXELS, decode
from supple.data._io.paths import Source
from supple.data.detection.batch import DetectionBatch
from supple.data.preprocess import MAX_SIZE, Preparation, stretched
from supple.errors import DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, with which published Swins were trained


@dataclass(frozen=True)
class DetectionPrepare(Preparation):
    """How pictures are prepared for a detector; saved with a model, so that serving does what evaluation did."""

    shorter: int  # pixels of the shorter side
    longest: int  # pixels of the longer side, at most
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if not 1 <= self.shorter <= self.longest <= MAX_SIZE:
            raise DataError(
                f"pictures with a shorter side of {self.shorter} and a longer one of at most {self.longest} pixels.",
                f"Give data.sizes and data.longest from 1 to {MAX_SIZE}; the longest is not less than any size.",
            )
        self._check(channels=3)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a picture of 640 x 480, the usual one."""
        return (3, *fitted(480, 640, self.shorter, self.longest))

    def open(self, source: Source) -> np.ndarray[Any, Any]:
        """Read one file to uint8 RGB (height, width, 3)."""
        return decode(source, self.max_pixels)

    def resized(self, picture: np.ndarray[Any, Any], shorter: int | None = None) -> Tensor:
        """A picture brought to size: float32 (3, height, width)."""
        height, width = picture.shape[:2]
        pixels = stretched(picture, *fitted(height, width, shorter or self.shorter, self.longest))
        return self.normalise(torch.from_numpy(pixels))

    def arrays(self, source: Source) -> tuple[DetectionBatch]:
        """`input`: a detector takes pictures of many sizes, and runs in PyTorch alone."""
        return (self.input(source),)

    def input(self, source: Source) -> DetectionBatch:
        """What the network sees of one file: a batch of one."""
        picture = self.open(source)
        image = self.resized(picture)
        return DetectionBatch(image[None], torch.tensor([image.shape[-2:]]), torch.tensor([picture.shape[:2]]))

    def facts(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std}


def fitted(height: int, width: int, shorter: int, longest: int) -> tuple[int, int]:
    """The size of a picture whose shorter side becomes `shorter`, unless the longer one would become too long."""
    scale = min(shorter / min(height, width), longest / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))
