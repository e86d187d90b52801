"""What a predictor is given: files, pictures or arrays."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import supple
from supple.data.preprocess import Preprocess
from supple.errors import DataError, PointError

NOISE = np.random.default_rng(0).integers(0, 256, (20, 16, 4), np.uint8)


def pictures() -> dict[str, tuple[Image.Image, str]]:
    """One of each mode, and a format that keeps all of it."""
    rgba = Image.fromarray(NOISE)
    palette = rgba.convert("RGB").quantize(8)
    palette.info["transparency"] = 3
    turned = Image.fromarray(NOISE[:, :, :3].copy())
    turned.getexif()[0x0112] = 6
    return {
        "RGB": (rgba.convert("RGB"), "PNG"),
        "RGBA": (rgba, "PNG"),
        "L": (rgba.convert("L"), "PNG"),
        "LA": (rgba.convert("LA"), "PNG"),
        "P": (palette, "PNG"),
        "1": (rgba.convert("1"), "PNG"),
        "I;16": (Image.fromarray(NOISE[:, :, 0].astype(np.uint16) * 200), "PNG"),
        "CMYK": (rgba.convert("RGB").convert("CMYK"), "TIFF"),
        "turned": (turned, "PNG"),
    }


@pytest.mark.parametrize("mode", pictures())
def test_a_picture_of_pillow_is_seen_as_its_file_is(mode):
    image, kind = pictures()[mode]
    file = io.BytesIO()
    image.save(file, kind, **({"exif": image.getexif()} if mode == "turned" else {}))
    prepare = Preprocess(16, 3, (0.5,) * 3, (0.25,) * 3)
    expected = prepare.arrays(file.getvalue())[0]
    np.testing.assert_array_equal(prepare.arrays(image)[0], expected)
    np.testing.assert_array_equal(prepare.input(image).numpy(), expected)
    np.testing.assert_array_equal(prepare.arrays(Image.open(file))[0], expected)
    image.getpixel((0, 0))  # it is still open


def test_a_picture_that_has_no_agreed_scale_or_is_too_large_is_refused():
    prepare = Preprocess(16, 3, (0.5,) * 3, (0.25,) * 3, max_pixels=100)
    with pytest.raises(DataError, match="floating-point"):
        prepare.arrays(Image.new("F", (2, 2)))
    with pytest.raises(DataError, match="the limit is 100"):
        prepare.arrays(Image.new("RGB", (11, 11)))


def test_a_run_answers_for_a_picture_as_for_its_file(exits_run, tmp_path):
    image = Image.fromarray(NOISE)  # with transparency, which is over white
    image.save(tmp_path / "noise.png")
    with supple.predictor(exits_run, "torch", 1, warm=False) as made:
        one, other = made.predict(image), made.predict(tmp_path / "noise.png")
    assert one.scores == pytest.approx(other.scores, abs=1e-6)  # threads may add up in another order
    assert one.file is None
    (listed,) = supple.predict(exits_run, [image], engine="torch")
    assert listed.scores == pytest.approx(one.scores, abs=1e-6)


@pytest.mark.parametrize("budget", [0.7, 0, 0.999])
def test_a_budget_below_one_mac_is_refused_with_a_cure_that_works(exits_run, budget):
    with supple.predictor(exits_run, "torch", 1, warm=False) as made:
        with pytest.raises(PointError, match="less than one MAC") as refused:
            made.predict(Image.fromarray(NOISE), budget_macs=budget)
        assert f'"{budget:g}x"' in refused.value.cure
        full = {row.point: row.macs for row in made.ladder}["full"]
        for share in ("0.7x", "1x"):
            asked = float(share[:-1]) * full
            answers = [made.predict(Image.fromarray(NOISE), budget_macs=given) for given in (share, asked)]
            assert answers[0].point == answers[1].point
            assert answers[0].within_budget
        with pytest.raises(PointError, match="budget_macs is 'half'"):
            made.predict(Image.fromarray(NOISE), budget_macs="half")
    with pytest.raises(supple.SuppleError, match="less than one MAC"):
        supple.calibrate(exits_run, budget_macs=budget or 0.5)


def test_inputs_need_no_pillow():
    code = "import sys, supple.inference.inputs; assert not {'PIL', 'torch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
