"""Several processes that train one model: which this is, the mean over all, and that none waits for one that ended."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning_fabric import Fabric
from torch import Tensor

from supple.errors import TrainError
from supple.text import one_line


def is_main() -> bool:
    """Whether this is the process that was started first: the only one, or the one that writes."""
    names = ("RANK",) if "RANK" in os.environ else ("SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in names)


def over_all(fabric: Fabric, values: Tensor) -> Tensor:
    """The mean over all processes, which have equal shares of every batch."""
    if fabric.world_size == 1:
        return values.detach()
    found = fabric.all_reduce(values.detach().clone(), reduce_op="mean")
    assert isinstance(found, Tensor)
    return found


@contextmanager
def together(fabric: Fabric, again: str) -> Iterator[None]:
    """Says so when another process has ended, which nobody waits for."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or "gloo" in str(error).lower()
        if fabric.world_size == 1 or not lost:
            raise
        cause = f"another process of this training has ended, or cannot be reached ({one_line(error, 80)})."
        raise TrainError(cause, f"Find out why; then resume it: {again}.") from error
