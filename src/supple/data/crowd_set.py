"""Pictures of crowds as samples: seen, perhaps heard, and where the heads are."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from supple.data.choice import Splits, checked_fingerprint, choose
from supple.data.crowd_prepare import CrowdPrepare, Seen
from supple.data.decode import MAX_PIXELS
from supple.data.density import SIGMA
from supple.data.images import WORKERS
from supple.data.parts import Collection, Request
from supple.data.reading import MEMORY_LIMIT, SAMPLE
from supple.data.scene import Scene
from supple.errors import DataError
from supple.tasks.count import Crowd

USUAL_SIZE = {"disco": (576, 1024)}  # height and width
MEASURED = 2**26  # pixels of the pictures that mean and deviation are measured on
AT_ONCE = 2**21  # pixels of the pictures that are evaluated together: their maps are large


class CrowdSet:
    """Scenes, read into memory when they are first wanted, if they fit; otherwise whenever they are.

    `batch(indices, rng)` gives pictures, or pictures and sounds, and `Crowd`. With `rng`, and if this set was told to
    flip, every second picture is mirrored, and its heads with it.
    """

    task: str = "count"
    classes: tuple[str, ...] = ("people",)
    preprocess: CrowdPrepare

    def __init__(
        self,
        scenes: Sequence[Scene],
        preprocess: CrowdPrepare,
        sigma: float,
        flip: bool = False,
        memory_limit: int = 0,  # bytes that the pictures and maps of this set may take
    ) -> None:
        self.scenes, self.preprocess, self.sigma, self.flip = scenes, preprocess, sigma, flip
        height, width = preprocess.size
        self._kept: dict[int, tuple[Tensor, Tensor | None, Tensor, float]] | None = None
        if len(scenes) * height * width * (3 + 4) <= memory_limit:
            self._kept = {}

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def shape(self) -> tuple[object, ...]:
        return self.preprocess.shape

    @property
    def slow(self) -> bool:
        return self._kept is None or len(self._kept) < len(self)

    @property
    def at_once(self) -> int:
        """How many are evaluated together."""
        height, width = self.preprocess.size
        return max(1, AT_ONCE // (height * width))

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Seen, Crowd]:
        numbers = indices.tolist()
        with ThreadPoolExecutor(WORKERS) as pool:
            found = list(pool.map(self._read, numbers))
        pictures = torch.stack([picture for picture, _, _, _ in found])
        density = torch.stack([density for _, _, density, _ in found])[:, None]
        heads = torch.tensor([heads for _, _, _, heads in found])
        if rng is not None and self.flip:
            turned = torch.rand(len(numbers), generator=rng) < 0.5
            pictures[turned], density[turned] = pictures[turned].flip(-1), density[turned].flip(-1)
        seen = self.preprocess.normalise(pictures)
        if not self.preprocess.hears:
            return seen, Crowd(heads, density)
        sounds = [sound for _, sound, _, _ in found if sound is not None]
        return (seen, torch.stack(sounds)), Crowd(heads, density)

    def pictures(self) -> Tensor:
        """Pictures to measure mean and deviation on, uint8: all, or so many, evenly spread."""
        height, width = self.preprocess.size
        count = min(SAMPLE, len(self), max(8, MEASURED // (height * width)))
        spread = torch.linspace(0, len(self) - 1, count).round().long().tolist()
        with ThreadPoolExecutor(WORKERS) as pool:
            return torch.stack(list(pool.map(lambda number: self._read(number)[0], spread)))

    @torch.inference_mode(False)  # what is kept may be trained on later
    def _read(self, number: int) -> tuple[Tensor, Tensor | None, Tensor, float]:
        if self._kept is not None and number in self._kept:
            return self._kept[number]
        scene, (height, width) = self.scenes[number], self.preprocess.size
        density = scene.density(height, width, self.sigma)
        sound = self.preprocess.hear(scene.sound) if self.preprocess.hears and scene.sound is not None else None
        found = self.preprocess.open(scene.picture), sound, density, scene.heads(density)
        if self._kept is not None:
            self._kept[number] = found
        return found


def load_crowds(
    name: str,
    reader: Callable[[Request], Collection],
    *,
    root: str | None = None,
    size: int | tuple[int, int] | None = None,
    limit: int | None = None,
    holdout: int | float = 0.1,
    flip: bool = False,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    sigma: float = SIGMA,
    test_limit: int | None = None,
    max_pixels: int = MAX_PIXELS,
    seed: int = 0,
    test_share: float = 0.2,
    memory_limit: int = MEMORY_LIMIT,
    fingerprint: str | None = None,
) -> Splits:
    """size: height and width, or one number for both. sigma: of a head in the density map, pixels. Mean and deviation
    are measured on pictures to train on, unless they are given. Nothing is cropped: heads would be lost.
    """
    prepare = CrowdPrepare(picture_size(name, size), max_pixels=max_pixels)  # refused before anything is read
    found = reader(Request(root, None, seed, test_share))
    seen = checked_fingerprint(found, fingerprint, root or name)
    every = [cast(Sequence[Scene], part.images) for part in choose(found, limit, holdout, test_limit, seed)]
    prepare = replace(prepare, hears=every[0][0].sound is not None)
    share = memory_limit // len(every)
    train, val, test = (CrowdSet(scenes, prepare, sigma, k == 0 and flip, share) for k, scenes in enumerate(every))
    if mean is None or std is None:
        measured = prepare.measured(train.pictures())
        mean, std = mean or measured.mean, std or measured.std
    for one in (train, val, test):
        one.preprocess = replace(prepare, mean=tuple(mean), std=tuple(std))
    return Splits(train, val, test, seen)


def picture_size(name: str, size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Height and width of the pictures of crowds."""
    size = USUAL_SIZE.get(name) if size is None else size
    if size is None:
        raise DataError(f"the pictures of {name} differ in size.", "Set data.size=[height, width], such as [288, 512].")
    return (size, size) if isinstance(size, int) else size
