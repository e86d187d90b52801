"""What `supple predict` takes: files, folders, patterns, standard input."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Pipe = Callable[[bytes], None]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    return path


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    """What a command finds on its standard input."""

    def put(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return put


@pytest.mark.parametrize("ending", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_a_picture_on_stdin_is_predicted_as_one_file_named_dash(command, exits_run, picture, pipe, ending):
    content = io.BytesIO()
    Image.open(picture).save(content, ending)
    pipe(content.getvalue())
    said = command("predict", exits_run, "-", "--json")
    (answer,) = said.json["predictions"]
    assert (said.err, answer["file"]) == ("", "-")
    path = picture.with_name("same")
    path.write_bytes(content.getvalue())
    (same,) = command("predict", exits_run, path, "--json").json["predictions"]
    assert answer["label"] == same["label"]
    for one, other in zip(answer["scores"], same["scores"], strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-6)  # threads may add up in another order
    pipe(content.getvalue())
    assert command("predict", exits_run, "-").out.splitlines()[1].split()[0] == "-"


def test_names_on_stdin_stay_names_one_per_line(command, exits_run, picture, pipe):
    for name in ("BM.png", "P6", "GIF89a", "two words.png", "späte Äpfel.png"):
        path = picture.with_name(name)
        path.write_bytes(picture.read_bytes())
        pipe(f"{path}\r\n\n{picture}\n".encode())
        said = command("predict", exits_run, "-", "--json")
        assert [answer["file"] for answer in said.json["predictions"]] == [str(path), str(picture)]


def test_a_name_that_begins_as_a_picture_does_is_a_name(command, exits_run, picture, pipe, monkeypatch):
    monkeypatch.chdir(picture.parent)
    for name in ("BMW.png", "GIF89a", "P6", "RIFF1234WAVE"):
        Path(name).write_bytes(picture.read_bytes())
        pipe(name.encode())
        assert [a["file"] for a in command("predict", exits_run, "-", "--json").json["predictions"]] == [name]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x7fELF\x02\x01\x01\0\0\0", ("neither", "PNG")),
        (b"a.png\0b.png\0", ("neither", "line")),
        (b"\x1b[31mred", ("neither",)),
        (b"%PDF-1.7\n\xff\xfe\x00", ("neither",)),
        (b"", ("stdin", "path on each line")),
        (b"\n\n", ("stdin", "path on each line")),
    ],
)
def test_anything_else_on_stdin_is_an_error_without_a_byte_of_it(command, exits_run, pipe, content, words):
    pipe(content)
    said = command("predict", exits_run, "-").refused(2, *words)
    assert said.isprintable() or all(line.isprintable() for line in said.splitlines())


def test_a_damaged_picture_on_stdin_is_named_and_no_binary_is_printed(command, exits_run, picture, pipe):
    pipe(picture.read_bytes()[:100])
    said = command("predict", exits_run, "-").refused(2, "- cannot be read as an image")
    assert all(line.isprintable() for line in said.splitlines())


def test_more_on_stdin_than_any_file_is_refused(command, exits_run, pipe, monkeypatch):
    monkeypatch.setattr("supple.inference.request.MOST", 1000)
    pipe(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    command("predict", exits_run, "-").refused(2, "stdin", "1 kB")


def test_folders_are_taken_with_the_folders_inside_in_order(command, exits_run, picture, tmp_path):
    root = tmp_path / "photos"
    for name in ("b.png", "cats/2.PNG", "cats/1.png", "cats/old/0.png", "notes.txt", ".hidden.png", ".git/x.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(picture.read_bytes())
    wanted = [str(root / name) for name in ("b.png", "cats/1.png", "cats/2.PNG", "cats/old/0.png")]
    for given in (root, f"{tmp_path}/pho*"):
        said = command("predict", exits_run, given, "--json")
        assert [answer["file"] for answer in said.json["predictions"]] == wanted


def test_a_folder_without_any_says_which_endings_are_read(command, exits_run, picture, tmp_path):
    (tmp_path / "void" / "deep").mkdir(parents=True)
    (tmp_path / "void" / "deep" / "notes.txt").write_text("no picture")
    (tmp_path / "void" / ".hidden.png").write_bytes(picture.read_bytes())
    for given in (tmp_path / "void", f"{tmp_path}/voi*"):
        command("predict", exits_run, given).refused(2, "void holds no image", ".jpg", ".png", ".webp")


@pytest.mark.parametrize("verb", ["predict", "calibrate"])
@pytest.mark.parametrize("budget", ["0.7", "1e-3", ".5"])
def test_a_budget_below_one_mac_is_refused_with_the_share_that_was_meant(command, exits_run, picture, verb, budget):
    files = [picture] if verb == "predict" else []
    command(verb, exits_run, *files, "--budget-macs", budget).refused(2, "less than one MAC", f"{budget}x", "2e6")
