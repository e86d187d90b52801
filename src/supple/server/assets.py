"""Files that are served as they are: the page and the documentation. Without torch.

They are read once, when the server starts, and asked for by their names in a table: no request opens a file.
"""

import hashlib
import mimetypes
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

# Nothing from elsewhere, nothing inline. blob: is for pictures that were dropped and are not uploaded yet.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # may be kept, if it is asked whether it is still the same
}
_KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Assets:
    """The files of a folder, by their paths inside it."""

    def __init__(self, folder: Path) -> None:
        names = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        self._files = {
            name: path.read_bytes()
            for name, path in names.items()
            if path.suffix != ".py" and not any(part.startswith((".", "__")) for part in name.split("/"))
        }
        self._tags = {name: f'"{hashlib.sha256(file).hexdigest()[:20]}"' for name, file in self._files.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def response(self, name: str, request: Request) -> Response:
        headers = {**HEADERS, "etag": self._tags[name]}
        if request.headers.get("if-none-match") == self._tags[name]:
            return Response(status_code=304, headers=headers)
        suffix = Path(name).suffix
        kind = _KINDS.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(self._files[name], headers=headers, media_type=kind)
