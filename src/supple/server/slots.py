"""Inputs in shared memory: a decoder writes them, a worker reads them, and the front passes numbers only.

A fixed number of slots bounds the queue. A slot is kept until its sample has an answer, so that a sample whose worker
died is run again from it. Where Linux can, the memory has no file (so a container's small /dev/shm does not matter) and
is gone with the last process that holds it.
"""

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from supple.errors import SuppleError
from supple.inference.inputs import parts_of
from supple.server.requests import Array

ALIGNED = 64  # bytes: every slot, and what lies in one, begins at a multiple of it

Shape = tuple[Any, ...]  # of one sample: its sides, or the shapes of its parts


def bytes_for(shape: Shape) -> int:
    """What a slot needs for one sample."""
    return ALIGNED + sum(_padded(4 * math.prod(sides)) for sides in parts_of(shape))


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class Slots:
    """Memory for so many samples, large enough for the largest of some shapes. `name` opens it in another process of
    the same user, as pickling does; only the process that made it takes slots and gives them back."""

    def __init__(self, count: int, shapes: Mapping[str, Shape]) -> None:
        if count < 1:
            raise SuppleError(f"{count} slots for inputs.", "Give at least one.")
        self.count, self.bytes_each = count, max(map(bytes_for, shapes.values()))
        self._free = list(range(count - 1, -1, -1))
        self._descriptor, self.name, self._owner = *_memory(count * self.bytes_each), os.getpid()
        self._memory = mmap.mmap(self._descriptor, count * self.bytes_each)

    @classmethod
    def attach(cls, name: str, count: int, bytes_each: int) -> "Slots":
        """The same memory, in another process."""
        made = cls.__new__(cls)
        made.count, made.bytes_each, made.name, made._free, made._owner = count, bytes_each, name, [], 0
        made._descriptor = os.open(name, os.O_RDWR)
        made._memory = mmap.mmap(made._descriptor, count * bytes_each)
        return made

    def __reduce__(self) -> Any:
        return Slots.attach, (self.name, self.count, self.bytes_each)

    # --- whose a slot is ----------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int | None:
        """A slot that nobody uses; None: there is none."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        assert slot not in self._free, f"slot {slot} was given back twice"
        self._free.append(slot)

    # --- what is in it ------------------------------------------------------------------------------------------------

    def fits(self, shape: Shape) -> bool:
        return bytes_for(shape) <= self.bytes_each

    def write(self, slot: int, parts: Sequence[Array | None]) -> None:
        """One sample's input, without a batch axis; None: a part that is not there."""
        begin = slot * self.bytes_each
        there = bytes(part is not None for part in parts)
        self._memory[begin : begin + ALIGNED] = there.ljust(ALIGNED, b"\0")
        begin, end = begin + ALIGNED, begin + self.bytes_each
        for part in parts:
            if part is not None:
                size = 4 * part.size
                if begin + size > end:
                    raise ValueError(f"an input of {[None if p is None else p.shape for p in parts]} fits no slot")
                np.frombuffer(self._memory, np.float32, part.size, begin).reshape(part.shape)[...] = part
                begin += _padded(size)

    def read(self, slot: int, shape: Shape) -> tuple[Array | None, ...]:
        """Views of what was written, of a sample of this shape; to be used before the slot is given back. A missing
        part takes no room."""
        begin, found = slot * self.bytes_each, list[Array | None]()
        there = self._memory[begin : begin + ALIGNED]
        begin += ALIGNED
        for place, sides in enumerate(parts_of(shape)):
            if not there[place]:
                found.append(None)
                continue
            size = math.prod(sides)
            found.append(np.frombuffer(self._memory, np.float32, size, begin).reshape(sides))
            begin += _padded(4 * size)
        return tuple(found)

    def close(self) -> None:
        """Views that somebody still holds keep the memory until they are gone."""
        with contextlib.suppress(BufferError):
            self._memory.close()
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        if self._owner == os.getpid() and not hasattr(os, "memfd_create"):
            with contextlib.suppress(OSError):
                os.unlink(self.name)


def _memory(size: int) -> tuple[int, str]:
    """A descriptor, and a path by which other processes open the same."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("supple-slots")
        name = f"/proc/{os.getpid()}/fd/{descriptor}"
    else:
        descriptor, name = tempfile.mkstemp(prefix="supple-slots-")
    os.ftruncate(descriptor, size)
    return descriptor, name
