"""Which samples are trained on, held out and tested: chosen before any is decoded."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from supple.data.parts import Collection, Part
from supple.data.samples import Samples
from supple.data.split import same_number_each, set_aside_whole
from supple.errors import DataError
from supple.text import some


@dataclass(frozen=True)
class Splits:
    train: Samples
    val: Samples  # for choosing the epoch; never trained on
    test: Samples
    fingerprint: str = ""  # of the list of images and labels: the same list gives the same splits

    def __str__(self) -> str:
        repeat = getattr(self.train, "repeat", 1)
        learnt = some(len(self.train) // repeat, self.train.preprocess.kind)
        times = f", each {repeat} times," if repeat > 1 else ","
        return f"{learnt} to train on{times} {len(self.val):,} held out, {len(self.test):,} to test"


def checked_fingerprint(found: Collection, expected: str | None, name: str) -> str:
    """Of the list of images and labels; refused if another is expected."""
    return must_be(expected, _fingerprint(found), name)


def must_be(expected: str | None, seen: str, name: str) -> str:
    if expected is not None and expected != seen:
        raise DataError(
            f"the images of data set {name} are not those that the run was trained with.",
            "Test images may have been trained on. Restore them, or accept it: data.fingerprint=null.",
        )
    return seen


def _fingerprint(found: Collection) -> str:
    digest = hashlib.sha256()
    for part in (found.train, found.val, found.test):
        if part is not None:
            digest.update(part.labels.numpy().tobytes())
            if not isinstance(part.images, Tensor):
                digest.update("\n".join("/".join(Path(str(source)).parts[-2:]) for source in part.images).encode())
    return digest.hexdigest()[:16]


def choose(found: Collection, limit: int | None, holdout: int | float, test_limit: int | None, seed: int) -> list[Part]:
    """The images of train, val and test that are wanted, before any is decoded."""
    train, val, test = found.train, found.val, found.test
    if val is None:
        count = _held_out(holdout, len(train.labels), limit)
        held, rest = set_aside_whole(train.labels, train.groups, count, seed)
        if len(held) > len(rest):
            raise DataError(
                f"holdout {holdout} keeps {len(held)} of {len(train.labels)} training images for validation.",
                "Lower data.holdout: at most half of the images, as a number or as a share below 1.",
            )
        if len(held) == 0:
            raise DataError(
                f"holdout {holdout} of {len(train.labels)} training images keeps none for validation.",
                "Raise data.holdout: a number of images, or a share below 1. Every class keeps one to train on.",
            )
        train, val = train.pick(rest), train.pick(held)
    if limit is not None:
        train = train.pick(same_number_each(train.labels, limit, seed))
    if test_limit is not None:
        test = test.pick(same_number_each(test.labels, test_limit, seed))
    return [train, val, test]


def _held_out(holdout: int | float, available: int, limit: int | None) -> int:
    if not holdout > 0 or (holdout >= 1 and not float(holdout).is_integer()):
        raise DataError(
            f"holdout is {holdout}.", "Set data.holdout to a share above 0 and below 1, or a number of images."
        )
    used = available if limit is None else min(limit, available)
    return int(holdout) if holdout >= 1 else max(1, round(holdout * used))
