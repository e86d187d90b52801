"""Crowds: pictures in `images/`, their heads in `points.json`, perhaps a sound for each; and DISCO as it is published.

A folder, or a zip of one.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from supple.data._io.decode import SUFFIXES as IMAGES
from supple.data._io.decode import header
from supple.data._io.paths import Files, Source, files_below, read_bytes, wanted
from supple.data.audio.sound import SUFFIXES as SOUNDS
from supple.data.classification.folder import split_by_seed
from supple.data.crowd.dataset import CrowdSample
from supple.data.parts import Collection, Part
from supple.data.settings import Seed, Share
from supple.errors import DataError
from supple.text import one_line, say

POINTS = "points.json"
LARGEST = 100_000_000  # bytes of the list of points
FARTHEST = 1e18  # pixels that a number may stand for
LAYOUT = f'Expected images/NAME.jpg and {POINTS}: {{"images": {{"NAME.jpg": {{"points": [[x, y], ...]}}}}}}.'
ROOT = "Set data.root to its folder, or a zip of it."
CLASSES = ("people",)
PARTS = ("train", "val", "test")


def crowd(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
    test_share: Share = 0.2,  # of the pictures, if the list names no split
    seed: Seed = 0,  # of the splits
) -> Collection:
    """Pictures of crowds with the places of the heads, perhaps with sounds.

    The split that the list names, or one by seed if it names none.
    A picture's sound lies beside it under the same name, or at the same place below `sounds/`. Either every picture has
    one, or none.
    """
    place = wanted(root, "crowd", ROOT)
    files, _ = files_below(place, (*IMAGES, *SOUNDS, ".json"))
    lists = sorted((path for path in files if path[-1] == POINTS), key=len)
    if not lists:
        raise DataError(f"{place} has no {POINTS}.", LAYOUT)
    base = lists[0][:-1]
    where = f"{place}/{'/'.join(lists[0])}"
    entries = read_list(files[lists[0]], where)
    sounds = sounds_below(files, (*base, "sounds")) | sounds_below(files, (*base, "images"))
    samples, parts = [], []
    for name, entry in entries.items():
        path = (*base, "images", *name.split("/"))
        if path not in files:
            raise DataError(f"{where} names {name}, but there is no images/{name}.", "Add it, or remove its entry.")
        sound = sounds.get(str(Path(name).with_suffix("")))
        samples.append(replace(crowd_sample(files[path], name, entry, where), sound=sound))
        part = entry.get("split")
        if part is not None and part not in PARTS:
            raise DataError(f"{where}: the split of {name} is {part!r}.", f"Use {', '.join(PARTS)}, or none at all.")
        parts.append(part)
    if None in parts and any(parts):
        raise DataError(f"{where}: {list(entries)[parts.index(None)]} has no split, others have.", "Give all, or none.")
    alike(samples)
    _tell_unlisted(files, (*base, "images"), len(samples), where)
    if None in parts:
        return split_by_seed(Part(samples), CLASSES, test_share, seed)
    return collection({part: [s for s, p in zip(samples, parts) if p == part] for part in PARTS}, where)


def _tell_unlisted(files: Files, folder: tuple[str, ...], listed: int, where: str) -> None:
    there = sum(path[: len(folder)] == folder and path[-1].lower().endswith(IMAGES) for path in files)
    if there > listed:
        say(f"{where}: {there - listed} of {there} pictures are not listed, and not used")


def collection(parts: dict[str, list[CrowdSample]], where: str) -> Collection:
    """Samples as they are split; without a test part, the validation part is it."""
    train, val, test = (parts[part] for part in PARTS)
    if not test:
        val, test = [], val
    for word, samples in (("train", train), ("test", test)):
        if not samples:
            raise DataError(f"{where} has no picture of the split {word}.", f"Name the split {word} of some pictures.")
    return Collection(Part(train), Part(test), CLASSES, val=Part(val) if val else None)


def alike(samples: Sequence[CrowdSample]) -> None:
    """Refuses pictures of which only some have a sound."""
    silent = [each for each in samples if each.sound is None]
    if silent and len(silent) < len(samples):
        raise DataError(
            f"{silent[0]} has no sound, but {len(samples) - len(silent)} of {len(samples)} pictures have one.",
            f"Add {Path(str(silent[0])).stem}.wav, or remove all sounds.",
        )


def crowd_sample(picture: Source, name: str, entry: Any, where: str) -> CrowdSample:
    """One entry of the list, held against its picture as it is shown, upright: all heads lie inside it."""
    width, height = header(picture, 2**62)
    given = entry.get("width", width), entry.get("height", height)
    if given != (width, height):
        cause = f"{where}: {name} is {given[0]} x {given[1]}, but the picture has {width} x {height} pixels."
        raise DataError(cause, "Correct width and height, or give the picture that the points were set on.")
    points = entry.get("points")
    if not isinstance(points, list):
        raise DataError(f"{where}: {name} has no list of points.", LAYOUT)
    for point in points:
        if not isinstance(point, list) or len(point) != 2 or not all(map(_is_number, point)):
            raise DataError(f"{where}: {name} has the point {point!r}.", "A point is [x, y], in pixels.")
        if not (0 <= point[0] <= given[0] and 0 <= point[1] <= given[1]):
            raise DataError(
                f"{where}: {name} has a point at {point}, outside its {given[0]} x {given[1]} pixels.",
                "Correct or remove it.",
            )
    return CrowdSample(picture, given[0], given[1], tuple((float(x), float(y)) for x, y in points))


def read_list(source: Source, where: str) -> dict[str, Any]:
    """The entries of the list, by picture."""
    try:
        data = read_bytes(source)
        if len(data) > LARGEST:
            raise ValueError(f"it is larger than {LARGEST:,} bytes")
        document = json.loads(data)
        entries = document.get("images") if isinstance(document, dict) else None
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise ValueError('it has no "images", a mapping of names to entries')
    except (OSError, ValueError, RecursionError) as problem:
        raise DataError(f"{where} cannot be read: {one_line(problem)}.", LAYOUT) from None
    if not entries:
        raise DataError(f"{where} names no picture.", LAYOUT)
    return entries


def sounds_below(files: Files, folder: tuple[str, ...]) -> dict[str, Source]:
    """Sounds by their names below a folder, without the ending."""
    return {
        str(Path(*path[len(folder) :]).with_suffix("")): source
        for path, source in files.items()
        if path[: len(folder)] == folder and path[-1].lower().endswith(SOUNDS)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < FARTHEST  # nan is not


# DISCO (Hu et al. 2020): 1,935 pictures of crowds with a second of sound each, and the density maps of their heads.

PICTURES, RECORDINGS, MAPS = ("imgs", "images"), ("auds", "audio", "audios"), ("density", "density_maps")
DISCO = "Expected imgs/ID.jpg, auds/ID.wav, density/train/ID.mat, density/val/ and density/test/: its three archives."


def disco(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
) -> Collection:
    """DISCO: pictures of crowds with a second of sound each.

    As it is published: the folder that a map lies in is the split. The number of heads is the sum of the map.
    The published maps lose what lies outside the picture, and so do the numbers; they may differ from the number of
    points by a head or two.
    """
    place = wanted(root, "disco", ROOT)
    files, _ = files_below(place, (*IMAGES, *SOUNDS, ".mat"))
    pictures, sounds = _by_stem(files, PICTURES, IMAGES), _by_stem(files, RECORDINGS, SOUNDS)
    parts: dict[str, list[CrowdSample]] = {part: [] for part in PARTS}
    for path, source in sorted(files.items()):
        if path[-1].lower().endswith(".mat") and len(path) > 2 and path[-2] in PARTS and path[-3] in MAPS:
            stem = Path(path[-1]).stem
            if stem not in pictures:
                raise DataError(f"{place}: there is no picture {stem}.jpg for {'/'.join(path)}.", DISCO)
            parts[path[-2]].append(CrowdSample(pictures[stem], 0, 0, stored=source, sound=sounds.get(stem)))
    if not any(parts.values()):
        raise DataError(f"{place} has no density maps.", DISCO)
    every = [sample for samples in parts.values() for sample in samples]
    alike(every)
    if every[0].sound is None:
        raise DataError(f"{place} has no sounds.", DISCO)
    return collection(parts, str(place))


def _by_stem(files: Files, folders: tuple[str, ...], endings: tuple[str, ...]) -> dict[str, Source]:
    return {
        Path(path[-1]).stem: source
        for path, source in files.items()
        if path[-1].lower().endswith(endings) and any(folder in path[:-1] for folder in folders)
    }
