"""Choosing images class by class, by seed: the same seed always gives the same choice."""

import torch
from torch import Tensor


def _shuffled(labels: Tensor, seed: int) -> list[Tensor]:
    """The indices of each class, in an order drawn with the seed."""
    rng = torch.Generator().manual_seed(seed)
    groups = [torch.nonzero(labels == label).flatten() for label in range(int(labels.max()) + 1)]
    return [group[torch.randperm(len(group), generator=rng)] for group in groups]


def set_aside(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Take `count` indices, each class in proportion to its size; give (taken, rest), both in ascending order.

    Fractions are settled by largest remainder. Every class keeps at least one image in the rest, so the number taken
    is smaller than `count` when that asks for too much.
    """
    groups = _shuffled(labels, seed)
    wanted = [count * len(group) / len(labels) for group in groups]
    takes = [int(want) for want in wanted]
    by_remainder = sorted(range(len(groups)), key=lambda c: takes[c] - wanted[c])
    for c in by_remainder[: count - sum(takes)]:
        takes[c] += 1
    takes = [min(take, max(0, len(group) - 1)) for take, group in zip(takes, groups)]
    taken = torch.cat([group[:take] for group, take in zip(groups, takes)]).sort().values
    rest = torch.cat([group[take:] for group, take in zip(groups, takes)]).sort().values
    return taken, rest


def set_aside_whole(labels: Tensor, groups: Tensor | None, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """`set_aside` by groups, each of one label: what has the same number in `groups` stays on one side.

    As many groups are taken as `count` is worth on average, at least one. Without groups every index is its own.
    """
    if groups is None:
        return set_aside(labels, count, seed)
    which, place = torch.unique(groups, return_inverse=True)
    labels_of_groups = torch.empty_like(which)
    labels_of_groups[place] = labels
    taken, _ = set_aside(labels_of_groups, max(1, round(count * len(which) / len(labels))), seed)
    inside = torch.isin(place, taken)
    return inside.nonzero().flatten(), (~inside).nonzero().flatten()


def same_number_each(labels: Tensor, count: int, seed: int) -> Tensor:
    """Take `count` indices, the same number of each class (one more of the first classes if it does not divide).

    A class that has fewer gives all it has, and the others make up for it. In ascending order.
    """
    groups = _shuffled(labels, seed)
    takes = [0] * len(groups)
    left = min(count, len(labels))
    while left:
        open_classes = [c for c, group in enumerate(groups) if takes[c] < len(group)]
        each = max(1, left // len(open_classes))
        for c in open_classes:
            more = min(each, len(groups[c]) - takes[c], left)
            takes[c] += more
            left -= more
    return torch.cat([group[:take] for group, take in zip(groups, takes)]).sort().values
