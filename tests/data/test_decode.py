"""Every image file becomes the pixels a person would see, or an error that names it."""

import io
import struct
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from supple.data._io.decode import FORMATS, decode, header
from supple.errors import DataError


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(height: int = 6, width: int = 9) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png(width: int, height: int, pixels: bytes = b"") -> bytes:
    """A PNG by hand, so that the header can claim any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_give_the_pixels_that_were_saved(kind: str) -> None:
    np.testing.assert_array_equal(decode(saved(Image.fromarray(noise()), kind)), noise())


def test_webp_lossless_gives_the_pixels_that_were_saved() -> None:
    if not features.check("webp"):
        pytest.skip("this Pillow was built without WebP")
    np.testing.assert_array_equal(decode(saved(Image.fromarray(noise()), "WEBP", lossless=True)), noise())


def test_jpeg_is_close_to_what_was_saved() -> None:
    flat = np.full((8, 8, 3), (200, 100, 50), np.uint8)
    assert np.abs(decode(saved(Image.fromarray(flat), "JPEG", quality=95)).astype(int) - flat).max() <= 3


def test_bytes_text_path_and_path_object_agree(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(saved(Image.fromarray(noise())))
    for source in (file.read_bytes(), str(file), file):
        result = decode(source)
        assert result.dtype == np.uint8
        assert result.shape == (6, 9, 3)
        assert result.flags.writeable
        np.testing.assert_array_equal(result, noise())


def test_sixteen_bit_grey_is_scaled_and_rounded_not_cut_off() -> None:
    values = np.array([[0, 128, 129, 257, 32896, 65535]], np.uint16)  # 128/257 rounds to 0, 129/257 to 1
    for data in (saved(Image.fromarray(values)), saved(Image.fromarray(values), "TIFF")):
        assert decode(data)[0].tolist() == [[v] * 3 for v in (0, 0, 1, 1, 128, 255)]


def test_sixteen_bit_grey_big_endian_and_32_bit_modes_too() -> None:
    values = np.array([[0, 257, 65535]])
    big = Image.frombytes("I;16B", (3, 1), values.astype(">u2").tobytes())
    assert decode(saved(big, "TIFF"))[0, :, 0].tolist() == [0, 1, 255]
    wide = Image.fromarray(np.array([[-5, 257, 65535, 70000]], np.int32))
    assert decode(saved(wide, "TIFF"))[0, :, 0].tolist() == [0, 1, 255, 255]
    assert decode(b"P5 2 1 65535\n" + struct.pack(">HH", 257, 65535))[0, :, 0].tolist() == [1, 255]


def test_floating_point_pixels_are_refused() -> None:
    with pytest.raises(DataError, match="no agreed scale"):
        decode(saved(Image.fromarray(np.zeros((2, 2), np.float32)), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_honoured(orientation: int) -> None:
    upright = np.arange(6, dtype=np.uint8).reshape(2, 3, 1).repeat(3, axis=2) * 40
    # How the camera stored the upright picture under each orientation tag (EXIF 2.3: where row 0 and column 0 lie).
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(stored))
    np.testing.assert_array_equal(decode(saved(image, exif=exif)), upright)
    np.testing.assert_array_equal(decode(saved(image, "TIFF", exif=exif)), upright)
    clear = image.convert("RGBA")
    np.testing.assert_array_equal(decode(saved(clear, exif=exif)), upright)


def test_damaged_exif_does_not_spoil_the_picture() -> None:
    np.testing.assert_array_equal(
        decode(saved(Image.fromarray(noise()), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")), noise()
    )


def test_cmyk_becomes_rgb() -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # magenta and yellow ink: red
    assert decode(saved(image, "TIFF"))[0, 0].tolist() == [255, 0, 0]
    red, green, blue = decode(saved(image, "JPEG", quality=100))[4, 4].tolist()
    assert red > 245
    assert green < 10
    assert blue < 10


def test_alpha_is_composited_over_white() -> None:
    rgba = Image.fromarray(np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 51]]], np.uint8))
    assert decode(saved(rgba))[0].tolist() == [
        [255, 0, 0],
        [255, 255, 255],
        [204, 204, 204],
    ]  # 255 * (1 - 51/255) = 204
    grey = Image.new("LA", (2, 1), (10, 0))
    grey.putpixel((0, 0), (10, 255))
    assert decode(saved(grey))[0].tolist() == [[10] * 3, [255] * 3]


def test_palette_becomes_colour_and_its_transparency_white() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    for x in range(3):
        image.putpixel((x, 0), x)
    assert decode(saved(image))[0].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    assert decode(saved(image, transparency=1))[0].tolist() == [[255, 0, 0], [255, 255, 255], [0, 0, 255]]
    per_entry = saved(image, transparency=bytes([255, 255, 0]))
    assert decode(per_entry)[0].tolist() == [[255, 0, 0], [0, 255, 0], [255, 255, 255]]


def test_transparent_colour_of_rgb_and_16_bit_grey_becomes_white() -> None:
    rgb = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    assert decode(saved(rgb, transparency=(1, 2, 3)))[0].tolist() == [[255] * 3, [4, 5, 6]]
    deep = Image.fromarray(np.array([[0, 257]], np.uint16))
    assert decode(saved(deep, transparency=0))[0, :, 0].tolist() == [255, 1]


def test_bilevel_and_grey_become_rgb() -> None:
    assert decode(saved(Image.new("1", (2, 2), 1)))[0, 0].tolist() == [255] * 3
    assert decode(saved(Image.new("L", (2, 2), 77)))[0, 0].tolist() == [77] * 3


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_of_an_animation_the_first_frame(kind: str) -> None:
    if kind == "WEBP" and not features.check("webp"):
        pytest.skip("this Pillow was built without WebP")
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    with Image.open(io.BytesIO(data)) as check:
        assert check.n_frames == 3
    assert decode(data)[0, 0].tolist() == [255, 0, 0]


def test_pixel_limit_is_exact_and_applies_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(Image.fromarray(noise(5, 4)))
    assert decode(data, max_pixels=20).shape == (5, 4, 3)
    from PIL import ImageFile

    def never(self: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    with pytest.raises(DataError, match="5 = 20 pixels; the limit is 19"):
        decode(data, max_pixels=19)


def test_our_limit_decides_and_not_that_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"1,600,000,000 pixels; the limit is 50,000,000"):
        decode(png(40_000, 40_000))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)  # Pillow would warn above 4 pixels and raise above 8
    for side in (2, 3):
        image = Image.fromarray(noise(side, side))
        assert decode(saved(image)).shape == (side, side, 3)
    assert Image.MAX_IMAGE_PIXELS == 4


def test_only_listed_formats_are_tried() -> None:
    assert set(FORMATS) == {"JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"}
    for kind in ("ICO", "TGA", "PCX", "SGI"):
        data = saved(Image.new("RGB", (16, 16)), kind)
        with Image.open(io.BytesIO(data)) as check:  # Pillow itself can read it
            assert check.size == (16, 16)
        with pytest.raises(DataError, match="expected one of JPEG"):
            decode(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM"])
def test_truncated_files_are_named(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"broken.{kind.lower()}"
    data = saved(Image.fromarray(noise(64, 64)), kind)
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"broken\.") as caught:
        decode(file)
    assert caught.value.cure
    assert caught.value.__suppress_context__  # Pillow's traceback is not shown


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\xff\xd8\xff", b"GIF89a", b"\x89PNG\r\n\x1a\n", png(0, 5), png(5, 0)]
)
def test_what_is_no_image_is_an_error_that_says_image(data: bytes) -> None:
    with pytest.raises(DataError, match=r"^image "):
        decode(data)


def test_flipped_bytes_give_an_image_or_a_data_error_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    causes, images = [], 0
    for kind in ("JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM"):
        data = np.frombuffer(saved(Image.fromarray(noise(16, 16)), kind), np.uint8)
        for _ in range(60):
            broken = data.copy()
            broken[rng.integers(0, len(data), 4)] = rng.integers(0, 256, 4)
            try:
                images += decode(broken.tobytes(), max_pixels=100_000).ndim == 3
            except DataError as problem:
                causes.append(problem.cause)
    assert images + len(causes) == 360
    assert images > 0
    assert causes
    assert all(cause.startswith("image ") for cause in causes)


def test_missing_file_folder_and_impossible_names_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.png.*no such file"):
        decode(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match="it is a folder"):
        decode(str(tmp_path))
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(DataError):
            decode(name)


def test_header_gives_width_and_height_and_checks_the_limit() -> None:
    data = saved(Image.fromarray(noise(6, 9)))
    assert header(data) == (9, 6)
    with pytest.raises(DataError, match="limit is 53"):
        header(data, max_pixels=53)


def test_threads_leave_the_warning_filters_and_pillows_limit_as_they_were() -> None:
    filters, limit = list(warnings.filters), Image.MAX_IMAGE_PIXELS
    good, bad = saved(Image.fromarray(noise(32, 32))), b"no image"

    def work() -> None:
        for _ in range(50):
            decode(good)
            with pytest.raises(DataError):
                decode(bad)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == filters
    assert limit == Image.MAX_IMAGE_PIXELS
