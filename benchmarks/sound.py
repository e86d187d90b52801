"""How many sounds a second: one-second clips to 224 x 224 pictures, from memory and from files.

    python benchmarks/sound.py [--clips 512] [--rounds 5]

The median of the rounds, on the threads that torch uses here. Prints Markdown.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import soundfile
import torch

from supple.data.audio.spectrogram import SpectrogramConfig
from supple.data.preprocess import Preprocess
from supple.data.registry import load
from supple.machine import machine

SIZE = 224
KINDS = {
    "stft": SpectrogramConfig(16_000, 1.0, "stft"),
    "mel": SpectrogramConfig(16_000, 1.0, "mel"),
    "three": SpectrogramConfig(22_050, 1.0, "three", mels=128),
}


def per_second(clips: int, work: Callable[[], object], rounds: int) -> float:
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return clips / statistics.median(times)


def from_memory(spectrogram: SpectrogramConfig, clips: int, rounds: int) -> float:
    prepare = Preprocess(
        SIZE,
        spectrogram.channels,
        (0.0,) * spectrogram.channels,
        (1.0,) * spectrogram.channels,
        spectrogram=spectrogram,
    )
    waves = torch.rand(clips, spectrogram.samples, generator=torch.Generator().manual_seed(0)) - 0.5
    return per_second(clips, lambda: [prepare.hear(part) for part in waves.split(128)], rounds)


def from_files(spectrogram: SpectrogramConfig, clips: int, rounds: int, rate: int) -> float:
    """The whole way of `load`: listing, decoding, resampling if `rate` differs, spectra."""
    rng = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(clips):
            path = Path(folder, "ab"[number % 2], f"{number:05}.wav")
            path.parent.mkdir(exist_ok=True)
            soundfile.write(path, (torch.rand(rate, generator=rng) - 0.5).numpy(), rate)
        settings = {
            "rate": spectrogram.rate,
            "seconds": 1.0,
            "features": spectrogram.features,
            "mels": spectrogram.mels,
        }
        return per_second(clips, lambda: load("sounds", root=folder, size=SIZE, **settings), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{machine()}, {torch.get_num_threads()} threads; one-second clips per second, {SIZE} x {SIZE}\n")
    print("| features | from memory | from WAV files | from 44.1 kHz WAV files |\n|---|---:|---:|---:|")
    for name, spectrogram in KINDS.items():
        figures = [
            from_memory(spectrogram, given.clips, given.rounds),
            from_files(spectrogram, given.clips, given.rounds, spectrogram.rate),
            from_files(spectrogram, given.clips, given.rounds, 44_100),
        ]
        print(f"| {name} | " + " | ".join(f"{figure:,.0f}" for figure in figures) + " |")


if __name__ == "__main__":
    main()
