"""Which samples are for training, validation and test: chosen before any is decoded."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supple.data.parts import Collection, Dataset, Part, Reader
from supple.errors import DataError
from supple.text import some


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


@dataclass(frozen=True)
class Splits:
    train: Dataset
    val: Dataset  # for choosing the epoch; never trained on
    test: Dataset
    fingerprint: str = ""  # of the list of images and targets: the same list gives the same splits

    def __str__(self) -> str:
        repeat = self.train.repeat
        learnt = some(len(self.train) // repeat, self.train.preprocess.kind)
        times = f", each {repeat} times," if repeat > 1 else ","
        return f"{learnt} to train on{times} {len(self.val):,} for validation, {len(self.test):,} to test"


def read_parts(reader: Reader) -> tuple[Collection, str]:
    """The parts of a data set and their fingerprint; refused if another is expected."""
    found: Collection = reader.read()
    return found, must_match(reader, _fingerprint(found))


def must_match(reader: Reader, seen: str) -> str:
    if reader.fingerprint is not None and reader.fingerprint != seen:
        raise DataError(
            f"the images of data set {reader.where} are not those that the run was trained with.",
            "Test images may have been trained on. Restore them, or accept it: data.fingerprint=null.",
        )
    return seen


def _fingerprint(found: Collection) -> str:
    digest = hashlib.sha256()
    for part in (found.train, found.val, found.test):
        if part is not None:
            known = [values for values in (part.targets, part.strata) if values is not None] or [part.split_by]
            for described in dict.fromkeys(map(_bytes, known)):  # labels are their own strata: they count once
                digest.update(described)
            if not isinstance(part.images, Tensor):
                digest.update("\n".join("/".join(Path(str(source)).parts[-2:]) for source in part.images).encode())
    return digest.hexdigest()[:16]


def _bytes(values: Any) -> bytes:
    if isinstance(values, Tensor):
        return bytes(values.contiguous().numpy().tobytes())
    return "\n".join(repr(value) for value in values).encode()


def choose(found: Collection, limit: int | None, holdout: int | float, test_limit: int | None, seed: int) -> list[Part]:
    """The images of train, val and test that are wanted, before any is decoded."""
    check_limits(limit, test_limit)
    train, val, test = found.train, found.val, found.test
    if val is None:
        count = validation_count(holdout, len(train), limit)
        held, rest = set_aside_whole(train.split_by, train.groups, count, seed)
        if len(held) > len(rest):
            raise DataError(
                f"holdout {holdout} keeps {len(held)} of {len(train)} training images for validation.",
                "Lower data.holdout: at most half of the images, as a number or as a share below 1.",
            )
        if len(held) == 0:
            raise DataError(
                f"holdout {holdout} of {len(train)} training images keeps none for validation.",
                "Raise data.holdout: a number of images, or a share below 1. Every class keeps one to train on.",
            )
        train, val = train.pick(rest), train.pick(held)
    if limit is not None:
        train = train.pick(same_number_each(train.split_by, limit, seed))
    if test_limit is not None:
        test = test.pick(same_number_each(test.split_by, test_limit, seed))
    return [train, val, test]


def check_limits(limit: int | None, test_limit: int | None) -> None:
    for word, number in (("limit", limit), ("test_limit", test_limit)):
        if number is not None and number < 1:
            raise DataError(f"{word} is {number}.", f"Set data.{word} to 1 or more, or leave it out.")


def validation_count(holdout: int | float, available: int, limit: int | None) -> int:
    if not holdout > 0 or (holdout >= 1 and not float(holdout).is_integer()):
        raise DataError(
            f"holdout is {holdout}.", "Set data.holdout to a share above 0 and below 1, or a number of images."
        )
    used = available if limit is None else min(limit, available)
    return int(holdout) if holdout >= 1 else max(1, round(holdout * used))
