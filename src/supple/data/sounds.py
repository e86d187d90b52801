"""Any folder of class folders of sound files, or a zip of one. Only read, never written to."""

from supple.data.folder import class_folders
from supple.data.parts import Collection
from supple.data.settings import Seed, Share
from supple.data.sound import SUFFIXES


def sounds(
    *,
    root: str | None = None,  # a folder or a zip; looked for here, in the folders of $SUPPLE_DATA and in ./data
    test_share: Share = 0.2,  # of the sounds, if there is no test part
    seed: Seed = 0,  # of the splits
) -> Collection:
    """Class folders of sounds as they are, or split by seed if there is no test part: see `class_folders`."""
    return class_folders("sounds", root, SUFFIXES, "sound", test_share, seed)
