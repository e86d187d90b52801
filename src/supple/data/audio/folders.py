"""Folders of class folders of sounds, or a zip of one: any, and GTZAN, whose clips are cut into pieces."""

from contextlib import suppress
from itertools import chain

import torch

from supple.data._io.paths import wanted
from supple.data._io.tree import Source, files_below, unwrapped
from supple.data.audio.sound import SUFFIXES, Piece, sound_seconds
from supple.data.classification.folder import ROOT, class_folders, class_part, split_by_seed
from supple.data.parts import Collection, labelled
from supple.data.settings import Seconds, Seed, Share
from supple.errors import DataError


def gtzan(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
    seconds: Seconds = 3.0,  # of a piece
    test_share: Share = 0.2,  # of the pieces
    seed: Seed = 0,  # of the splits
) -> Collection:
    """Every clip cut into pieces of `seconds` (ten of 3 seconds); a clip is on one side of a split as a whole.

    Departure: the paper splits the pieces (section 4.1.3), which puts pieces of one song on both sides. Its figures
    can therefore not be compared with ours to the last digit.
    """
    place = wanted(root, "gtzan", ROOT)
    clips, classes = class_part(*unwrapped(*files_below(place, SUFFIXES)), str(place), "sound")
    cut = [_pieces(clip, seconds) for clip in clips.images]
    number = torch.tensor([len(pieces) for pieces in cut])
    clip_of_piece = torch.arange(len(cut)).repeat_interleave(number)
    pieces = labelled(list(chain.from_iterable(cut)), clips.targets[clip_of_piece], clip_of_piece)
    return split_by_seed(pieces, classes, test_share, seed)


def _pieces(clip: Source, seconds: float) -> list[Piece]:
    """Pieces side by side; the last may lack up to half its length (some clips have 29.9 s), or else is dropped."""
    whole = seconds  # of a clip that cannot be read: it is counted and reported when its samples are wanted
    with suppress(DataError):
        whole = sound_seconds(clip)
    return [Piece(clip, number * seconds, seconds) for number in range(max(1, round(whole / seconds)))]


def sounds(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
    test_share: Share = 0.2,  # of the sounds, if there is no test part
    seed: Seed = 0,  # of the splits
) -> Collection:
    """Class folders of sounds as they are, or split by seed if there is no test part: see `class_folders`."""
    return class_folders("sounds", root, SUFFIXES, "sound", test_share, seed)
