"""Where data is looked for."""

import os
from pathlib import Path

from supple.errors import DataError


def search_paths() -> list[Path]:
    """The folders a relative name is looked for in: here, those of $SUPPLE_DATA (separated as in PATH), data."""
    named = filter(None, os.environ.get("SUPPLE_DATA", "").split(os.pathsep))
    return [Path("."), *(Path(folder).expanduser() for folder in named), Path("data")]


def wanted(root: str | None, name: str, cure: str) -> Path:
    """What data.root stands for, which the data set cannot do without."""
    if root is None:
        raise DataError(f'data set "{name}" needs data.root.', cure)
    return find(root)


def find(root: str) -> Path:
    """The existing file or folder that `root` means: as it stands, or below a folder of $SUPPLE_DATA or data."""
    given = Path(root).expanduser()
    candidates = [given] if given.is_absolute() else [place / given for place in search_paths()]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise DataError(
        f"no data at {root!r}; looked at: {looked}.", "Set data.root, or SUPPLE_DATA to the folder it is in."
    )
