"""Spectra of sounds: pure functions on batches of clips (clips, samples)."""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

FLOOR = -100.0  # dB below a full-scale sine: about what 16 bits resolve


def fft_length(window: int) -> int:
    """The power of two that holds the window."""
    return int(2 ** math.ceil(math.log2(window)))


def power(waves: Tensor, window: int, hop: int) -> Tensor:
    """Squared magnitudes of the short-time Fourier transform, (clips, samples) to (clips, bins, frames).

    Periodic Hann window of so many samples, filled up with zeros to a power of two; frames lie wholly inside the clip,
    so there are (samples - window) // hop + 1. A sine of amplitude a on the centre of a bin has power a² there.
    """
    length = fft_length(window)
    shape = torch.hann_window(window, device=waves.device)
    shape = F.pad(shape * (2 / shape.sum()), (0, length - window))
    spectra = torch.stft(
        F.pad(waves, (0, length - window)), length, hop, window=shape, center=False, return_complex=True
    )
    return spectra.real.square().add_(spectra.imag.square())


@lru_cache(maxsize=16)
def mel_filters(mels: int, bins: int, rate: int, scale: str = "htk", equal_area: bool = False) -> Tensor:
    """Triangles, equally wide in mel, from 0 Hz to half the rate: (mels, bins), to be multiplied with powers.

    scale: htk, 2595 log10(1 + f / 700); slaney, linear below 1 kHz and logarithmic above. Each triangle peaks at 1 or,
    with `equal_area`, has an area of 1 over its Hz (Slaney's norm).
    """
    to_mel, to_hertz = {"htk": (_htk_mel, _htk_hertz), "slaney": (_slaney_mel, _slaney_hertz)}[scale]
    highest = to_mel(torch.tensor(rate / 2, dtype=torch.float64))
    edges = to_hertz(torch.linspace(0, 1, mels + 2, dtype=torch.float64) * highest)  # left, centre, right of each
    frequency = torch.linspace(0, rate / 2, bins, dtype=torch.float64)
    left, centre, right = (edges[i : i + mels, None] for i in range(3))
    rising, falling = (frequency - left) / (centre - left), (right - frequency) / (right - centre)
    filters = torch.minimum(rising, falling).clamp(min=0)
    return (filters * 2 / (right - left) if equal_area else filters).float()


def decibels(powers: Tensor) -> Tensor:
    """10 log10, between FLOOR and 0, where 0 is the power of a full-scale sine."""
    return powers.clamp(10 ** (FLOOR / 10), 1.0).log10().mul_(10)


def as_picture(levels: Tensor, size: int) -> Tensor:
    """Decibels (clips, rows, columns) resized to uint8 (clips, size, size): bilinear, antialiased when shrinking.

    FLOOR becomes 0 and full scale 255: steps of 0.39 dB, and whatever is quieter than FLOOR is lost.
    """
    resized = F.interpolate(levels[:, None], (size, size), mode="bilinear", antialias=True)[:, 0]
    return resized.sub_(FLOOR).mul_(255 / -FLOOR).round_().clamp_(0, 255).to(torch.uint8)


def _htk_mel(hertz: Tensor) -> Tensor:
    return 2595 * torch.log10(1 + hertz / 700)


def _htk_hertz(mel: Tensor) -> Tensor:
    return 700 * (10 ** (mel / 2595) - 1)


# Slaney's Auditory Toolbox: 15 mel per kHz below 1 kHz, then 27 mel for each factor of 6.4.
_STEP = math.log(6.4) / 27


def _slaney_mel(hertz: Tensor) -> Tensor:
    return torch.where(hertz < 1000, hertz * 0.015, 15 + torch.log(hertz.clamp(min=1000) / 1000) / _STEP)


def _slaney_hertz(mel: Tensor) -> Tensor:
    return torch.where(mel < 15, mel / 0.015, 1000 * torch.exp((mel - 15).clamp(min=0) * _STEP))
