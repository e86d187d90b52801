"""Files that nobody sends by accident: mutated pictures, and what a header can claim. The same for the same seed."""

import io
import math
import random
import struct
import wave
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
HEAD = 64  # bytes in which most decisions of a decoder lie


def picture(height: int = 60, width: int = 80) -> Image.Image:
    """Smooth, as photographs are."""
    small = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def mutated(count: int, seed: int) -> Iterator[bytes]:
    """Pictures of all formats in turn, each damaged in one of several ways."""
    dice = random.Random(seed)
    whole = [saved(picture(), kind) for kind in FORMATS]
    for number in range(count):
        yield mutation(whole[number % len(whole)], dice)


def mutation(file: bytes, dice: random.Random) -> bytes:
    found = bytearray(file)
    way = dice.randrange(6)
    start = dice.randrange(len(found))
    end = min(len(found), start + dice.randrange(1, 64))
    if way < 2:  # here and there, or in the header
        for _ in range(dice.randrange(1, 17)):
            found[dice.randrange(len(found) if way == 0 else min(HEAD, len(found)))] = dice.randrange(256)
    elif way == 2:
        del found[start:]
    elif way == 3:
        found[start:end] = bytes(end - start)
    elif way == 4:
        found[start:start] = found[start:end] * dice.randrange(1, 50)
    else:  # the largest numbers that a field can hold
        found[start:end] = b"\xff" * (end - start)
    return bytes(found)


def png(width: int, height: int, compressed: bytes, depth: int = 8, colours: int = 2) -> bytes:
    """By hand: its header may claim anything."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", compressed) + chunk(b"IEND", b"")


def zeros(count: int) -> bytes:
    """So many zeros, compressed, without ever holding them."""
    stream, found = zlib.compressobj(), b""
    for _ in range(count // 2**20):
        found += stream.compress(bytes(2**20))
    return found + stream.compress(bytes(count % 2**20)) + stream.flush()


Case = tuple[bytes, tuple[int, ...]]


def cases() -> dict[str, Case]:
    """Files made by hand, and the statuses that they may get."""
    sixteen = Image.fromarray(np.arange(4800, dtype=np.uint16).reshape(60, 80) * 13)
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = saved(picture(), "JPEG")
    return {
        "a bomb of 1.6 gigapixels": (png(40_000, 40_000, zeros(2**20)), (413,)),
        "a bomb of 49 megapixels": (png(7000, 7000, zeros(7000 * 21_001)), (200, 422)),
        "the same with transparency": (png(7000, 7000, zeros(7000 * 28_001), colours=6), (200, 422)),
        "a GIF that claims 65,535 x 65,535": (b"GIF89a" + b"\xff" * 4 + b"\0\0\0" + bytes(40), (413, 422)),
        "a PPM that claims 10 gigapixels": (b"P6 100000 100000 255\n" + bytes(100), (413,)),
        "a BMP of negative size": (
            b"BM" + struct.pack("<IHHIIiiHH", 100, 0, 0, 54, 40, -5, -5, 1, 24) + bytes(80),
            (413, 422),
        ),
        "a TIFF whose directory is itself": (b"II*\0\x08\0\0\0" + struct.pack("<HI", 0, 8) + bytes(20), (422,)),
        "16 bits": (saved(sixteen), (200,)),
        "CMYK": (saved(picture().convert("CMYK"), "JPEG"), (200,)),
        "turned by EXIF": (saved(picture(), "JPEG", exif=exif), (200,)),
        "damaged EXIF": (saved(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), (200,)),
        "transparent": (saved(picture().convert("RGBA")), (200,)),
        "floating point": (saved(Image.fromarray(np.full((9, 9), math.nan, np.float32)), "TIFF"), (422,)),
        "1 x 20,000": (saved(picture(20_000, 1)), (200,)),
        "20,000 x 1": (saved(picture(1, 20_000)), (200,)),
        "1 x 1": (saved(picture(1, 1)), (200,)),
        "half of it": (whole[: len(whole) // 2], (422,)),
        "three bytes of it": (whole[:3], (422,)),
        "empty": (b"", (400, 422)),
        "text": (b"This is not a picture.", (415,)),
        "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>", (415,)),
        "a sound": (wav(bytes(1600)), (415,)),
        "an icon": (saved(picture(16, 16), "ICO"), (415,)),
    }


def wav(frames: bytes, channels: int = 1, rate: int = 8000, width: int = 2) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(frames)
    return buffer.getvalue()


def float_wav(values: list[float]) -> bytes:
    """32-bit floats can say what no sound is."""
    data = np.array(values, "<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, 8000, 32_000, 4, 32)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def sounds() -> dict[str, Case]:
    tone = (10_000 * np.sin(np.arange(16_000) / 5)).astype("<i2").tobytes()
    return {
        "a tone": (wav(tone), (200,)),
        "0 samples": (wav(b""), (422,)),
        "8 hours of silence": (wav(bytes(8 * 3600 * 100), rate=100, width=1), (413, 422)),
        "8 hours at 600 Hz of 8 bits": (wav(bytes(8 * 3600 * 600), rate=600, width=1), (413, 422)),
        "64 channels": (wav(bytes(64 * 2 * 1000), channels=64), (422,)),
        "NaN": (float_wav([0.0, math.nan, 0.5] * 1000), (422,)),
        "infinite": (float_wav([0.0, -math.inf] * 1000), (422,)),
        "cut in its header": (wav(tone)[:30], (422,)),
        "empty": (b"", (400, 422)),
        "text": (b"This is not a sound.", (415,)),
        "a picture": (saved(picture()), (415,)),
    }
