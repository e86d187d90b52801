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
def mel_filters(mels: int, bins: int, rate: int) -> Tensor:
    """Triangles with a peak of 1, equally wide in mel (of HTK: 2595 log10(1 + f / 700)), from 0 Hz to half the rate:
    (mels, bins), to be multiplied with powers.
    """
    highest = 2595 * math.log10(1 + rate / 1400)
    edges = 700 * (10 ** (torch.linspace(0, highest, mels + 2, dtype=torch.float64) / 2595) - 1)
    frequency = torch.linspace(0, rate / 2, bins, dtype=torch.float64)
    left, centre, right = (edges[i : i + mels, None] for i in range(3))
    rising, falling = (frequency - left) / (centre - left), (right - frequency) / (right - centre)
    return torch.minimum(rising, falling).clamp(min=0).float()


def decibels(powers: Tensor) -> Tensor:
    """10 log10, between FLOOR and 0, where 0 is the power of a full-scale sine."""
    return powers.clamp(10 ** (FLOOR / 10), 1.0).log10().mul_(10)


def as_picture(levels: Tensor, size: int) -> Tensor:
    """Decibels (clips, rows, columns) resized to uint8 (clips, size, size): bilinear, antialiased when shrinking.

    FLOOR becomes 0 and full scale 255: steps of 0.39 dB, and whatever is quieter than FLOOR is lost.
    """
    resized = F.interpolate(levels[:, None], (size, size), mode="bilinear", antialias=True)[:, 0]
    return resized.sub_(FLOOR).mul_(255 / -FLOOR).round_().clamp_(0, 255).to(torch.uint8)
