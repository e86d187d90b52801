"""Random changes to training images: of a batch at once, or one by one with what torchvision and timm offer."""

import math
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from supple.data._io.decode import decode, header
from supple.data._io.paths import Source
from supple.data.preprocess import INTERPOLATIONS, Array, Preprocess
from supple.errors import DataError
from supple.text import did_you_mean

RATIO = (3 / 4, 4 / 3)  # sides of a random crop
MOST_REDUCED = 8  # how much a JPEG decoder can shrink a picture by itself


@dataclass(frozen=True)
class Augmentation:
    """What happens to a training image, in this order; the settings of `data` with these names."""

    crop_scale: tuple[float, float] | None = None  # a random crop with such a share of the area, resized
    augment: str | None = None  # a policy: see `find_policy`
    jitter: float = 0.0  # brightness, contrast and saturation vary by up to this share
    crop: int = 0  # random crop after padding by so many pixels
    flip: bool = False  # random horizontal flip
    erase: float = 0.0  # probability that a random rectangle is erased

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise DataError(f"crop padding is {self.crop}.", "Set data.crop to 0 (off) or a number of pixels.")
        if self.augment is not None:
            find_policy(self.augment)
        if self.crop_scale is not None and not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise DataError(f"crop_scale is {list(self.crop_scale)}.", "Give two shares of the area, such as [0.3, 1].")
        for name, share in (("jitter", self.jitter), ("erase", self.erase)):
            if not 0 <= share <= 1:
                raise DataError(f"{name} is {share}.", f"Set data.{name} between 0 and 1.")

    @property
    def used(self) -> tuple[str, ...]:
        """The settings that change images."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))

    @property
    def takes_time(self) -> bool:
        """Whether pictures are changed one by one."""
        return self.crop_scale is not None or self.augment is not None or self.jitter > 0

    def of_batch(self, images: Tensor, preprocess: Preprocess, rng: torch.Generator) -> Tensor:
        """uint8 (batch, channels, size, size), changed after they were read."""
        if self.crop:
            images = random_crop(images, self.crop, rng)
        if self.flip:
            images = random_flip(images, rng)
        for change in self._changes(preprocess):
            with seeded(rng):
                images = torch.stack([change(image) for image in images])
        return images

    def _changes(self, preprocess: Preprocess) -> Iterator[Callable[[Tensor], Tensor]]:
        if self.augment is not None:
            yield find_policy(self.augment)(preprocess)
        if self.jitter:
            from torchvision.transforms import v2

            yield v2.ColorJitter(self.jitter, self.jitter, self.jitter)

    def erased(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Random rectangles of normalised images set to 0, which is their mean (Zhong et al. 2020)."""
        if not self.erase:
            return images
        from torchvision.transforms import v2

        erase = v2.RandomErasing(self.erase)
        with seeded(rng):
            return torch.stack([erase(image) for image in images])


NONE = Augmentation()


def as_picture(image: Tensor) -> Image.Image:
    """From uint8 (channels, height, width)."""
    array = image.numpy()
    return Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0))


def as_image(picture: Image.Image, channels: int) -> Tensor:
    """The opposite of `as_picture`."""
    array = np.asarray(picture.convert("L" if channels == 1 else "RGB"))
    return torch.from_numpy(np.array(array.reshape(*array.shape[:2], -1).transpose(2, 0, 1), order="C"))


def random_resized_crop(source: Source | Array, preprocess: Preprocess, scale: tuple[float, float]) -> Tensor:
    """torchvision's RandomResizedCrop: uint8 (channels, size, size).

    Of a JPEG file, no more detail is decoded than the crop needs.
    """
    from torchvision.transforms import RandomResizedCrop

    if isinstance(source, np.ndarray):
        height, width = source.shape[:2]
    else:
        width, height = header(source, preprocess.max_pixels)
    top, left, rows, columns = RandomResizedCrop.get_params(torch.empty(1, height, width, device="meta"), scale, RATIO)
    spare = min(rows, columns) / preprocess.size
    reduce = min(MOST_REDUCED, 2 ** max(0, int(math.log2(spare))))
    array = source if isinstance(source, np.ndarray) else decode(source, preprocess.max_pixels, reduce)
    across, down = array.shape[1] / width, array.shape[0] / height
    box = (left * across, top * down, (left + columns) * across, (top + rows) * down)
    how = INTERPOLATIONS[preprocess.interpolation]
    picture = Image.fromarray(array).resize((preprocess.size, preprocess.size), how, box=box)
    return as_image(picture, preprocess.channels)


@contextmanager
def seeded(rng: torch.Generator) -> Iterator[None]:
    """The global generators, which torchvision and timm draw from, as functions of `rng`; afterwards as before."""
    seed = int(torch.randint(2**62, (), generator=rng))
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


# --- policies -------------------------------------------------------------------------------------------------------

Policy = Callable[[Preprocess], Callable[[Tensor], Tensor]]  # for one image, uint8 (channels, size, size)
# Those of torchvision.transforms.v2, which is imported only when a policy is used.
POLICIES: dict[str, Callable[[Any], Callable[[Tensor], Tensor]]] = {
    "autoaugment": lambda v2: v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10),  # Cubuk et al. 2019
    "autoaugment_imagenet": lambda v2: v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET),
    "randaugment": lambda v2: v2.RandAugment(),  # Cubuk et al. 2020
    "trivialaugment": lambda v2: v2.TrivialAugmentWide(),  # Mueller and Hutter 2021
    "augmix": lambda v2: v2.AugMix(),  # Hendrycks et al. 2020
}
TIMM = ("rand", "augmix", "original", "originalr", "v0", "v0r", "3a")  # how the names of timm's policies begin


def find_policy(name: str) -> Policy:
    """A policy of torchvision by name, or one as timm writes it: rand-m9-mstd0.5-inc1, augmix-m3-w3, original."""
    if name in POLICIES:

        def of_torchvision(preprocess: Preprocess) -> Callable[[Tensor], Tensor]:
            from torchvision.transforms import v2

            return POLICIES[name](v2)

        return of_torchvision
    kind = name.partition("-")[0]
    if kind not in TIMM or not re.fullmatch(r"[a-z0-9.-]+", name):
        cure = f"{did_you_mean(name, POLICIES)} Or one as timm writes it, such as rand-m9-mstd0.5-inc1."
        raise DataError(f'unknown augmentation policy "{name}".', cure)

    def of_timm(preprocess: Preprocess) -> Callable[[Tensor], Tensor]:
        from timm.data import auto_augment

        grey = tuple(min(255, round(255 * mean)) for mean in preprocess.mean)
        hparams = {"translate_const": int(preprocess.size * 0.45), "img_mean": grey}
        make = {"rand": auto_augment.rand_augment_transform, "augmix": auto_augment.augment_and_mix_transform}
        change = make.get(kind, auto_augment.auto_augment_transform)(name, hparams)
        return lambda image: as_image(change(as_picture(image)), len(image))

    try:
        of_timm(Preprocess(32, 3, (0.5,) * 3, (0.5,) * 3))
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        said = " ".join(str(error).split())[:100] or type(error).__name__
        cure = "Write it as timm does, such as rand-m9-mstd0.5-inc1."
        raise DataError(f'augmentation policy "{name}" is refused by timm: {said}.', cure) from None
    return of_timm


# --- of a whole batch -----------------------------------------------------------------------------------------------


def random_crop(images: Tensor, padding: int, rng: torch.Generator) -> Tensor:
    """Pad with zeros on every side, then cut the original size out again, at a place drawn for each image."""
    if padding == 0:
        return images
    batch, channels, height, width = images.shape
    padded = F.pad(images, (padding,) * 4).contiguous()
    down, right = torch.randint(0, 2 * padding + 1, (2, batch), generator=rng)
    # Every row of the result is a run of `width` bytes of the padded batch: copying runs is 20 times as fast as
    # gathering pixels.
    row_length = width + 2 * padding
    plane = torch.arange(batch * channels).view(batch, channels, 1) * (height + 2 * padding)
    row = plane + down.view(batch, 1, 1) + torch.arange(height)
    start = row * row_length + right.view(batch, 1, 1)  # (batch, channels, height)
    runs = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    return runs.index_select(0, start.flatten()).view(images.shape)


def random_flip(images: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    chosen = torch.rand(len(images), generator=rng) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(3), images)
