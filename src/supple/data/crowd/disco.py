"""DISCO (Hu et al. 2020): 1,935 pictures of crowds with a second of sound each, and the density maps of their heads."""

from pathlib import Path

from supple.data._io.decode import SUFFIXES as IMAGES
from supple.data._io.paths import wanted
from supple.data._io.tree import Files, Source, files_below
from supple.data.audio.sound import SUFFIXES as SOUNDS
from supple.data.crowd.reader import PARTS, ROOT, alike, collection
from supple.data.crowd.sample import CrowdSample
from supple.data.parts import Collection
from supple.errors import DataError

PICTURES, RECORDINGS, MAPS = ("imgs", "images"), ("auds", "audio", "audios"), ("density", "density_maps")
LAYOUT = "Expected imgs/ID.jpg, auds/ID.wav, density/train/ID.mat, density/val/ and density/test/: its three archives."


def disco(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
) -> Collection:
    """As it is published: the folder that a map lies in is the split. The number of heads is the sum of the map.

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
                raise DataError(f"{place}: there is no picture {stem}.jpg for {'/'.join(path)}.", LAYOUT)
            parts[path[-2]].append(CrowdSample(pictures[stem], 0, 0, stored=source, sound=sounds.get(stem)))
    if not any(parts.values()):
        raise DataError(f"{place} has no density maps.", LAYOUT)
    every = [sample for samples in parts.values() for sample in samples]
    alike(every)
    if every[0].sound is None:
        raise DataError(f"{place} has no sounds.", LAYOUT)
    return collection(parts, str(place))


def _by_stem(files: Files, folders: tuple[str, ...], endings: tuple[str, ...]) -> dict[str, Source]:
    return {
        Path(path[-1]).stem: source
        for path, source in files.items()
        if path[-1].lower().endswith(endings) and any(folder in path[:-1] for folder in folders)
    }
