"""Forty typical mistakes: each is told in one line, cured in one more, with exit status 2, and nothing is written.

Half are those of the two roads that people take, their pictures and their network; half are habits from other tools.
"""

import io
import os
import shlex
import shutil
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from test_propose import make_pictures

import supple.training.loop
from supple.errors import TrainError
from supple.recipe import make_recipe
from supple.training import propose as proposing
from supple.training.loop import train
from tiny import tiny_document

ROADS = {
    "a frozen network with random weights": (
        "train own.yaml method.way=classifier_wise",
        ("frozen", "random", "train.init", "method.freeze_random=true"),
    ),
    "a picture for weights": ("train flags --weights photo.png", ("photo.png", "cannot be read", ".safetensors")),
    "a whole pickled network": (
        "train flags --weights whole.pth",
        ("whole.pth", "more than tensors, timm.models.resnet.ResNet", "state_dict()", "never unpickled"),
    ),
    "weights of another network": (
        "train flags --network test_efficientnet --weights resnet.safetensors",
        ("resnet.safetensors does not fit", "conv_stem.weight is missing", "same network"),
    ),
    "a root for a set that has none": (
        "train recipes/pocket/digits.yaml data.root=flags",
        ('unknown key "data.root"', "the data set digits has none", "folder"),
    ),
    "other data for a run whose set has no root": (
        "evaluate synthetic data.root=flags",
        ('unknown key "data.root"', "the data set generated has none", "folder"),
    ),
    "a share of the MACs without x": (
        "predict run photo.png --budget-macs 0.7",
        ('--budget-macs is "0.7", less than one MAC', "0.7x", "2e6"),
    ),
    "weights through a pipe": (
        "predict run - < resnet.safetensors",
        ("stdin is neither names of files nor a file of a known kind", "PNG", "a path on each line"),
    ),
    "pictures without class folders": ("train loose", ("loose has no class folders", "<class>/<image>")),
    "one class only": ("train one", ("one has one class only: red", "two or more class folders")),
    "an empty class folder": ("train hollow", ("hollow/yellow has no images", "remove the folder")),
    "a table without labels": (
        "train unlabelled.csv",
        ("unlabelled.csv", "flags/red/0.png': 1 of 2 or 3 columns", "a path and a label"),
    ),
    "a table of files that are not there": (
        "train moved.csv",
        ("moved.csv: none of 6 pictures looked at can be read", ".png", "no such file", "relative to its folder"),
    ),
    "a network misspelt": ("train flags --network resnet81", ('"resnet81"', "timm", "torchvision", "resnet18")),
    "a network whose weights cannot be had": (
        "train flags --network resnet18",
        ("weights of resnet18 cannot be had", "no connection", "--weights FILE"),
    ),
    "negative minutes": ("train flags --minutes -5", ("--minutes is -5", "such as 30")),
    "minutes for a recipe": (
        "train recipes/pocket/digits.yaml --minutes 5",
        ("--minutes is for pictures", "digits.yaml is a recipe", "train.epochs=3"),
    ),
    "pictures that are not there": ("train flag", ('no recipe, run or pictures "flag"', 'Did you mean "flags"?')),
    "a zip that is none": ("train notes.zip", ("notes.zip is not a readable zip", "a folder")),
    "resumed with other settings": (
        "train own.yaml train.lr=0.5 --out stopped --resume",
        ("was started with train.lr=0.1, not 0.5", "without the change", "--out"),
    ),
}

HABITS = {
    "a checkpoint file to predict with": (
        "predict best.pt photo.png",
        ("best.pt is a file, not a run", "--weights best.pt"),
    ),
    "a graph to predict with": ("predict full.onnx photo.png", ("full.onnx is a file", "folder", "supple export")),
    "a folder to evaluate on": ("evaluate run flags", ('"flags" does not apply to the run', "data.root=flags")),
    "other classes to evaluate on": (
        "evaluate run data.root=animals",
        ("other classes than the model", "cat, dog", "its 3 classes: blue, green, red"),
    ),
    "a picture to train on": (
        "train photo.png",
        ("photo.png is a file", "a folder of class folders", ".zip", ".csv", ".yaml"),
    ),
    "a name of the Hub": (
        "train flags --network timm/resnet18.a1_in1k --weights resnet.safetensors",
        ('"timm/resnet18.a1_in1k"', 'Did you mean "resnet18.a1_in1k"?'),
    ),
    "a GPU that is not there": ("train own.yaml train.accelerator=gpu", ("train.accelerator=gpu", "auto", "cpu")),
    "a precision by another name": ("train own.yaml train.precision=16-mixed", ("train.precision", "16-mixed", "bf16")),
    "epochs as an option": ("train flags --epochs 10", ("--epochs", "train.epochs=10")),
    "arguments by name": ("train data=flags epochs=10", ('"data=flags"', "supple train flags")),
    "a huge picture": ("predict run huge.png", ("huge.png has 60000 x 60000", "the limit is", "smaller")),
    "letters with the ending of pictures": (
        "train letters",
        ("letters: none of 6 pictures looked at can be read", ".jpg", "JPEG"),
    ),
    "a link to itself": ("predict run loop.png", ("loop.png", "symbolic link", "Replace it or remove it")),
    "a file for a run folder": ("train own.yaml --out photo.png", ("photo.png is a file, not a folder", "--out")),
    "a point that the run does not have": (
        "predict run photo.png --point exit=9",
        ("Point(exit=9)", "exit=1 to exit=3"),
    ),
    "no time at all": ("predict run photo.png --deadline-ms 0", ("--deadline-ms", "0", "above 0")),
    "an unfinished run to export": ("export stopped", ("has not finished", "supple train stopped --resume")),
    "an unfinished run to predict with": (
        "predict stopped photo.png",
        ("has not finished", "supple train stopped --resume"),
    ),
    "a detector's layout": (
        "train detector",
        ("detector/labels has no images", "images/ and labels/", "<class>/<image>"),
    ),
    "a table with semicolons": ("train excel.csv", ("excel.csv", "semicolons", "commas")),
}


def picture(file: Path) -> None:
    Image.new("RGB", (16, 16), (200, 40, 40)).save(file, "PNG")


def huge(file: Path) -> None:
    """A header that promises more pixels than any memory holds."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0), b"IDAT")
    framed = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(framed))


def own_network(root: Path) -> dict[str, Any]:
    """A recipe with exits on a tiny network of timm."""
    method = {"name": "exits", "at": ["layer1"], "branch": {"name": "linear"}}
    data = {"name": "folder", "root": str(root), "size": 32, "batch_size": 8, "holdout": 6}
    changes = {"epochs": 2, "lr": 0.1}
    return tiny_document("exits", train=changes) | {
        "data": data,
        "backbone": {"name": "timm", "model": "test_resnet"},
        "method": method,
    }


def stopped(recipe: Any, folder: Path) -> None:
    """A training whose loss broke in its second epoch."""

    def explode(*facts: Any) -> Any:
        return lambda progress, history: 0.1 if progress < 1 else 1e30

    with pytest.MonkeyPatch.context() as patch, pytest.raises(TrainError):
        patch.setattr(supple.training.loop, "make_schedule", explode)
        train(recipe, folder, quiet=True)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, exits_run: Path) -> Path:
    """Somebody's folder, with all that one may take for something else."""
    root = tmp_path_factory.mktemp("desk")
    flags = make_pictures(root / "flags", each=12)
    shutil.copytree(exits_run, root / "synthetic")
    data = {"name": "folder", "root": str(flags), "size": 16, "batch_size": 8}
    torch.set_num_threads(1)
    train(make_recipe(tiny_document("exits", train={"epochs": 1}) | {"data": data}), root / "run", quiet=True)
    (root / "own.yaml").write_text(yaml.safe_dump(own_network(flags)))
    stopped(make_recipe(own_network(flags)), root / "stopped")
    for folder in ("loose", "one/red", "hollow/red", "hollow/blue", "hollow/yellow", "animals/cat", "animals/dog"):
        (root / folder).mkdir(parents=True)
    for folder in ("loose", "one/red", "hollow/red", "hollow/blue", "animals/cat", "animals/dog"):
        for i in range(8):
            picture(root / folder / f"{i}.png")
    for part in ("train", "val"):
        (root / "detector" / "images" / part).mkdir(parents=True)
        (root / "detector" / "labels" / part).mkdir(parents=True)
        picture(root / "detector" / "images" / part / "0.png")
        (root / "detector" / "labels" / part / "0.txt").write_text("0 0.5 0.5 1 1")
    for name in ("a", "b"):
        (root / "letters" / name).mkdir(parents=True)
        for i in range(4):
            (root / "letters" / name / f"{i}.jpg").write_text("Dear reader,")
    names = [f"flags/{label}/{i}.png" for label in ("red", "blue") for i in range(4)]
    (root / "unlabelled.csv").write_text("\n".join(["path", *names]))
    (root / "moved.csv").write_text("\n".join(["path,label", *(f"{n.removeprefix('flags/')},{n[6]}" for n in names)]))
    (root / "excel.csv").write_text("\n".join(["path;label", *(f"{name};{name[6]}" for name in names)]))
    (root / "notes.zip").write_text("Dear reader,")
    picture(root / "photo.png")
    huge(root / "huge.png")
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "full.onnx").write_bytes(b"\x08\x0a")
    resnet = timm.create_model("test_resnet")
    save_file(resnet.state_dict(), root / "resnet.safetensors")
    torch.save(resnet.state_dict(), root / "best.pt")
    torch.save(resnet, root / "whole.pth")
    return root


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection, no GPU, and a machine that is not measured."""
    monkeypatch.setattr(proposing, "available", lambda name: False)
    monkeypatch.setattr(proposing, "_rate", lambda plan: (proposing.Train(precision="fp32", compile="off"), 1.0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def here(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """At the desk, which must be found as it was left."""
    before = contents(desk)
    monkeypatch.chdir(desk)
    yield desk
    assert contents(desk) == before


def contents(root: Path) -> dict[str, tuple[int, int]]:
    """Every file, with its size and time of change."""
    found = (Path(where, name) for where, _, names in os.walk(root) for name in names)
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in found}


def test_there_are_forty() -> None:
    assert (len(ROADS), len(HABITS)) == (20, 20)


@pytest.mark.parametrize("mistake", [*ROADS, *HABITS])
def test_a_typical_mistake_is_told_with_its_cure(
    command: Any, here: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    line, named = (ROADS | HABITS)[mistake]
    line, _, piped = line.partition(" < ")
    if piped:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((here / piped).read_bytes())))
    said = command(*shlex.split(line)).refused(2, *named)
    assert len(max(said.splitlines(), key=len)) < 400
