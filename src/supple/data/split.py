"""Choosing samples stratum by stratum, by seed: the same seed always gives the same choice.

Of samples with a class each, the classes are the strata.
"""

import torch
from torch import Tensor


def _shuffled(strata: Tensor, seed: int) -> list[Tensor]:
    """The indices of each stratum, in an order drawn with the seed."""
    rng = torch.Generator().manual_seed(seed)
    groups = [torch.nonzero(strata == stratum).flatten() for stratum in range(int(strata.max()) + 1)]
    return [group[torch.randperm(len(group), generator=rng)] for group in groups]


def set_aside(strata: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Take `count` indices, each stratum in proportion to its size; give (taken, rest), both in ascending order.

    Fractions are settled by largest remainder. Every stratum keeps at least one index in the rest, so the number taken
    is smaller than `count` when that asks for too much.
    """
    groups = _shuffled(strata, seed)
    wanted = [count * len(group) / len(strata) for group in groups]
    takes = [int(want) for want in wanted]
    by_remainder = sorted(range(len(groups)), key=lambda c: takes[c] - wanted[c])
    for c in by_remainder[: count - sum(takes)]:
        takes[c] += 1
    takes = [min(take, max(0, len(group) - 1)) for take, group in zip(takes, groups)]
    taken = torch.cat([group[:take] for group, take in zip(groups, takes)]).sort().values
    rest = torch.cat([group[take:] for group, take in zip(groups, takes)]).sort().values
    return taken, rest


def set_aside_whole(strata: Tensor, groups: Tensor | None, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """`set_aside` by groups, each of one stratum: what has the same number in `groups` stays on one side.

    As many groups are taken as `count` is worth on average, at least one. Without groups every index is its own.
    """
    if groups is None:
        return set_aside(strata, count, seed)
    which, place = torch.unique(groups, return_inverse=True)
    strata_of_groups = torch.empty_like(which)
    strata_of_groups[place] = strata
    taken, _ = set_aside(strata_of_groups, max(1, round(count * len(which) / len(strata))), seed)
    inside = torch.isin(place, taken)
    return inside.nonzero().flatten(), (~inside).nonzero().flatten()


def same_number_each(strata: Tensor, count: int, seed: int) -> Tensor:
    """Take `count` indices, the same number of each stratum (one more of the first if it does not divide).

    A stratum that has fewer gives all it has, and the others make up for it. In ascending order.
    """
    groups = _shuffled(strata, seed)
    takes = [0] * len(groups)
    left = min(count, len(strata))
    while left:
        unfinished = [c for c, group in enumerate(groups) if takes[c] < len(group)]
        each = max(1, left // len(unfinished))
        for c in unfinished:
            more = min(each, len(groups[c]) - takes[c], left)
            takes[c] += more
            left -= more
    return torch.cat([group[:take] for group, take in zip(groups, takes)]).sort().values
