"""From a picture of any size to what a detector sees: brought to size, with mean and deviation taken out."""

import io
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supple.data._io.decode import MAX_PIXELS, SUFFIXES, decode
from supple.data._io.tree import Source, content
from supple.data.detection.batch import DetectionBatch
from supple.data.preprocess import MAX_SIZE, numbers
from supple.errors import DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, with which published Swins were trained


@dataclass(frozen=True)
class DetectionPrepare:
    """How pictures are prepared for a detector; saved with a model, so that serving does what evaluation did."""

    shorter: int  # pixels of the shorter side
    longest: int  # pixels of the longer side, at most
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    max_pixels: int = MAX_PIXELS

    kind = "image"
    endings = SUFFIXES

    def __post_init__(self) -> None:
        if not 1 <= self.shorter <= self.longest <= MAX_SIZE:
            raise DataError(
                f"pictures with a shorter side of {self.shorter} and a longer one of at most {self.longest} pixels.",
                f"Give data.sizes and data.longest from 1 to {MAX_SIZE}; the longest is not less than any size.",
            )
        if len(self.mean) != 3 or len(self.std) != 3 or not np.isfinite([*self.mean, *self.std]).all():
            raise DataError(
                f"mean {self.mean} and std {self.std} are not three numbers each.", "Set data.mean and std."
            )
        if min(self.std) <= 0:
            raise DataError(f"std {self.std} must be above 0.", "Give data.std positive numbers.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a picture of 640 x 480, the usual one."""
        return (3, *fitted(480, 640, self.shorter, self.longest))

    def open(self, source: Source) -> np.ndarray[Any, Any]:
        """Read one file to uint8 RGB (height, width, 3)."""
        return decode(*content(source, self.max_pixels))

    def resized(self, picture: np.ndarray[Any, Any], shorter: int | None = None) -> Tensor:
        """A picture brought to size: float32 (3, height, width)."""
        height, width = picture.shape[:2]
        height, width = fitted(height, width, shorter or self.shorter, self.longest)
        if picture.shape[:2] != (height, width):
            picture = np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))
        x = torch.from_numpy(np.array(picture.transpose(2, 0, 1), order="C")).float()
        mean, std = (255 * torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return x.sub_(mean).div_(std)

    def arrays(self, source: Source) -> tuple[DetectionBatch]:
        """`input`: a detector takes pictures of many sizes, and runs in PyTorch alone."""
        return (self.input(source),)

    def input(self, source: Source) -> DetectionBatch:
        """What the network sees of one file: a batch of one."""
        picture = self.open(source)
        image = self.resized(picture)
        return DetectionBatch(image[None], torch.tensor([image.shape[-2:]]), torch.tensor([picture.shape[:2]]))

    def blank(self) -> DetectionBatch:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, "PNG")
        return self.input(file.getvalue())

    def facts(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std}

    def to_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "DetectionPrepare":
        """The inverse of `to_json`; whatever else is found is refused."""
        try:
            sides = [saved[key] for key in ("shorter", "longest", "max_pixels")]
            if len(saved) != 5 or any(type(side) is not int for side in sides):
                raise ValueError("unknown keys, or sizes that are not whole numbers")
            return cls(sides[0], sides[1], numbers(saved, "mean"), numbers(saved, "std"), sides[2])
        except (ValueError, TypeError, KeyError) as problem:
            raise DataError(
                f"saved preprocessing is unusable: {problem}.",
                'Expected {"shorter": int, "longest": int, "mean": [...], "std": [...], "max_pixels": int}.',
            ) from None


def fitted(height: int, width: int, shorter: int, longest: int) -> tuple[int, int]:
    """The size of a picture whose shorter side becomes `shorter`, unless the longer one would become too long."""
    scale = min(shorter / min(height, width), longest / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))
