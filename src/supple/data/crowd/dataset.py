"""Pictures of crowds as samples: seen, perhaps heard, and where the heads are."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from supple.data._io.decode import MAX_PIXELS
from supple.data._io.paths import Source, read_bytes
from supple.data.classification.pictures import SAMPLE, measure
from supple.data.crowd.preprocess import CrowdPrepare, Seen
from supple.data.images import in_threads
from supple.data.parts import Reader
from supple.data.settings import Count, Holdout, Seed, Side
from supple.data.splits import Splits, choose, read_parts
from supple.errors import DataError
from supple.model import Shape
from supple.tasks.count import Crowd
from supple.text import one_line

MOST = 50_000_000  # cells of a stored density map
SIDE = 15  # cells of the hill along each side (SL-ViT, section 4.1.4)
SIGMA = 4.0  # its deviation, in pixels
Sigma = Annotated[float, Field(gt=0, le=100)]  # pixels
MEASURED = 2**26  # pixels of the pictures that mean and deviation are measured on
AT_ONCE = 2**21  # pixels of the pictures that are evaluated together: their maps are large


def read_map(source: Source) -> Tensor:
    """The matrix `map` of a file, float32 (height, width); anything else is a DataError that names the file."""
    from scipy.io import loadmat, whosmat

    name = "a density map" if isinstance(source, bytes) else str(source)
    try:
        content = read_bytes(source)
        sizes = {name: shape for name, shape, _ in whosmat(io.BytesIO(content))}
        height, width = sizes["map"]
        if not 0 < height * width <= MOST:
            raise ValueError(f"its map has {height} x {width} cells")
        values = np.asarray(loadmat(io.BytesIO(content), variable_names=["map"])["map"], dtype=np.float32)
        if not np.isfinite(values).all() or values.min() < 0:
            raise ValueError("its map has cells that are negative or no numbers")
    except KeyError:
        raise DataError(
            f'{name} holds no matrix "map".', "Take the density maps of the data set as they are."
        ) from None
    except DataError:
        raise
    except Exception as problem:  # damaged files make scipy raise errors of many kinds
        cause = f"{name} is not a readable MATLAB file: {one_line(problem)}."
        raise DataError(cause, "Copy or unpack it again.") from None
    return torch.from_numpy(np.ascontiguousarray(values))


def density_map(points: Tensor, height: int, width: int, sigma: float = SIGMA) -> Tensor:
    """Heads at (x, y) pixels, (heads, 2), to float32 (height, width): a Gaussian of SIDE x SIDE cells around each.

    The cell of a head is the one its point lies in. At the border the part of the hill that is inside the picture gets
    the whole volume. Departure: the published maps lose what is outside.
    """
    found = torch.zeros(height * width, dtype=torch.float64)
    if len(points) == 0:
        return found.view(height, width).float()
    reach = torch.arange(SIDE) - SIDE // 2
    column = (points[:, 0].long().clamp(0, width - 1)[:, None] + reach)[:, None, :]  # (heads, 1, side)
    row = (points[:, 1].long().clamp(0, height - 1)[:, None] + reach)[:, :, None]  # (heads, side, 1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    one = torch.exp(-(reach.double() ** 2) / (2 * sigma**2))
    hill = inside * (one[:, None] * one)  # (heads, side, side)
    hill = hill / hill.sum((1, 2), keepdim=True)
    cells = (row * width + column)[inside]
    return found.index_add_(0, cells, hill[inside]).view(height, width).float()


def resized_map(density: Tensor, height: int, width: int) -> Tensor:
    """A map brought to another size: a cell gives each new one the share of it that lies there: the sum stays."""
    return shares(density.shape[0], height) @ density @ shares(density.shape[1], width).T


def shares(old: int, new: int) -> Tensor:
    """(new, old): how much of each of `old` cells lies in each of `new` ones of the same whole length."""
    edges = torch.arange(new + 1, dtype=torch.float64) * (old / new)
    cells = torch.arange(old, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], cells + 1) - torch.maximum(edges[:-1, None], cells)
    return overlap.clamp(min=0).float()


@dataclass(frozen=True)
class CrowdSample:
    """Heads are given as points in the picture's own pixels, or by a stored density map."""

    picture: Source
    width: int  # of the picture the points lie in; of no account with a map
    height: int
    points: tuple[tuple[float, float], ...] = ()
    stored: Source | None = None  # a density map in a MATLAB file
    sound: Source | None = None

    def __str__(self) -> str:
        return str(self.picture)

    def read(self) -> bytes:
        """The bytes of the picture."""
        return read_bytes(self.picture)

    def density(self, height: int, width: int, sigma: float) -> Tensor:
        """The heads over a picture of this size, (height, width)."""
        if self.stored is not None:
            return resized_map(read_map(self.stored), height, width)
        scale = torch.tensor([width / max(1, self.width), height / max(1, self.height)])
        return density_map(torch.tensor(self.points).view(-1, 2) * scale, height, width, sigma)

    def heads(self, density: Tensor) -> float:
        """How many: the points, or the sum of the stored map."""
        return float(len(self.points)) if self.stored is None else float(density.double().sum())


class CrowdSet:
    """Pictures of crowds, read into memory when they are first wanted, if they fit; otherwise whenever they are.

    `batch(indices, rng)` gives pictures, or pictures and sounds, and `Crowd`. With `rng`, and if this set was told to
    flip, every second picture is mirrored, and its heads with it.
    """

    workers = 0

    repeat: int = 1

    def __init__(
        self,
        samples: Sequence[CrowdSample],
        classes: tuple[str, ...],  # what is counted
        preprocess: CrowdPrepare,
        task: str,
        sigma: float,
        flip: bool = False,
        memory_limit: int = 0,  # bytes that the pictures and maps of this set may take
    ) -> None:
        self.task, self.classes, self.preprocess = task, classes, preprocess
        self.samples, self.sigma, self.flip = samples, sigma, flip
        height, width = preprocess.size
        self._kept: dict[int, tuple[Tensor, Tensor | None, Tensor, float]] | None = None
        if len(samples) * height * width * (3 + 4) <= memory_limit:
            self._kept = {}

    def __len__(self) -> int:
        return len(self.samples)

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

    @property
    def targets(self) -> Tensor:
        """How many heads each picture has."""
        return torch.tensor([self._read(number)[3] for number in range(len(self))])

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Seen, Crowd]:
        found = in_threads(self._read, indices.tolist())
        pictures = torch.stack([picture for picture, _, _, _ in found])
        density = torch.stack([density for _, _, density, _ in found])[:, None]
        heads = torch.tensor([heads for _, _, _, heads in found])
        if rng is not None and self.flip:
            turned = torch.rand(len(found), generator=rng) < 0.5
            pictures[turned], density[turned] = pictures[turned].flip(-1), density[turned].flip(-1)
        seen = self.preprocess.normalise(pictures)
        if not self.preprocess.use_audio:
            return seen, Crowd(heads, density)
        sounds = [sound for _, sound, _, _ in found if sound is not None]
        return (seen, torch.stack(sounds)), Crowd(heads, density)

    def pictures(self) -> Tensor:
        """Pictures to measure mean and deviation on, uint8: all, or so many, evenly spread."""
        height, width = self.preprocess.size
        count = min(SAMPLE, len(self), max(8, MEASURED // (height * width)))
        spread = torch.linspace(0, len(self) - 1, count).round().long().tolist()
        return torch.stack(in_threads(lambda number: self._read(number)[0], spread))

    @torch.inference_mode(False)  # what is kept may be trained on later
    def _read(self, number: int) -> tuple[Tensor, Tensor | None, Tensor, float]:
        if self._kept is not None and number in self._kept:
            return self._kept[number]
        sample, (height, width) = self.samples[number], self.preprocess.size
        density = sample.density(height, width, self.sigma)
        sound = self.preprocess.hear(sample.sound) if self.preprocess.use_audio and sample.sound is not None else None
        found = self.preprocess.open(sample.picture), sound, density, sample.heads(density)
        if self._kept is not None:
            self._kept[number] = found
        return found


def load_crowds(
    reader: Reader,
    *,
    size: Side | tuple[Side, Side] | None = None,  # height and width, or one number for both
    limit: Count | None = None,  # use only so many training pictures
    test_limit: Count | None = None,  # use only so many test pictures
    holdout: Holdout = 0.1,  # validation pictures, if the set has none of its own: a number, or a share below 1
    flip: bool = False,  # random horizontal flip
    mean: tuple[float, ...] | None = None,  # of values in 0..1, per channel; None: measured on the training pictures
    std: tuple[float, ...] | None = None,  # None: measured
    sigma: Sigma = SIGMA,  # deviation of a head in the density map, pixels
    max_pixels: Count = MAX_PIXELS,  # larger pictures are refused before they are decoded
    seed: Seed = 0,  # of the splits
) -> Splits:
    """Data sets of crowds. Nothing is cropped: heads would be lost."""
    prepare = CrowdPrepare(_sides(size), max_pixels=max_pixels)  # refused before anything is read
    found, seen = read_parts(reader)
    every = [cast(Sequence[CrowdSample], part.images) for part in choose(found, limit, holdout, test_limit, seed)]
    prepare = replace(prepare, use_audio=every[0][0].sound is not None)
    share = reader.memory_limit // len(every)
    train, val, test = (
        CrowdSet(samples, found.classes, prepare, reader.task, sigma, k == 0 and flip, share)
        for k, samples in enumerate(every)
    )
    if mean is None or std is None:
        found_mean, found_std = measure(train.pictures())
        mean, std = mean or found_mean, std or found_std
    for one in (train, val, test):
        one.preprocess = replace(prepare, mean=tuple(mean), std=tuple(std))
    return Splits(train, val, test, seen)


def crowd_shape(settings: Mapping[str, Any], stored: Shape | None, use_audio: bool) -> Shape:
    """Of a picture, or of a picture and the sound beside it."""
    return CrowdPrepare(_sides(settings["size"]), use_audio=use_audio).shape


def _sides(size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Height and width of the pictures."""
    if size is None:
        raise DataError("pictures of crowds differ in size.", "Set data.size=[height, width], such as [288, 512].")
    return (size, size) if isinstance(size, int) else size
