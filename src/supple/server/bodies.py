"""The body of a request, whole and decompressed, within a limit. Without torch."""

import asyncio
import zlib

from starlette.requests import Request

from supple.server.requests import Refusal
from supple.text import size

HERE = 65_536  # bytes that are decompressed without leaving the event loop
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # wbits of zlib


async def read_body(request: Request, most: int) -> bytes:
    """All of it. The limit holds for what arrives, and again for what that decompresses to."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise too_large(most)
    parts, received = [], 0
    async for part in request.stream():
        received += len(part)
        if received > most:
            raise too_large(most)
        parts.append(part)
    body = b"".join(parts)
    for encoding in reversed(encodings_of(request.headers.get("content-encoding", ""))):
        if len(body) <= HERE:
            body = decompressed(body, encoding, most)
        else:
            body = await asyncio.to_thread(decompressed, body, encoding, most)
    return body


def encodings_of(header: str) -> list[str]:
    """The encodings of a body, in the order they were applied; at most one of them compresses."""
    found = [word for word in (part.strip().lower() for part in header.split(",")) if word not in ("", "identity")]
    if unknown := [word for word in found if word not in _WINDOW]:
        raise Refusal(415, "unsupported_media_type", f"Content-Encoding {unknown[0]!r:.40}: send gzip or deflate.")
    if len(found) > 1:
        raise Refusal(415, "unsupported_media_type", "The body is compressed more than once.")
    return found


def decompressed(body: bytes, encoding: str, most: int) -> bytes:
    """Never makes more than the limit, however small the body is."""
    window = _WINDOW[encoding]
    if encoding == "deflate" and not _has_zlib_header(body):
        window = -15  # some clients send the bare stream
    stream = zlib.decompressobj(window)
    try:
        made = stream.decompress(body, most + 1)
    except zlib.error:
        raise Refusal(400, "malformed", f"The body is not valid {encoding}.") from None
    if len(made) > most:
        raise too_large(most)
    if not stream.eof or stream.unused_data:
        raise Refusal(400, "malformed", f"The {encoding} body does not end where its stream ends.")
    return made


def _has_zlib_header(body: bytes) -> bool:
    return len(body) >= 2 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0


def too_large(most: int) -> Refusal:
    return Refusal(413, "too_large", f"The body is larger than {size(most)}.")
