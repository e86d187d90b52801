"""Folders of class folders of sounds, or a zip of one.

Any; GTZAN, whose clips are cut into pieces; ESC-50 and ESC-10, environmental sounds of 5 seconds in five folds.
"""

import csv
import re
from contextlib import suppress
from itertools import chain
from typing import Annotated

import torch
from pydantic import Field

from supple.data._io.paths import Source, files_below, read_bytes, unwrapped, wanted
from supple.data.audio.sound import SUFFIXES, Piece, sound_seconds
from supple.data.classification.folder import ROOT, class_folders, class_part, split_by_seed
from supple.data.parts import Collection, labelled
from supple.data.settings import Seconds, Seed, Share
from supple.errors import DataError

TABLE = "esc50.csv"
FOLDS = 5
Fold = Annotated[int, Field(ge=1, le=FOLDS)]
NAMED = re.compile(r"fold([1-5])_")


def sounds(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
    test_share: Share = 0.2,  # of the sounds, if there is no test part
    seed: Seed = 0,  # of the splits
) -> Collection:
    """Class folders of sounds as they are, or split by seed if there is no test part. See `class_folders`."""
    return class_folders("sounds", root, SUFFIXES, "sound", test_share, seed)


def gtzan(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
    seconds: Seconds = 3.0,  # of a piece
    test_share: Share = 0.2,  # of the pieces
    seed: Seed = 0,  # of the splits
) -> Collection:
    """GTZAN: clips of music in ten genres.

    Every clip is cut into pieces of `seconds` (ten of 3 seconds); a clip is on one side of a split as a whole.
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


def esc(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
    fold: Fold = FOLDS,  # to test on
) -> Collection:
    """ESC-50 and ESC-10: sounds of the surroundings, five seconds each.

    The official folder (audio/, meta/esc50.csv), or class folders of files named fold<1-5>_<name>. One fold
    is the test part. Takes of one recording share the second word of their names (1-172649-B-40.wav) and stay together
    when some become validation sounds.
    """
    place = wanted(root, "esc", ROOT)
    if not 1 <= fold <= FOLDS:
        raise DataError(f"fold is {fold}.", f"Set data.fold between 1 and {FOLDS}.")
    everything, _ = files_below(place, (*SUFFIXES, TABLE))
    tables = [source for path, source in everything.items() if path[-1] == TABLE]
    sounds = {path: source for path, source in everything.items() if path[-1] != TABLE}
    rows = _official(sounds, tables[0]) if tables else _by_name(sounds)  # file, class, fold, recording
    if len({row[1] for row in rows}) < 2:
        layout = f"Expected audio/ and meta/{TABLE}, or <class>/fold<1-5>_<name>.wav."
        raise DataError(f"{place} does not hold sounds of two classes.", layout)
    classes = tuple(sorted({row[1] for row in rows}))
    recordings = {recording: number for number, recording in enumerate(sorted({row[1:] for row in rows}))}
    part = labelled(
        [row[0] for row in rows],
        torch.tensor([classes.index(row[1]) for row in rows]),
        torch.tensor([recordings[row[1:]] for row in rows]),
    )
    tested = torch.tensor([row[2] == fold for row in rows])
    if not 0 < int(tested.sum()) < len(rows):
        raise DataError(f"{place}: fold {fold} holds {int(tested.sum())} of {len(rows)} sounds.", "Set data.fold.")
    train, test = part.pick((~tested).nonzero().flatten()), part.pick(tested.nonzero().flatten())
    return Collection(train=train, test=test, classes=classes)


Row = tuple[Source, str, int, str]


def _official(sounds: dict[tuple[str, ...], Source], table: Source) -> list[Row]:
    by_name = {path[-1]: source for path, source in sounds.items()}
    try:
        lines = list(csv.DictReader(read_bytes(table).decode().splitlines()))
        wanted = {line["filename"]: (line["category"], int(line["fold"])) for line in lines}
    except (KeyError, ValueError, OSError) as problem:
        raise DataError(f"{TABLE} cannot be read: {problem}.", "Restore it from ESC-50.") from None
    missing = sorted(set(wanted) - set(by_name))
    if missing:
        raise DataError(f"{len(missing)} files of {TABLE} are missing, such as {missing[0]}.", "Restore them.")
    return [(by_name[name], *wanted[name], _recording(name)) for name in sorted(wanted)]


def _by_name(sounds: dict[tuple[str, ...], Source]) -> list[Row]:
    sounds, _ = unwrapped(sounds, set())
    rows = []
    for path in sorted(sounds):
        named = NAMED.match(path[-1])
        if named is None or len(path) != 2:
            raise DataError(f"{'/'.join(path)} is not <class>/fold<1-5>_<name>.", f"Name it so, or add meta/{TABLE}.")
        rows.append((sounds[path], path[0], int(named[1]), _recording(path[-1])))
    return rows


def _recording(name: str) -> str:
    words = name.split("-")
    return words[1] if len(words) > 2 else name
