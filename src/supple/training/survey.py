"""What is seen of somebody's pictures before a training: how many, of how many classes, how large."""

import statistics
from dataclasses import dataclass

from supple.data._io.decode import header
from supple.data._io.paths import Source
from supple.data.classification.folder import folder
from supple.errors import DataError
from supple.text import some

LOOKED_AT = 200  # pictures whose size is read
VALIDATION, FEW = 2000, 20  # pictures at most, and at least where there are four times as many


@dataclass(frozen=True)
class Survey:
    """What was seen of the pictures."""

    train: int
    test: int
    classes: int
    side: int  # the median of the shorter sides, pixels
    val: int = 0  # in a part of their own

    @property
    def validation(self) -> int:
        """How many of the training pictures validate: a tenth, but enough of a small set to calibrate with."""
        return max(1, min(FEW, self.train // 4), min(VALIDATION, self.train // 10))

    @property
    def learning(self) -> int:
        """How many pictures an epoch has."""
        return self.train if self.val else self.train - self.validation

    def __str__(self) -> str:
        all_of_them = some(self.train + self.val + self.test, "picture")
        return f"{all_of_them} of {self.classes} classes, about {self.side} pixels a side"


def look_at(pictures: str) -> Survey:
    """Counts the pictures, and reads the sizes of some of them."""
    found = folder(root=pictures)
    files: list[Source] = [*found.train.images]
    step = max(1, len(files) // LOOKED_AT)
    sides, unread = [], []
    for source in files[::step]:
        try:
            sides.append(min(header(source)))
        except DataError as error:
            unread.append(error)  # named, counted and left out when they are all read
    if not sides:
        cure = "Paths in a table are relative to its folder." if pictures.lower().endswith(".csv") else "Replace them."
        cause = f"{pictures}: none of {some(len(unread), 'picture')} looked at can be read. {unread[0].cause}"
        raise DataError(cause, cure)
    val = 0 if found.val is None else len(found.val)
    return Survey(len(found.train), len(found.test), len(found.classes), int(statistics.median(sides)), val)
