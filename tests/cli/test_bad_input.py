"""Bad input, one by one: what was given is named, a cure is offered, the exit status is right and nothing is lost."""

import errno
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import supple.training.loop
from supple import Point, load
from supple.errors import CheckpointError, RecipeError, SuppleError
from supple.files import sha256
from supple.training.build import fresh_model
from supple.training.loop import train
from supple.training.schedule import make_schedule
from supple.training.state import claim, newest_state
from tiny import tiny_document, tiny_recipe

Damage = Callable[[Path], object]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder, with its time of change: equal before and after means untouched."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def no_temporary_file(folder: Path) -> bool:
    return not list(folder.rglob(".*"))


# --- recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("train.epohcs=3", ('unknown key "train.epohcs"', 'Did you mean "train.epochs"?')),
        ("backbone.blokcs=3", ('unknown key "backbone.blokcs"', 'Did you mean "backbone.blocks"?')),
        ("method.widths=[1]", ('unknown key "method.widths"',)),  # exits has no widths
        ("loss.temperature=2", ('unknown key "loss.temperature"', "loss.tau")),
        ("trian.epochs=3", ('unknown key "trian.epochs"', 'Did you mean "train.epochs"?')),
        ("epochs=3", ('"epochs=3" is not a valid change', "train.epochs=3")),
        ("train.epochs", ('"train.epochs" is not a valid change', "train.epochs=3")),
        ("train.epochs=[1", ('"[1" in "train.epochs=[1" is not a valid YAML value',)),
        ("backbone.name=msdent", ('backbone "msdent" is unknown', 'Did you mean "msdnet"?')),
        ("method.name=exit", ('method "exit" is unknown', 'Did you mean "exits"?')),
        ("loss.name=distil", ('loss "distil" is unknown', 'Did you mean "distill"?')),
        ("loss.teachers=largst", ("loss.teachers is 'largst'", "largest")),
        ("data.name=cifar11", ('data "cifar11" is unknown', 'Did you mean "cifar10"?')),
        ("train.sample=sandwitch", ('train.sample "sandwitch" is unknown', 'Did you mean "sandwich"?')),
        ("train.optimizer=sdg", ('train.optimizer "sdg" is unknown', 'Did you mean "sgd"?')),
        ("train.epochs=-3", ("train.epochs is -3", "greater than or equal to 1")),
        ("train.epochs=many", ("train.epochs is 'many'", "integer")),
        ("train.lr=.nan", ("train.lr is nan", "finite")),
        ("data.size=100000", ("data.size is 100000", "8192")),
        ("data.batch_size=0", ("data.batch_size is 0", "greater than or equal to 1")),
        ("data.holdout=-1", ("data.holdout is -1", "greater than 0")),
        ("loss.lam=2", ("loss.lam=2", "lam lies in 0..1")),
        ("loss.tau=0", ("loss.tau=0", "tau is above 0")),
        ("loss.teachers=[[0, 2, 0], [0, 0, 1], [0, 0, 0]]", ("loss.teachers", "sums to 1")),
        ("backbone.blocks=0", ("blocks is 0", "at least 1")),
        ("train.settle=[width=0.7]", ("Point(width=0.7)", "exit=1, exit=2, full")),
        ("train.settle=[wide]", ('"wide" is not a valid point', "width=0.5")),
        ("train.accelerator=abacus", ("train.accelerator=abacus", "auto")),
        ("data.augment=autoaugmnet", ('"autoaugmnet"', 'Did you mean "autoaugment"?')),
        ("data.mean=[0.5]", ("mean has 1 values for 3 channels", "one per channel")),
    ],
)
def test_a_wrong_recipe_is_refused_before_anything_is_written(command, tmp_path, exits_yaml, change, named):
    out = tmp_path / "run"
    said = command("train", exits_yaml, change, "--out", out)
    said.refused(2, *named)
    assert not out.exists()


@pytest.mark.parametrize("widths", ["[0, 1]", "[0.5]", "[1, 0.5]", "[0.5, 0.5, 1]", "[]", "[0.5, 2]"])
def test_absurd_widths_are_refused(command, slim_yaml, widths):
    command("profile", slim_yaml, f"method.widths={widths}").refused(2, "method.widths is [", "rise, above 0, to 1")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("train: {epochs: 1, epochs: 2}\n", ('the key "epochs" is given twice',)),
        ("train: {}\ntrain: {}\n", ('the key "train" is given twice',)),
        ("- data\n- model\n", ("has no sections", "backbone")),
        ("", ("has no sections", "backbone")),
        ("just words", ("has no sections", "backbone")),
        ("data: {name: generated}\nmethod: {name: exits}\n", ('the section "backbone" is missing', "Add backbone")),
        ("data: generated\nbackbone: {}\nmethod: {}\n", ('the section "data" is missing',)),
        ("data: {name: digits}\nmethod: {name: exits}\nbackbone: {blocks: 3}\n", ("backbone.name is missing",)),
        ("model: {name: msdnet}\n", ('unknown key "model"',)),
        ("data: [1\n", ("is not valid YAML",)),
        ("data: !!python/object/apply:os.system [echo]\n", ("is not valid YAML",)),
        ("\0", ("is not valid YAML",)),
        ("x" * 1_000_001, ("larger than",)),
    ],
)  # fmt: skip
def test_a_file_that_is_no_recipe_is_named_with_what_is_wrong(command, tmp_path, text, named):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    command("profile", path).refused(2, str(path), *named)
    assert path.read_text() == text


def test_a_recipe_that_does_not_exist_is_guessed_at(command, tmp_path):
    command("profile", "recipes/pocket/digit.yaml").refused(2, "there is no recipe recipes/pocket/digit.yaml", "digits")
    command("train", tmp_path / "no.yaml").refused(2, str(tmp_path / "no.yaml"), "supple list --recipes")


# --- points -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["predict", "evaluate", "bench", "profile", "extract"])
def test_a_width_neither_trained_nor_settled_is_refused_with_the_way_to_settle_it(command, slim_run, tmp_path, verb):
    more = {"predict": [tmp_path / "x.png"], "extract": ["--out", tmp_path / "out"]}.get(verb, [])
    before = contents(slim_run)
    said = command(verb, slim_run, *more, "--point", "width=0.75")
    said.refused(2, "Point(width=0.75)", "trained at widths 0.5, 1.", "supple train --settle width=0.75")
    # Below the smallest trained width there are no norms to start from: settling is not offered.
    said = command(verb, slim_run, *more, "--point", "width=0.3")
    said.refused(2, "Point(width=0.3)", "only widths from 0.5 can be settled")
    command(verb, slim_run, *more, "--point", "width=0").refused(2, "width=0.0 is not valid", "full")
    command(verb, slim_run, *more, "--point", "exit=1,width=0.5").refused(2, "Point(exit=1, width=0.5)")
    assert contents(slim_run) == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("point", ["width=0.3", "exit=1", "width=", "nonsense"])
def test_a_point_that_cannot_be_settled_leaves_the_run_as_it_was(command, slim_copy, point):
    before = contents(slim_copy)
    command("train", slim_copy, "--settle", point).refused(2, point.split("=")[0])
    assert contents(slim_copy) == before


# --- data -------------------------------------------------------------------------------------------------------------


def picture(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), (shade, 100, 255 - shade)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of twelve images each."""
    root = tmp_path / "photos"
    for label, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for number in range(12):
            (root / name / f"{number:02}.png").write_bytes(picture(20 * label + number))
    return root


@pytest.fixture
def folder_yaml(tmp_path: Path, photos: Path) -> Path:
    data = {"name": "folder", "root": str(photos), "batch_size": 8, "holdout": 4}
    path = tmp_path / "folder.yaml"
    path.write_text(json.dumps(tiny_document(data=data, train={"epochs": 1})))
    return path


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda root: root.rename(root.with_name("elsewhere")), ("no data at", "photos", "SUPPLE_DATA")),
        (lambda root: shutil.rmtree(root) or root.mkdir(), ("photos has no images", "<class>")),
        (lambda root: shutil.rmtree(root / "dog"), ("photos has one class only: cat", "two or more")),
        (lambda root: (root / "emu").mkdir(), ("photos/emu has no images", "remove the folder")),
        (lambda root: empty(root / "dog"), ("photos/dog has no images", "remove the folder")),
        (
            lambda root: [(root / "cat" / name).write_bytes(b"no image") for name in ("03.png", "07.png")],
            ("2 of 24 images cannot be read", "up to 1 would be left out", "cat/03.png", "cat/07.png"),
        ),
        (lambda root: Image.new("RGB", (9, 16)).save(root / "cat" / "00.png"), ("cat/00.png is 9 x 16", "data.size")),
    ],
    ids=["missing", "empty", "one class", "new empty class", "emptied class", "two corrupt files", "other size"],
)  # fmt: skip
def test_bad_data_are_named_and_never_written_to(command, tmp_path, photos, folder_yaml, damage, named):
    damage(photos)
    before, out = contents(tmp_path), tmp_path / "run"
    command("train", folder_yaml, "--out", out).refused(2, *named)
    assert contents(tmp_path) == before
    assert not out.exists()


@pytest.mark.parametrize("bad", [b"", b"no image", picture(3)[:40]], ids=["empty", "text", "truncated"])
def test_one_corrupt_file_is_left_out_named_and_kept(command, tmp_path, photos, folder_yaml, bad):
    (photos / "dog" / "05.png").write_bytes(bad)
    before = contents(photos)
    said = command("train", folder_yaml, "--out", tmp_path / "run", "--json")
    assert [row["point"] for row in said.json["points"]] == ["exit=1", "exit=2", "full"]
    assert "1 of 24 images left out" in said.err
    assert "dog/05.png" in said.err
    assert contents(photos) == before


def test_data_with_other_classes_are_no_test_of_a_run(command, exits_run, photos):
    before = contents(exits_run)
    said = command("evaluate", exits_run, "data.name=folder", f"data.root={photos}", "--json")
    said.refused(2, "other classes", "horizontal")
    assert contents(exits_run) == before


def test_predict_answers_the_good_files_and_names_the_bad_ones(command, exits_run, photos, tmp_path):
    good, text, gone = photos / "cat" / "00.png", tmp_path / "letter.png", tmp_path / "gone.png"
    text.write_text("Dear reader,")
    said = command("predict", exits_run, good, text, gone, photos / "dog" / "00.png", "--json")
    assert said.status == 2
    answered = [answer["file"] for answer in json.loads(said.out)["predictions"]]
    assert answered == [str(good), str(photos / "dog" / "00.png")]
    first, cure, second, again = said.err.splitlines()
    assert (first.startswith("error: "), str(text) in first) == (True, True)
    assert (second.startswith("error: "), str(gone) in second, "no such file" in second) == (True, True, True)
    assert cure == again == "Replace it or remove it."
    command("predict", exits_run, gone).refused(2, str(gone), "no such file")
    (tmp_path / "letters").mkdir()
    text = text.rename(tmp_path / "letters" / "letter.png")
    command("predict", exits_run, tmp_path / "letters").refused(2, str(text), "PNG")
    (tmp_path / "void").mkdir()
    command("predict", exits_run, tmp_path / "void").refused(2, "void holds no image", ".png")


# --- run folders ------------------------------------------------------------------------------------------------------


def vouch(run: Path) -> None:
    """Makes the manifest vouch for whatever model.safetensors is now."""
    change_manifest(run, files={"model.safetensors": sha256(run / "model.safetensors")})


def change_manifest(run: Path, **values: object) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def rewrite(run: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(run / "model.safetensors")
    change(tensors)
    save_file(tensors, run / "model.safetensors")
    vouch(run)


class Payload:
    """A pickle that leaves a mark where it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def pickled(run: Path) -> None:
    (run / "model.safetensors").write_bytes(pickle.dumps({"weight": Payload(run.with_name("opened"))}))


def torch_saved(run: Path) -> None:
    torch.save({"weight": Payload(run.with_name("opened"))}, run / "model.safetensors")
    vouch(run)


def cut(run: Path, name: str = "model.safetensors", size: int = 1000) -> None:
    (run / name).write_bytes((run / name).read_bytes()[:size])


def flip(run: Path) -> None:
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (run / "model.safetensors").write_bytes(data)


HEAD = "backbone.heads.0.9.weight"  # (classes, channels)
WEIGHTS, MANIFEST = "model.safetensors", "manifest.json"
DAMAGES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "truncated": (cut, (WEIGHTS, "altered or truncated")),
    "truncated and vouched for": (lambda run: (cut(run), vouch(run)), (WEIGHTS, "truncated")),
    "emptied": (lambda run: (cut(run, size=0), vouch(run)), (WEIGHTS, "truncated")),
    "one bit altered": (flip, (WEIGHTS, "altered or truncated")),
    "pickled": (pickled, (WEIGHTS, "altered or truncated")),
    "pickled and vouched for": (lambda run: (pickled(run), vouch(run)), (WEIGHTS, "never opened")),
    "saved by torch": (torch_saved, (WEIGHTS, "never opened")),
    "of another shape": (
        lambda run: rewrite(run, lambda t: t.update({HEAD: torch.zeros(7, 16)})),
        (WEIGHTS, HEAD, "has shape (7, 16), the model expects shape (4, 16)"),
    ),
    "a tensor missing": (lambda run: rewrite(run, lambda t: t.pop(HEAD)), (WEIGHTS, HEAD, "has nothing")),
    "a tensor too many": (
        lambda run: rewrite(run, lambda t: t.update(more=torch.zeros(2))),
        (WEIGHTS, "more has shape (2,), the model expects nothing"),
    ),
    "weights missing": (lambda run: (run / WEIGHTS).unlink(), (WEIGHTS, "is missing")),
    "manifest missing": (lambda run: (run / MANIFEST).unlink(), (MANIFEST, "is missing", "supple train")),
    "manifest truncated": (lambda run: cut(run, MANIFEST, 100), (MANIFEST, "cannot be read")),
    "manifest no text": (lambda run: (run / MANIFEST).write_bytes(b"\xff\xfe\x00"), (MANIFEST, "cannot be read")),
    "manifest no mapping": (lambda run: (run / MANIFEST).write_text("[1]"), (MANIFEST, "not named values")),
    "other format": (lambda run: change_manifest(run, format=1), (MANIFEST, "has format 1", "reads format 3")),
    "no files": (lambda run: change_manifest(run, files=None), (MANIFEST,)),
    "other recipe": (
        lambda run: change_manifest(run, recipe=tiny_document(backbone={"channels": 4})),
        (WEIGHTS, "the model expects shape"),
    ),
    "unknown key": (
        lambda run: change_manifest(run, recipe=tiny_document(train={"epohcs": 1})),
        (MANIFEST, "train.epohcs", "train.epochs"),
    ),
    "fewer classes": (lambda run: change_manifest(run, classes=["a", "b"]), (WEIGHTS, "expects shape (2, 16)")),
    "no input shape": (lambda run: change_manifest(run, input_shape=[]), (MANIFEST, "incomplete")),
    "wrong preprocessing": (lambda run: change_manifest(run, preprocess={"size": "x"}), ("preprocessing",)),
    "wrong ladder": (
        lambda run: (run / "ladder.json").write_text('{"points": 3}'),
        ("ladder.json", "Delete it", "supple evaluate"),
    ),
    "truncated ladder": (lambda run: cut(run, "ladder.json", 60), ("ladder.json", "Delete it", "supple evaluate")),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_run_is_refused_by_name_by_every_verb_and_stays_as_it_is(command, exits_copy, tmp_path, kind):
    damage, named = DAMAGES[kind]
    damage(exits_copy)
    before = contents(exits_copy)
    for verb, *more in (
        ["evaluate"],
        ["bench"],
        ["profile"],
        ["predict", tmp_path / "x.png"],
        ["extract", "--out", tmp_path / "out"],
        ["train", "--settle", "exit=1"],
    ):
        command(verb, exits_copy, *more).refused(2, *named)
    with pytest.raises(SuppleError):
        load(exits_copy)
    assert contents(exits_copy) == before
    assert not (tmp_path / "opened").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["recipe", "classes", "input_shape", "preprocess", "settled", "files", "format"])
def test_a_manifest_with_nonsense_in_it_is_refused_and_never_breaks(exits_copy, key):
    for value in (0, -1, 1e400, "x", ["x"], {"a": 1}, [[]]):
        change_manifest(exits_copy, **{key: value})
        with pytest.raises(SuppleError) as caught:
            load(exits_copy)
        assert caught.value.cure
        assert "\n" not in caught.value.cause


def test_what_is_no_run_folder_is_named(command, exits_run, tmp_path):
    file = tmp_path / "model.pt"
    torch.save(Payload(tmp_path / "opened"), file)
    for verb, *more in (["evaluate"], ["predict", "x.png"], ["extract", "--out", tmp_path / "out"], ["report"]):
        command(verb, tmp_path / "nowhere", *more).refused(2, str(tmp_path / "nowhere"), "supple train")
        command(verb, file, *more).refused(2, str(file), "supple train")
    with pytest.raises(CheckpointError, match="is a file, not a run folder"):
        load(file)
    assert not (tmp_path / "opened").exists()


def test_a_finished_run_is_neither_trained_over_nor_changed(command, exits_yaml, exits_run):
    before = contents(exits_run)
    command("train", exits_yaml, "train.epochs=1", "--out", exits_run).refused(
        2, str(exits_run), "finished run", "--out"
    )
    command("train", exits_run).refused(2, str(exits_run), "--resume")
    command("train", exits_run.parent, "--resume").refused(2, str(exits_run.parent), "no training to resume")
    assert contents(exits_run) == before


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exits_yaml: Path) -> Path:
    """A training of `exits_yaml` whose loss broke in its second epoch."""

    def explode(*facts: Any) -> Any:
        usual = make_schedule(*facts)
        return lambda progress, history: usual(progress, history) if progress < 1 else 1e30

    folder = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(supple.training.loop, "make_schedule", explode)
        command("train", exits_yaml, "--out", folder, "--json").refused(
            1, "epoch 2, step 2", "point exit=1, exit=2, full", "The last good state is kept", str(folder), "train.lr"
        )
    return folder


def test_after_a_broken_loss_the_last_good_state_is_there_and_leads_to_the_same_end(command, stopped, exits_run):
    facts, tensors = newest_state(stopped) or ({}, {})
    assert (facts["epoch"], facts["step"]) == (1, 0)
    assert all(value.isfinite().all() for value in tensors.values())
    assert no_temporary_file(stopped)
    assert len((stopped / "metrics.jsonl").read_text().splitlines()) == 1
    assert command("train", stopped, "--resume", "--json").status == 0
    assert (stopped / WEIGHTS).read_bytes() == (exits_run / WEIGHTS).read_bytes()


def test_a_broken_loss_names_the_one_point_that_broke(command, monkeypatch, tmp_path, exits_yaml):
    def poisoned(*facts: Any) -> Any:
        model = fresh_model(*facts)
        with torch.no_grad():
            next(model.branch(Point(exit=2)).parameters()).fill_(float("nan"))
        return model

    monkeypatch.setattr(supple.training.loop, "fresh_model", poisoned)
    said = command("train", exits_yaml, "--out", tmp_path / "run", "--json")
    said.refused(1, "epoch 1, step 1", "(point exit=2)", "No state was saved yet")


def test_weights_broken_by_the_last_step_of_an_epoch_are_not_kept(command, tmp_path, exits_yaml):
    """One step an epoch: its own loss is fine, but what it leaves behind is not."""
    out = tmp_path / "run"
    changes = ("train.lr=1e30", "train.warmup=0", "train.epochs=1", "data.batch_size=256")
    command("train", exits_yaml, *changes, "--out", out, "--json").refused(1, "epoch 1", "exit=1", "train.lr")
    assert newest_state(out) is None
    assert not (out / MANIFEST).exists()
    command("evaluate", out).refused(2, MANIFEST)


@pytest.mark.parametrize("change", ["train.epochs=3", "train.optimizer=adam", "train.seed=1", "loss.lam=0"])
def test_a_training_is_not_resumed_with_another_recipe(command, stopped, exits_yaml, change):
    before = contents(stopped)
    said = command("train", exits_yaml, change, "--out", stopped, "--resume")
    said.refused(2, f"was started with {change.partition('=')[0]}=", "--out")
    command("train", exits_yaml, "--out", stopped).refused(2, "already holds a training", "--resume")
    assert contents(stopped) == before


@pytest.mark.parametrize(
    ("text", "named"),
    [("data: [1", "is not valid YAML"), ("", "has no sections"), ("trian: {}", 'unknown key "trian"')],
)
def test_a_training_whose_saved_recipe_was_altered_is_not_resumed(command, stopped, text, named):
    (stopped / "recipe.yaml").write_text(text)
    before = contents(stopped)
    command("train", stopped, "--resume").refused(2, str(stopped / "recipe.yaml"), named)
    assert contents(stopped) == before


def test_two_trainings_do_not_work_in_one_folder(command, stopped, exits_yaml):
    with claim(stopped):
        before = contents(stopped / "state")
        command("train", stopped, "--resume").refused(2, "another training", str(stopped), "--out")
        command("train", exits_yaml, "--out", stopped).refused(2, "another training", str(stopped))
        assert contents(stopped / "state") == before
    with pytest.raises(ZeroDivisionError), claim(stopped):
        raise ZeroDivisionError
    assert no_temporary_file(stopped)  # the lock goes even if the training fails


# --- saving -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """`disk(n)`: from the n-th sync on, the disk is full."""
    fsync = os.fsync

    def fill_after(syncs: int) -> None:
        left = [syncs]

        def full(handle: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(handle)

        monkeypatch.setattr(os, "fsync", full)

    yield fill_after
    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.system
def test_a_disk_that_fills_up_at_any_moment_of_saving_leaves_a_run_that_loads(command, slim_copy, disk):
    """Settling writes over a finished run: weights, manifest and ladder, each synced, and the folder after each."""
    x = torch.randn(4, 3, 16, 16)
    model = load(slim_copy)
    expected = {point: model(x, point) for point in model.points}
    failures = 0
    for syncs in range(20):
        disk(syncs)
        said = command("train", slim_copy, "--settle", "width=0.75", "--json")
        again = load(slim_copy)
        for point, logits in expected.items():
            assert torch.equal(again(x, point), logits)
        if said.status == 0:
            break
        said.refused(1, str(slim_copy), "No space left on device", "Make room")
        assert no_temporary_file(slim_copy)
        failures += 1
    assert failures >= 4
    assert load(slim_copy).settled == (Point(width=0.75),)


@pytest.mark.parametrize("syncs", [0, 3, 7, 11])
def test_a_disk_that_fills_up_while_training_costs_no_finished_epoch(
    command, tmp_path, exits_yaml, exits_run, disk, syncs
):
    out = tmp_path / "run"
    disk(syncs)
    command("train", exits_yaml, "--out", out, "--json").refused(1, str(out), "No space left on device", "Make room")
    assert no_temporary_file(out)
    disk(10**9)
    resumed = command("train", exits_yaml, "--out", out, "--resume", "--json")
    assert resumed.status == 0, resumed.err
    assert (out / WEIGHTS).read_bytes() == (exits_run / WEIGHTS).read_bytes()


@pytest.mark.system
def test_a_file_the_system_really_refuses_to_write_leaves_the_old_checkpoint(slim_copy):
    """No pretence: the kernel stops every file of this process at 4 kB (as root, a read-only folder would not)."""
    before = contents(slim_copy)
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from supple.cli import main
sys.exit(main(sys.argv[1:]))
"""
    words = [sys.executable, "-B", "-c", code, "train", str(slim_copy), "--settle", "width=0.75", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    cause, cure = done.stderr.splitlines()
    assert cause.startswith(f"error: {slim_copy / WEIGHTS} could not be written:")
    assert "File too large" in cause
    assert cure.startswith("Make room")
    assert contents(slim_copy) == before
    assert load(slim_copy).settled == ()


@pytest.mark.parametrize("verb", ["evaluate", "bench"])
def test_a_read_only_folder_keeps_its_ladder(command, monkeypatch, exits_copy, verb):
    before = contents(exits_copy)

    def refuse(*facts: object, **more: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    command(verb, exits_copy, "--json").refused(1, str(exits_copy / "ladder.json"), "Read-only file system")
    assert contents(exits_copy) == before


def test_a_place_where_no_folder_can_be_is_named(command, tmp_path, exits_yaml, exits_run):
    file = tmp_path / "file"
    file.write_text("in the way")
    command("train", exits_yaml, "--out", file / "run").refused(2, str(file / "run"), "Not a directory", "--out")
    command("extract", exits_run, "--out", file / "out").refused(2, f"{file} is a file", "--out")
    command("extract", exits_run, "--out", file).refused(2, str(file), "--out")
    assert contents(tmp_path) == {"file": (b"in the way", file.stat().st_mtime_ns)}


def test_an_extract_that_does_not_fit_on_the_disk_can_be_tried_again_in_the_same_folder(
    command, tmp_path, exits_run, disk
):
    before, out = contents(exits_run), tmp_path / "out"
    disk(2)  # model.pt2 fits, the weights do not
    command("extract", exits_run, "--out", out).refused(1, str(out / WEIGHTS), "No space left on device")
    assert contents(out) == {}
    disk(10**9)
    assert command("extract", exits_run, "--out", out).status == 0
    assert contents(exits_run) == before


def test_a_batch_of_one_is_refused_where_batch_norm_has_one_value(tmp_path):
    with pytest.raises(RecipeError, match=r"batch has one sample") as caught:
        train(tiny_recipe("exits", data={"batch_size": 1, "size": 4}), tmp_path / "run", quiet=True)
    assert "Raise data.batch_size" in caught.value.cure


def test_pictures_that_changed_since_the_training_are_no_test_of_a_run(command, tmp_path, photos, folder_yaml):
    run = tmp_path / "run"
    assert command("train", folder_yaml, "--out", run, "--json").status == 0
    assert command("evaluate", run, "--json").status == 0
    (photos / "cat" / "00.png").rename(photos / "cat" / "zz.png")  # other places in the list: other splits
    command("evaluate", run).refused(2, "not those that the run was trained with", "data.fingerprint=null")
    assert command("evaluate", run, "data.fingerprint=null", "--json").status == 0
    assert command("evaluate", run, f"data.root={photos}", "--json").status == 0  # other images, on purpose


def test_a_holdout_that_leaves_too_little_and_wrong_class_counts_are_refused(command, tmp_path, folder_yaml):
    out = tmp_path / "run"
    command("train", folder_yaml, "data.holdout=15", "--out", out).refused(2, "holdout 15 keeps", "at most half")
    command("train", folder_yaml, "data.classes=10", "--out", out).refused(2, "data.classes is 10", "2 classes")
    assert not out.exists()


def test_options_that_would_be_ignored_are_refused(command, slim_run, exits_copy, tmp_path):
    out = tmp_path / "elsewhere"
    command("train", slim_run, "--settle", "width=0.75", "--out", out).refused(2, "--out does not go with the run")
    command("train", slim_run, "--resume", "--out", out).refused(2, "--out does not go with the run")
    command("train", tmp_path / "nothing", "--resume").refused(2, "there is no run folder")
    assert command("extract", exits_copy, "--out", out, "--json").status == 0
    command("evaluate", out).refused(2, "is an extracted network", "model.pt2")
