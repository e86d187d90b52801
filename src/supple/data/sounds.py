"""Any folder of class folders of sound files, or a zip of one. Only read, never written to."""

from dataclasses import replace

from supple.data.folder import class_folders
from supple.data.parts import Collection, Request
from supple.data.sound import SUFFIXES


def sounds(request: Request) -> Collection:
    """Class folders of sounds as they are, or split by seed if there is no test part: see `class_folders`."""
    assert request.hearing is not None
    return replace(class_folders(request, "sounds", SUFFIXES, "sound"), channels=request.hearing.channels)
