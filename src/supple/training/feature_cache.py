"""What the branches of a frozen backbone read, computed once and kept on disk (fp16, memory-mapped).

A folder of features belongs to one backbone, its weights, its cuts and one set of images; the name says which.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from supple.data.augment import Augmentation
from supple.data.images import ImageSet
from supple.data.parts import Dataset
from supple.data.splits import Splits
from supple.errors import RecipeError, SaveError
from supple.files import locked, write
from supple.methods.staged import Features
from supple.model import FlexibleModel, Shape
from supple.progress import counting
from supple.recipe import Recipe
from supple.text import say, size

Array = np.ndarray[Any, np.dtype[np.float16]]
Compute = Callable[[Any], Features]  # see FlexibleModel.cached_features
DONE = "done.json"
BATCH = 128


class FeatureSet:
    """Images as features: a data set like any other, so that the one training loop serves both."""

    slow, workers = False, 0
    at_once: int | None = None
    repeat = 1

    def __init__(self, arrays: Sequence[Array], images: ImageSet) -> None:
        self.arrays, self.targets = arrays, images.targets
        self.task, self.classes, self.preprocess = images.task, images.classes, images.preprocess

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> Shape:
        """Of what is read at each cut."""
        return tuple(array.shape[1:] for array in self.arrays)

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Features, Any]:
        rows = indices.numpy()
        return Features(tuple(torch.from_numpy(array[rows]).float() for array in self.arrays)), self.targets[indices]


def cached(recipe: Recipe, model: FlexibleModel, splits: Splits, quiet: bool = False) -> tuple[Dataset, Dataset]:
    """The training and validation images as features, computed now if the folder does not have them."""
    folder = recipe.train.cache_features
    assert folder is not None
    features = model.cached_features()
    if features is None or model.backbone is None:
        raise RecipeError(
            "train.cache_features is set, but the backbone learns: what the branches read would change.",
            "Set method.way=classifier_wise, or leave train.cache_features out.",
        )
    if not (isinstance(splits.train, ImageSet) and isinstance(splits.val, ImageSet)):
        raise RecipeError(f"train.cache_features is for classes, not for {recipe.data.name}.", "Leave it out.")
    used = splits.train.augmentation.used
    if used and not recipe.train.cache_augmented:
        raise RecipeError(
            f"train.cache_features is set, but images are augmented (data.{', data.'.join(used)}).",
            "Leave the augmentation out, or say train.cache_augmented=true: the images are then taken as they are.",
        )
    place = Path(folder) / digest(recipe, model.backbone)
    with held(place):
        if not (place / DONE).is_file():
            model.eval()
            compute(features, {"train": splits.train, "val": splits.val}, place, quiet)
        elif not quiet:
            say(f"features: {place}, from an earlier run")
    return open_part(place, "train", splits.train), open_part(place, "val", splits.val)


@contextmanager
def held(place: Path) -> Iterator[None]:
    """One training at a time looks after a folder of features; others wait."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with locked(place / ".lock"):
            yield
    except OSError as error:
        cure = "Choose another train.cache_features."
        raise SaveError(f"{place} cannot be written: {error.strerror}.", cure) from None


def digest(recipe: Recipe, backbone: nn.Module) -> str:
    """The name of the folder: of the backbone's weights, the cuts and the images."""
    document = recipe.resolved()
    facts = {key: document.get(key) for key in ("backbone", "copycat")} | {"at": document["method"].get("at")}
    unrelated = ("batch_size", "test_limit", "root", "workers", *(field.name for field in fields(Augmentation)))
    facts["data"] = {key: value for key, value in document["data"].items() if key not in unrelated}
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, value in sorted(backbone.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def compute(features: Compute, parts: dict[str, ImageSet], place: Path, quiet: bool) -> None:
    """Runs the backbone over the images and writes the tensors at the cuts; says first how large they will be."""
    one = features(parts["train"].batch(torch.arange(1))[0])
    count = sum(len(part) for part in parts.values())
    total = 2 * count * sum(cut.numel() for cut in one.outputs)
    say(f"features: {size(total)} for {count} images in {place}")
    free = shutil.disk_usage(place).free
    if total > 0.9 * free:
        raise SaveError(
            f"the features need {size(total)}, and {place} has {size(free)} left.",
            "Use fewer images (data.limit), cut later, or leave train.cache_features out.",
        )
    with counting(count, "features", quiet=quiet) as on_progress:
        for name, part in parts.items():
            arrays = [
                np.lib.format.open_memmap(_file(place, name, k), "w+", np.float16, (len(part), *cut.shape[1:]))
                for k, cut in enumerate(one.outputs)
            ]
            fill(features, part, arrays, on_progress)
    write(place / DONE, json.dumps({"images": count, "bytes": total}))


def fill(features: Compute, part: ImageSet, arrays: Sequence[Array], on_progress: Callable[[int], None]) -> None:
    for indices in torch.split(torch.arange(len(part)), BATCH):
        found = features(part.batch(indices)[0])
        for array, cut in zip(arrays, found.outputs):
            half = cut.half()
            if not half.isfinite().all():
                raise RecipeError(
                    "what the branches read is too large for 16-bit numbers (over 65,504).",
                    "Leave train.cache_features out.",
                )
            array[int(indices[0]) : int(indices[-1]) + 1] = half.numpy()
        on_progress(len(indices))
    for array in arrays:
        array.flush()  # type: ignore[attr-defined]


def open_part(place: Path, name: str, images: ImageSet) -> FeatureSet:
    count = len(list(place.glob(f"{name}-*.npy")))
    arrays = [np.load(_file(place, name, k), mmap_mode="r", allow_pickle=False) for k in range(count)]
    return FeatureSet(arrays, images)


def _file(place: Path, part: str, cut: int) -> Path:
    return place / f"{part}-{cut + 1}.npy"
