"""Copycat data (SL-ViT, section 3.3): images of other classes, labelled by a model, mixed with the real ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from supple.data._io.paths import Source, find
from supple.data.classification.folder import image_files
from supple.data.images import ImageSet, open_all
from supple.errors import DataError
from supple.model import FlexibleModel
from supple.sampling import generator


def unlabelled(root: str, limit: int | None, seed: int) -> list[Source]:
    """The images anywhere below a folder or in a zip; with a limit, so many of them drawn by the seed."""
    sources = image_files(find(root))
    if not sources:
        raise DataError(f"{root} has no images.", "Set copycat.root to a folder or a zip of images.")
    if limit is not None and limit < len(sources):
        chosen = torch.randperm(len(sources), generator=generator(seed, len(sources)))[:limit].sort().values
        sources = [sources[i] for i in chosen.tolist()]
    return sources


@torch.inference_mode()
def label(sources: Sequence[Source], model: FlexibleModel, on_progress: Callable[[int], None] | None = None) -> Tensor:
    """The class that the full model says for each image, prepared as for its own training."""
    found = []
    for step in range(0, len(sources), 256):
        some = sources[step : step + 256]
        found.append(model(model.preprocess.normalise(open_all(some, model.preprocess))).argmax(1).cpu())
        if on_progress is not None:
            on_progress(len(some))
    return torch.cat(found)


def mix(real: ImageSet, sources: Sequence[Source], labels: Tensor, ratio: float, seed: int) -> ImageSet:
    """The real images and `ratio` copied ones for each; copied ones are drawn, or repeated where there are too few."""
    wanted = max(1, round(ratio * len(real)))
    order = torch.randperm(len(sources), generator=generator(seed, wanted))
    chosen = order.repeat(-(-wanted // len(sources)))[:wanted]
    return real.joined([sources[i] for i in chosen.tolist()], labels[chosen])


def describe(root: str | Path, labels: Tensor, classes: Sequence[str]) -> str:
    """How the labels fell, most frequent first."""
    counts = torch.bincount(labels, minlength=len(classes))
    top = counts.argsort(descending=True)[:3].tolist()
    words = ", ".join(f"{classes[i]} {100 * int(counts[i]) / len(labels):.0f} %" for i in top)
    return f"{root}: {len(labels)} images labelled ({words}, ...)"
