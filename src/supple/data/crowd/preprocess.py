"""From a picture file, and the sound file beside it, to what a network that counts sees and hears."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supple.data._io.decode import MAX_PIXELS, decode
from supple.data._io.paths import Source
from supple.data.audio.sound import SUFFIXES as SOUNDS
from supple.data.audio.spectrogram import SpectrogramConfig
from supple.data.audio.spectrum import FLOOR
from supple.data.preprocess import MAX_SIZE, Preparation, stretched
from supple.errors import DataError

SPECTROGRAM = SpectrogramConfig(16_000, 1.0, "mel", mels=64)  # as of VGGish: windows of 25 ms every 10 ms
FRAMES = 96
SOUND_SHAPE = (1, FRAMES, SPECTROGRAM.mels)  # of one sound
Seen = Tensor | tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class CrowdPrepare(Preparation):
    """How pictures of crowds are prepared; saved with a model, so that serving does what training did.

    A picture is resized to exactly `size`, whatever its own shape. A sound is one second from the middle of its file,
    the first 96 frames of it: decibels from -100 to 0, as -2 to 2.
    """

    size: tuple[int, int]  # height and width
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    max_pixels: int = MAX_PIXELS
    use_audio: bool = False

    def __post_init__(self) -> None:
        for side in self.size:
            if not 1 <= side <= MAX_SIZE:
                raise DataError(f"data.size is {list(self.size)}.", f"Both sides lie in 1..{MAX_SIZE}.")
        self._check(channels=3)

    @property
    def shape(self) -> tuple[Any, ...]:
        picture = (3, *self.size)
        return (picture, SOUND_SHAPE) if self.use_audio else picture

    def open(self, source: Source) -> Tensor:
        """A picture as uint8 (3, height, width)."""
        return torch.from_numpy(stretched(decode(source, self.max_pixels), *self.size))

    def hear(self, source: Source) -> Tensor:
        """A sound as float32 (1, 96, 64): time downwards, pitch to the right."""
        (view,) = SPECTROGRAM.views
        levels = SPECTROGRAM.levels(torch.from_numpy(SPECTROGRAM.wave(source))[None], view)  # (1, bands, frames)
        return levels[:, :, :FRAMES].transpose(1, 2).sub_(FLOOR / 2).div_(-FLOOR / 4).contiguous()

    def input(self, source: Source) -> Seen:
        """What the network sees of one file: a batch of one. The sound lies beside the picture; None: there is none."""
        image = self.normalise(self.open(source)[None])
        if not self.use_audio:
            return image
        sound = sound_beside(Path(source)) if isinstance(source, str | Path) else None
        return image, None if sound is None else self.hear(sound)[None]

    def arrays(self, source: Source) -> tuple[np.ndarray[Any, Any] | None, ...]:
        """`input` as numpy arrays."""
        seen = self.input(source)
        parts = seen if isinstance(seen, tuple) else (seen,)
        return tuple(None if part is None else part.numpy() for part in parts)

    def facts(self) -> dict[str, Any]:
        return {"size": self.size, "mean": self.mean, "std": self.std}


def sound_beside(picture: Path) -> Path | None:
    """The sound file of a picture: of the same name beside it, or where `sounds` stands for `images` in its path."""
    folders = [picture.parent, picture.parent.parent / "sounds"]
    for above in picture.parents:
        if above.name == "images":
            folders.append(above.parent / "sounds" / picture.parent.relative_to(above))
    endings = [ending for one in SOUNDS for ending in (one, one.upper())]
    candidates = (folder / f"{picture.stem}{ending}" for folder in folders for ending in endings)
    return next((candidate for candidate in candidates if candidate.is_file()), None)
