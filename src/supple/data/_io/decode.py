"""The one way image files become pixels, shared by training, evaluation and serving."""

import io
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from supple.data._io.paths import Source, read_bytes
from supple.errors import DataError, TooLargeError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
MAX_PIXELS = 50_000_000

ORIENTATION = 0x0112  # the EXIF tag
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ON_ITS_SIDE = {TURNS[orientation] for orientation in (5, 6, 7, 8)}

# Without a handler, Python prints what Pillow logs about odd files to stderr.
logging.getLogger("PIL").addHandler(logging.NullHandler())


def decode(source: Source | Image.Image, max_pixels: int = MAX_PIXELS, reduce: int = 1) -> np.ndarray[Any, Any]:
    """Decode an image file, or a picture of Pillow, to uint8 RGB of shape (height, width, 3).

    - Formats: JPEG, PNG, WebP, BMP, GIF, TIFF and PPM; no other decoder of Pillow is ever tried.
    - The size in the header is held against `max_pixels` before any pixel is decoded; Pillow's own limit is not used.
    - 16-bit grey is scaled, v / 257 rounded, so that 65535 becomes 255; it is not cut off at 255. Values outside
      0..65535 (32-bit files) are clipped first. Floating-point pixels have no agreed scale and are refused.
    - The EXIF orientation is honoured; an unreadable EXIF block counts as none.
    - CMYK and palettes are converted; transparency, wherever it comes from, is composited over white.
    - Of an animation, the first frame.
    - reduce: 2, 4 or 8 lets the decoder of JPEG files leave out detail; the sides are then up to so many times smaller.
    - Anything else (missing, truncated, corrupt, empty, no image) is a DataError that names the file.
    """
    with _opened(source, max_pixels) as opened:
        if reduce > 1:
            opened.draft(None, (-(-opened.width // reduce), -(-opened.height // reduce)))
        opened.load()
        turn = _turn(opened)
        image = opened if turn is None else opened.transpose(turn)
        if image.mode == "RGB" and "transparency" not in image.info:
            return np.array(image)
        if image.mode == "F":
            raise ValueError("floating-point pixels have no agreed scale; save it with 8 or 16 bits")
        if image.mode.startswith("I"):
            return _sixteen_bits(image, image.info.get("transparency"))
        if image.has_transparency_data:
            colour = image.convert("LA" if image.mode == "La" else "RGBA").convert("RGBA")
            white = Image.new("RGBA", colour.size, "white")
            image = Image.alpha_composite(white, colour)
        return np.array(image.convert("RGB"))


def header(source: Source, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Width and height that `decode` would give, from the header alone; the checks of `decode` that need no pixels."""
    with _opened(source, max_pixels) as image:
        return (image.height, image.width) if _turn(image) in ON_ITS_SIDE else image.size


def _sixteen_bits(image: Image.Image, transparent: object) -> np.ndarray[Any, Any]:
    values = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
    grey = ((values + 128) // 257).astype(np.uint8)
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return np.repeat(grey[:, :, None], 3, axis=2)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """What brings it upright, as its EXIF tag says."""
    try:
        return TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # EXIF is metadata: damage there does not make the picture unreadable
        return None


@contextmanager
def _opened(source: Source | Image.Image, max_pixels: int) -> Iterator[Image.Image]:
    """Open, check the header, and turn whatever goes wrong, inside the block too, into a DataError."""
    name = "image" if isinstance(source, bytes | Image.Image) else str(source)
    try:
        if isinstance(source, str | Path) and not Path(source).is_file():
            link = (
                "it is a symbolic link that leads to no file" if Path(source).is_symlink() else "there is no such file"
            )
            raise FileNotFoundError("it is a folder" if Path(source).is_dir() else link)
        with _quiet, ExitStack() as stack:
            if isinstance(source, Image.Image):
                image = source  # its owner closes it
            else:
                file = source if isinstance(source, str | Path) else io.BytesIO(read_bytes(source))
                image = stack.enter_context(Image.open(file, formats=FORMATS))
            width, height = image.size
            if width * height > max_pixels:
                raise TooLargeError(
                    f"{name} has {width} x {height} = {width * height:,} pixels; the limit is {max_pixels:,}.",
                    "Make the image smaller, or raise max_pixels if it can be trusted.",
                )
            yield image
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError(
            f"{name} is not a readable image; expected one of {', '.join(FORMATS)}.", "Replace it or remove it."
        ) from None
    except Exception as problem:  # Pillow's readers raise nearly every kind of exception on a damaged file
        reason = str(problem) or type(problem).__name__
        raise DataError(f"{name} cannot be read as an image: {reason}.", "Replace it or remove it.") from None


class _Quiet:
    """Silence Pillow's warnings and lift its pixel limit while any thread is decoding.

    Both are global, and `warnings.catch_warnings` alone leaves the wrong filters behind when threads overlap: so the
    first thread to enter changes them and the last one to leave restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\b|supple\.data\._io\.decode")
                self._limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            self._inside += 1

    def __exit__(self, *problem: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                Image.MAX_IMAGE_PIXELS = self._limit
                self._filters.__exit__(None, None, None)


_quiet = _Quiet()
