"""Images, and sounds as pictures: chosen, read, measured."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from supple.data._io.decode import MAX_PIXELS
from supple.data.audio.spectrogram import SpectrogramConfig
from supple.data.classification.reading import SAMPLE, fit, measure, read, stored_size
from supple.data.images import ImageSet, open_all
from supple.data.parts import Collection, Part, Reader
from supple.data.preprocess import Preprocess
from supple.data.settings import Channels, Count, Features, Holdout, Mels, Padding, Rate, Seconds, Seed, Side
from supple.data.splits import Splits, choose, read_parts
from supple.errors import DataError
from supple.model import Shape


def load_pictures(
    reader: Reader,
    *,
    size: Side | None = None,  # pixels of a side; None: as they are, if all alike
    channels: Channels | None = None,  # 3: RGB, 1: grey; None: the set's own
    limit: Count | None = None,  # use only so many training images, the same number per class
    test_limit: Count | None = None,  # use only so many test images
    holdout: Holdout = 0.1,  # validation images, if the set has none of its own: a number, or a share below 1
    crop: Padding = 0,  # random crop after padding by so many pixels
    flip: bool = False,  # random horizontal flip
    augment: str | None = None,  # autoaugment, randaugment, trivialaugment: image by image, slower
    mean: tuple[float, ...] | None = None,  # of values in 0..1, per channel; None: measured on the training images
    std: tuple[float, ...] | None = None,  # None: measured
    max_pixels: Count = MAX_PIXELS,  # larger pictures are refused before they are decoded
    seed: Seed = 0,  # of the splits
) -> Splits:
    """Data sets of pictures. `holdout` as a share is one of the images available, or of `limit`; `limit` does not count
    the validation images. Only the images used are decoded. Mean and deviation are measured on 1,000 images if they do
    not fit in memory.
    """
    _must_be_square(size, reader.name)
    # What cannot be is refused before anything is read.
    _blank(1 if size is None else size, 3 if channels is None else channels, max_pixels)
    found, seen = read_parts(reader)
    parts = choose(found, limit, holdout, test_limit, seed)
    side = stored_size(parts, max_pixels) if size is None else size
    blank = _blank(side, found.channels if channels is None else channels, max_pixels)
    if isinstance(found.train.images, Tensor):
        parts = [replace(part, images=fit(part.images, blank)) for part in parts if isinstance(part.images, Tensor)]
    else:
        parts = read(parts, blank, reader.memory_limit, reader.warn, resize=size is not None)
    return _splits(reader, found, parts, blank, (mean, std), (crop, flip, augment), seen)


def load_sounds(
    reader: Reader,
    *,
    rate: Rate = 16_000,  # samples per second
    seconds: Seconds = 1.0,  # of a clip: cut to its middle, or followed by silence
    features: Features = "mel",  # the spectra that the network sees
    mels: Mels = 64,  # bands of a mel spectrum
    size: Side = 64,  # pixels of a side of their pictures
    channels: Channels | None = None,  # None: one for each spectrum
    limit: Count | None = None,  # use only so many training sounds, the same number per class
    test_limit: Count | None = None,  # use only so many test sounds
    holdout: Holdout = 0.1,  # validation sounds, if the set has none of its own: a number, or a share below 1
    crop: Padding = 0,  # random crop after padding by so many pixels: shifts time and pitch
    augment: str | None = None,  # autoaugment, randaugment, trivialaugment: picture by picture, slower
    mean: tuple[float, ...] | None = None,  # of values in 0..1, per channel; None: measured on the training sounds
    std: tuple[float, ...] | None = None,  # None: measured
    seed: Seed = 0,  # of the splits
) -> Splits:
    """Data sets of sounds, made pictures: see `SpectrogramConfig`. The rest is as for pictures."""
    _must_be_square(size, reader.name)
    spectrogram = SpectrogramConfig(rate, seconds, features, mels)
    blank = _blank(size, spectrogram.channels if channels is None else channels, MAX_PIXELS, spectrogram)
    found, seen = read_parts(reader)
    parts = choose(found, limit, holdout, test_limit, seed)
    parts = read(parts, blank, reader.memory_limit, reader.warn)
    return _splits(reader, found, parts, blank, (mean, std), (crop, False, augment), seen)


def picture_shape(settings: Mapping[str, Any], stored: Shape | None, use_audio: bool) -> Shape | None:
    """Of an image as the settings say, or as it is stored; None: only the files know."""
    size, channels = settings["size"], settings["channels"]
    if size is None and stored is None:
        return None
    usual, *sides = stored or (3,)
    return (channels or usual, *((size, size) if size is not None else sides))


def sound_shape(settings: Mapping[str, Any], stored: Shape | None, use_audio: bool) -> Shape:
    """Of the picture of a sound."""
    spectrogram = SpectrogramConfig(*(settings[key] for key in ("rate", "seconds", "features", "mels")))
    return (settings["channels"] or spectrogram.channels, settings["size"], settings["size"])


def _splits(
    reader: Reader,
    found: Collection,
    parts: list[Part],
    blank: Preprocess,
    measured: tuple[tuple[float, ...] | None, tuple[float, ...] | None],
    augmentation: tuple[int, bool, str | None],
    fingerprint: str,
) -> Splits:
    for part, word in zip(parts, ("training", "validation", "test")):
        if len(part) == 0:
            raise DataError(f'data set "{reader.name}" has no {word} image left.', "Replace the unreadable files.")
    mean, std = measured
    if mean is None or std is None:
        found_mean, found_std = measure(_sample(parts[0], blank))
        mean, std = mean or found_mean, std or found_std
    preprocess = replace(blank, mean=tuple(mean), std=tuple(std))
    train, val, test = ((part, found.classes, preprocess, reader.task) for part in parts)
    return Splits(ImageSet(*train, *augmentation), ImageSet(*val), ImageSet(*test), fingerprint)


def _must_be_square(size: Any, name: str) -> None:
    if isinstance(size, tuple):
        raise DataError(f"data.size is {list(size)}, but pictures of {name} are square.", "Give one number.")


def _blank(size: int, channels: int, max_pixels: int, spectrogram: SpectrogramConfig | None = None) -> Preprocess:
    """Preprocessing before mean and deviation are known."""
    return Preprocess(size, channels, (0.0,) * max(0, channels), (1.0,) * max(0, channels), max_pixels, spectrogram)


def _sample(part: Part, preprocess: Preprocess) -> Tensor:
    """The training images to measure; of files, SAMPLE of them, evenly spread (they lie class by class)."""
    if isinstance(part.images, Tensor):
        return part.images
    spread = torch.linspace(0, len(part) - 1, min(SAMPLE, len(part))).round().long()
    return open_all([part.images[i] for i in spread.tolist()], preprocess)
