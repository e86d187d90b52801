"""Where data is looked for."""

import os
from pathlib import Path

from supple.errors import DataError


def places() -> list[Path]:
    """The folders a relative name is looked for in, in order."""
    named = os.environ.get("SUPPLE_DATA")
    return [Path("."), *([Path(named)] if named else []), Path("data"), Path("../shared/data")]


def find(root: str) -> Path:
    """The existing file or folder that `root` means: as it stands, or below $SUPPLE_DATA, data or ../shared/data."""
    given = Path(root).expanduser()
    candidates = [given] if given.is_absolute() else [place / given for place in places()]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise DataError(
        f"no data at {root!r}; looked at: {looked}.", "Set data.root, or SUPPLE_DATA to the folder it is in."
    )
