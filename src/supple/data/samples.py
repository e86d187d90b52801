"""What a data set offers to all that train, score and build models, whatever its task."""

from typing import Any, Protocol

import torch
from torch import Tensor

from supple.data.source import Source
from supple.model import Shape


class Prepare(Protocol):
    """From a file to what the network sees; saved with a model, so that serving does what training did."""

    kind: str  # of the files, in a word: image, sound
    endings: tuple[str, ...]  # of the files looked for in a folder

    def input(self, source: Source) -> Any: ...  # a batch of one
    def blank(self) -> Any: ...  # a batch of one, decoded from a small file of nothing: for warming up
    def facts(self) -> dict[str, Any]: ...  # settings of `data` that were measured, to be written down
    def to_json(self) -> dict[str, Any]: ...


class ArrayPrepare(Prepare, Protocol):
    """One that engines can use: it gives numpy arrays, and needs torch only where its own arithmetic does."""

    def arrays(self, source: Source) -> tuple[Any, ...]: ...  # batches of one; None: a part that is not there
    def blank_file(self) -> bytes: ...  # for warming up


class Dataset(Protocol):
    """One part of a data set. `batch(indices, rng)` gives inputs and targets; with `rng` they are augmented."""

    task: str  # a key of supple.tasks.TASKS
    classes: tuple[str, ...]
    preprocess: Any  # a Prepare

    @property
    def shape(self) -> Shape: ...  # of one input
    @property
    def slow(self) -> bool: ...  # whether the next batch is worth reading ahead
    @property
    def at_once(self) -> int | None: ...  # how many samples an evaluation may take together; None: any number
    @property
    def repeat(self) -> int: ...  # how often every sample comes in an epoch
    def __len__(self) -> int: ...
    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> tuple[Any, Any]: ...
