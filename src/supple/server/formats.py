"""Which kind of file it is, by its first bytes: the formats that are decoded, and no others. Without torch."""

from collections.abc import Callable

from supple.data._io.decode import FORMATS as IMAGES
from supple.data.audio.sound import FORMATS as SOUNDS
from supple.server.requests import Refusal

HEAD = 16  # bytes that are looked at

TIFF = (b"II*\0", b"MM\0*", b"II\0*", b"MM*\0", b"II+\0", b"MM\0+")
DIGITS = tuple(b"%c" % sign for sign in b"123456f")  # behind the P of the Netpbm formats


def _is_image(head: bytes) -> bool:
    netpbm = head[:1] == b"P" and head[1:2] in DIGITS
    return (
        head.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", *TIFF))
        or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")
        or (netpbm and head[2:3] in (b" ", b"\t", b"\r", b"\n", b"#"))
    )


def _is_sound(head: bytes) -> bool:
    return (
        (head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:12] == b"WAVE")
        or (head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"))
        or head.startswith((b"fLaC", b"OggS", b".snd", b"dns.", b"ID3"))
        or (head[:1] == b"\xff" and head[1:2] >= b"\xe0" and head[:2] != b"\xff\xff")  # a frame of MP3
    )


KINDS: dict[str, tuple[Callable[[bytes], bool], tuple[str, ...]]] = {
    "image": (_is_image, IMAGES),
    "sound": (_is_sound, SOUNDS),
}


def must_be(kind: str, file: bytes) -> None:
    """Raises Refusal where it is certainly no file of this kind. Whether it can be decoded is another question."""
    fits, formats = KINDS[kind]
    if not file:
        raise Refusal(422, "unusable_input", "The file is empty.")
    if not fits(file[:HEAD]):
        raise Refusal(415, "unsupported_media_type", f"This is no {kind} of a known format: {', '.join(formats)}.")
