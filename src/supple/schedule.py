"""Learning rates and early stopping as pure functions of progress and history: nothing to save, nothing to restore."""

import math
from collections.abc import Sequence

from supple.recipe import Train


def learning_rate(train: Train, progress: float, history: Sequence[float] = ()) -> float:
    """The rate after `progress` epochs (a fraction inside an epoch), given the validation losses so far."""
    epoch = int(progress)
    factor = 1.0
    if train.schedule == "cosine":
        factor = 0.5 * (1 + math.cos(math.pi * min(1.0, progress / train.epochs)))
    elif train.schedule == "step":
        factor = train.gamma ** sum(epoch >= milestone for milestone in train.milestones)
    elif train.schedule == "exponential":
        factor = train.gamma**epoch
    elif train.schedule == "plateau":
        factor = train.gamma ** plateaus(history, train.patience)
    if progress < train.warmup:
        factor *= progress / train.warmup
    return train.lr * factor


def plateaus(history: Sequence[float], patience: int) -> int:
    """How often the loss went `patience` epochs without a new best; the count starts anew after each time."""
    best, waited, found = math.inf, 0, 0
    for loss in history:
        if loss < best:
            best, waited = loss, 0
        else:
            waited += 1
            if waited >= patience:
                found, waited = found + 1, 0
    return found


def should_stop(history: Sequence[float], patience: int) -> bool:
    """Whether the last `patience` epochs brought no new best (patience 0: never)."""
    if not patience or not history:
        return False
    return len(history) - 1 - min(range(len(history)), key=history.__getitem__) >= patience
