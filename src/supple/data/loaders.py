"""Data of any kind as batches (x, y): a data set of supple's, a torch data set, or a loader that makes its own.

`as_batches` looks at what an object can do, not at what it is.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from supple.data.images import one_ahead
from supple.data.parts import Dataset
from supple.errors import DataError
from supple.sampling import generator, seed_of

Batch = tuple[Any, Any]  # inputs and targets


class Batches(Protocol):
    """What training and evaluation ask of data."""

    enters_anywhere: bool  # whether an epoch can be entered, and shared among processes, at any step

    def steps(self, size: int) -> int: ...  # of an epoch, with so many samples each
    def example(self, size: int) -> Batch: ...
    def training(
        self, seed: int, epoch: int, first: int, size: int, share: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]: ...  # of an epoch, from a step on; of every batch the share of a process: which, of how many
    def in_order(self, size: int) -> Iterator[tuple[Any, Any, int]]: ...  # each with its number of samples
    def drawn(
        self, count: int, size: int, seed: int, augmented: bool = False
    ) -> Iterator[Batch]: ...  # about so many samples; augmented: as in training, where the data can be


def as_batches(data: Any) -> Batches:
    """What has `batch(indices, rng)` is asked for it; samples by index are collated as torch does; others are iterated.

    As for torch's DataLoader, a list is a list of samples. A loader needs a length and must start anew every time.
    """
    if isinstance(data, (Indexed, Stream)):
        return data
    if hasattr(data, "batch"):
        return Indexed(data)
    if hasattr(data, "__getitem__"):
        return Indexed(Collated(data))
    return Stream(data)


class Indexed:
    """A data set whose samples are found by index: in an order of its own in every epoch."""

    enters_anywhere = True

    def __init__(self, data: "Dataset | Collated") -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def steps(self, size: int) -> int:
        return max(1, len(self.data) // size)  # what is left over waits for the next epoch

    def example(self, size: int) -> Batch:
        return self.data.batch(torch.arange(min(size, len(self.data))))

    def training(
        self, seed: int, epoch: int, first: int, size: int, share: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        order = torch.randperm(len(self.data), generator=generator(seed, epoch))
        rank, world = share
        workers, slow = getattr(self.data, "workers", 0), getattr(self.data, "slow", False)
        cheap = not workers and not slow and not isinstance(self.data, Collated)

        def read(step: int) -> Batch:
            indices = order[step * size : (step + 1) * size]
            if rank == 0 and world == 1:
                return self.data.batch(indices, generator(seed, epoch, step))
            if cheap:  # every process makes the whole batch: its share has changed as it does in a single process
                x, y = self.data.batch(indices, generator(seed, epoch, step))
                if isinstance(x, Tensor) and isinstance(y, Tensor):
                    return x[rank::world].contiguous(), y[rank::world].contiguous()
            return self.data.batch(indices[rank::world], generator(seed, epoch, step, rank))

        steps = range(first, self.steps(size))
        return in_processes(read, steps, workers) if workers else one_ahead(read, steps, slow)

    def in_order(self, size: int) -> Iterator[tuple[Any, Any, int]]:
        size = min(size, getattr(self.data, "at_once", None) or size)  # large pictures come a few at a time
        for indices in torch.split(torch.arange(len(self.data)), size):
            yield *self.data.batch(indices), len(indices)

    def drawn(self, count: int, size: int, seed: int, augmented: bool = False) -> Iterator[Batch]:
        rng = generator(seed, -1)
        order = torch.randperm(len(self.data), generator=rng)[:count]
        how = rng if augmented else None
        return (self.data.batch(indices, how) for indices in torch.split(order, size) if len(indices) > 1)


class Picked:
    """Some samples of a data set."""

    def __init__(self, data: "Dataset | Collated", indices: Tensor) -> None:
        self.data, self.indices = data, indices
        self.at_once: int | None = getattr(data, "at_once", None)

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> Batch:
        return self.data.batch(self.indices[indices], rng)


def at_most(data: Any, count: int) -> Any:
    """So many samples, drawn at random but always the same ones; all of them, where there are no more, or of a loader,
    whose order is its own."""
    held = as_batches(data)
    if not isinstance(held, Indexed) or len(held.data) <= count:
        return data
    return Picked(held.data, torch.randperm(len(held.data), generator=generator(0, -1))[:count])


def in_processes(read: Callable[[int], Batch], steps: Sequence[int], workers: int) -> Iterator[Batch]:
    """`map` in processes that read ahead; the order stays."""
    loader: DataLoader[Batch] = DataLoader(
        _Read(read, steps),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=min(workers, len(steps)),
        worker_init_fn=_leave_signals_alone,
        prefetch_factor=2 if steps else None,
    )
    return iter(loader)


class _Read:
    """A data set whose samples are whole batches."""

    def __init__(self, read: Callable[[int], Batch], steps: Sequence[int]) -> None:
        self.read, self.steps = read, steps

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, place: int) -> Batch:
        return self.read(self.steps[place])


def _leave_signals_alone(worker: int) -> None:
    """Ctrl-C is for the training, which ends its step first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Collated:
    """A torch data set of samples (x, y). What it draws from torch's global generator is a function of the batch."""

    slow = False  # not read ahead: a thread would draw from that generator while the model does

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return _length(self.data)

    def batch(self, indices: Tensor, rng: torch.Generator | None = None) -> Batch:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0 if rng is None else rng.initial_seed())
            return _pair(default_collate([self.data[index] for index in indices.tolist()]))


class Stream:
    """A loader of batches (x, y), taken as they come: one pass is an epoch, which can only be entered at its start."""

    enters_anywhere = False

    def __init__(self, loader: Any) -> None:
        if not hasattr(loader, "__iter__") or hasattr(loader, "__next__"):
            cure = "Give a data set, or a loader such as torch's DataLoader, which starts anew for every epoch."
            raise DataError(f"a {type(loader).__name__} cannot be iterated once for every epoch.", cure)
        self.loader, self.length = loader, _length(loader)

    def steps(self, size: int) -> int:
        return self.length

    def example(self, size: int) -> Batch:
        return next(self._batches())

    def training(
        self, seed: int, epoch: int, first: int, size: int, share: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        assert first == 0
        assert share == (0, 1)
        self._seed(seed, epoch)
        return self._batches()

    def in_order(self, size: int) -> Iterator[tuple[Any, Any, int]]:
        return ((x, y, _count(x)) for x, y in self._batches())

    def drawn(self, count: int, size: int, seed: int, augmented: bool = False) -> Iterator[Batch]:
        self._seed(seed, -1)
        seen = 0
        for x, y in self._batches():
            if seen >= count:
                return
            if _count(x) > 1:
                seen += _count(x)
                yield x, y

    def _seed(self, *parts: int) -> None:
        """A loader that shuffles draws its order from torch's global generator, or from one of its own."""
        start = seed_of(*parts)
        torch.manual_seed(start)
        if isinstance(getattr(self.loader, "generator", None), torch.Generator):
            self.loader.generator.manual_seed(start)

    def _batches(self) -> Iterator[Batch]:
        given = 0
        for batch in islice(self.loader, self.length):
            given += 1
            yield _pair(batch)
        if given < self.length:
            cause = f"a {type(self.loader).__name__} of length {self.length} gave {given} batches."
            raise DataError(cause, "Its length must be the number of its batches, and it must start anew every time.")


def _length(data: Any) -> int:
    try:
        found = len(data)
    except TypeError:
        cure = "Give one with a length, which tells how long an epoch is."
        raise DataError(f"a {type(data).__name__} has no length.", cure) from None
    if not found:
        raise DataError(f"a {type(data).__name__} is empty.", "Give at least one sample.")
    return found


def _pair(batch: Any) -> Batch:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise DataError(f"a batch is a {type(batch).__name__}, not a pair.", "Give inputs and targets: (x, y).")
    return batch[0], batch[1]


def _count(x: Any) -> int:
    """Samples of a batch: inputs of several kinds, such as picture and sound, are a tuple."""
    return _count(x[0]) if isinstance(x, tuple) else len(x)
