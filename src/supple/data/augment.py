"""Random changes to training images: pure functions on uint8 batches (batch, channels, height, width)."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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


# Made from torchvision.transforms.v2, which is imported only when a policy is used.
POLICIES: dict[str, Callable[[Any], Callable[[Tensor], Tensor]]] = {
    "autoaugment": lambda v2: v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10),  # Cubuk et al. 2019
    "randaugment": lambda v2: v2.RandAugment(),  # Cubuk et al. 2020
    "trivialaugment": lambda v2: v2.TrivialAugmentWide(),  # Mueller and Hutter 2021
}


def apply_policy(images: Tensor, name: str, rng: torch.Generator) -> Tensor:
    """Apply one of POLICIES to each image on its own (given a batch, torchvision draws one change for all of it).

    torchvision draws from the global generator: it is seeded from `rng` here and afterwards put back.
    """
    from torchvision.transforms import v2

    transform = POLICIES[name](v2)
    seed = int(torch.randint(2**62, (), generator=rng))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return torch.stack([transform(image) for image in images])
