"""From sound files to pictures of them, which every network for images can look at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from supple.data._io.paths import Source
from supple.data.audio.sound import MAX_RATE, MAX_SECONDS, MIN_RATE, Wave, decode_sound
from supple.errors import DataError
from supple.text import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

MAX_MELS = 512


class View(NamedTuple):
    """One spectrum of a clip."""

    window: int  # samples
    hop: int
    mel: bool = False


# The spectra that a picture is made of, for a rate: one for each channel.
FEATURES: dict[str, Callable[[int], tuple[View, ...]]] = {
    # Speech Commands of SL-ViT, section 4.1.2: 124 frames x 129 bins of one second at 16 kHz.
    "stft": lambda rate: (View(255, 128),),
    # Windows of 25 ms every 10 ms.
    "mel": lambda rate: (View(rate * 25 // 1000, rate // 100, mel=True),),
    # GTZAN of SL-ViT, section 4.1.3: STFT, mel with windows of 100 ms, mel with windows of 50 ms.
    "three": lambda rate: (
        View(512, 256),
        View(rate // 10, rate // 20, mel=True),
        View(rate // 20, rate // 40, mel=True),
    ),
}


@dataclass(frozen=True)
class SpectrogramConfig:
    """How sounds become pictures; saved with a model, so that serving does exactly what training did.

    A longer clip is cut to its middle, a shorter one followed by silence. Rows are frequencies, the lowest first;
    columns are time. Departure: the paper does not say how its spectra are scaled; here they are decibels.
    """

    rate: int  # samples per second
    seconds: float
    features: str  # a key of FEATURES
    mels: int = 64  # bands of a mel spectrum

    def __post_init__(self) -> None:
        if self.features not in FEATURES:
            raise DataError(f'unknown features "{self.features}".', did_you_mean(self.features, FEATURES))
        for word, value, low, high in (
            ("rate", self.rate, MIN_RATE, MAX_RATE),
            ("seconds", self.seconds, 0.001, MAX_SECONDS),
            ("mels", self.mels, 1, MAX_MELS),
        ):
            if not low <= value <= high:
                raise DataError(f"data.{word} is {value}.", f"Set it between {low:,} and {high:,.0f}.")
        for view in self.views:
            if self.samples < view.window:
                raise DataError(
                    f"clips of {self.seconds} s have {self.samples} samples, fewer than a window ({view.window}).",
                    "Raise data.seconds or data.rate.",
                )
            empty = int((self._filters(view).sum(1) == 0).sum()) if view.mel else 0
            if empty:
                raise DataError(
                    f"{empty} of {self.mels} mel bands are narrower than the spectrum resolves.", "Lower data.mels."
                )

    @property
    def views(self) -> tuple[View, ...]:
        return FEATURES[self.features](self.rate)

    @property
    def channels(self) -> int:
        return len(self.views)

    @property
    def samples(self) -> int:
        return round(self.seconds * self.rate)

    def wave(self, source: Source) -> Wave:
        """Decode one sound to exactly `samples` float32 values."""
        heard = decode_sound(source, self.rate, self.seconds)[: self.samples]
        return np.pad(heard, (0, self.samples - len(heard)))

    def pictures(self, waves: "Tensor", size: int, channels: int) -> "Tensor":
        """Clips (clips, samples) to uint8 (clips, channels, size, size); a single spectrum fills every channel."""
        import torch

        from supple.data.audio.spectrum import as_picture

        spectra = [as_picture(self.levels(waves, view), size) for view in self.views]
        return torch.stack(spectra, 1).expand(-1, channels, -1, -1).contiguous()

    def levels(self, waves: "Tensor", view: View) -> "Tensor":
        """One spectrum of clips (clips, samples) in decibels, (clips, bins or mels, frames)."""
        from supple.data.audio.spectrum import decibels, power

        powers = power(waves, view.window, view.hop)
        return decibels(self._filters(view) @ powers if view.mel else powers)

    def _filters(self, view: View) -> "Tensor":
        from supple.data.audio.spectrum import fft_length, mel_filters

        return mel_filters(self.mels, fft_length(view.window) // 2 + 1, self.rate)
