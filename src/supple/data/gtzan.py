"""GTZAN: music of ten genres, clips of 30 seconds in a folder per genre."""

from contextlib import suppress
from dataclasses import replace
from itertools import chain

import torch

from supple.data.folder import class_part, split_by_seed, wanted_root
from supple.data.parts import Collection, Part, Request
from supple.data.sound import SUFFIXES, Piece, sound_seconds
from supple.data.source import Source
from supple.data.tree import files_below, unwrapped
from supple.errors import DataError


def gtzan(request: Request) -> Collection:
    """Every clip cut into pieces of `data.seconds` (ten of 3 seconds); a clip is on one side of a split as a whole.

    Departure: the paper splits the pieces (section 4.1.3), which puts pieces of one song on both sides. Its figures
    can therefore not be compared with ours to the last digit.
    """
    assert request.hearing is not None
    root = wanted_root(request, "gtzan")
    clips, classes = class_part(*unwrapped(*files_below(root, SUFFIXES)), str(root), "sound")
    cut = [_pieces(clip, request.hearing.seconds) for clip in clips.images]
    number = torch.tensor([len(pieces) for pieces in cut])
    clip_of_piece = torch.arange(len(cut)).repeat_interleave(number)
    pieces = Part(list(chain.from_iterable(cut)), clips.labels[clip_of_piece], clip_of_piece)
    return replace(split_by_seed(pieces, classes, request), channels=request.hearing.channels)


def _pieces(clip: Source, seconds: float) -> list[Piece]:
    """Pieces side by side; the last may lack up to half its length (some clips have 29.9 s), or else is dropped."""
    whole = seconds  # of a clip that cannot be read: it is counted and reported when its samples are wanted
    with suppress(DataError):
        whole = sound_seconds(clip)
    return [Piece(clip, number * seconds, seconds) for number in range(max(1, round(whole / seconds)))]
