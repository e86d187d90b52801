"""The training loop: what it learns, what it writes down, and that interruptions leave no trace."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import supple.train
from supple import checkpoint, files
from supple.cli import main
from supple.errors import CheckpointError, RecipeError
from supple.interrupt import Interrupted, Patience
from supple.machine import has_bf16
from supple.point import FULL, Point
from supple.probe import choose, pick_precision
from supple.recipe import make_recipe
from supple.standing import newest_state
from supple.train import make_fabric, train

EXITS = {
    "backbone": {
        "name": "msdnet",
        "blocks": 3,
        "base": 1,
        "step": 1,
        "channels": 4,
        "growth_rate": 4,
        "head_channels": 8,
    }
    | {"growth_factors": [1, 2], "bottleneck_factors": [1, 2]},
    "method": {"name": "exits"},
}
SLIM = {
    "backbone": {"name": "mobilenet_v1", "channels": [16, 32], "strides": [2]},
    "method": {"name": "slim", "widths": [0.5, 0.75, 1.0]},
}


def recipe(sections=EXITS, **settings):
    document = {"data": {"name": "generated", "batch_size": 32, "crop": 1, "flip": True}, **sections}
    return make_recipe({**document, "train": {"epochs": 2, "lr": 0.05, "threads": 1, **settings}})


def weights(folder: Path) -> str:
    return files.sha256(folder / checkpoint.WEIGHTS)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Stopper(Patience):
    """As if Ctrl-C came during the n-th step."""

    def __init__(self, at: int) -> None:
        self.left = at

    @property
    def ended(self) -> bool:
        self.left -= 1  # looked at once in every step
        return self.left <= 0

    @ended.setter
    def ended(self, value: bool) -> None: ...


def interrupted(monkeypatch, folder: Path, step: int, **settings) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(supple.train, "Patience", lambda: Stopper(step))
        train(recipe(**settings), folder, resume=True, quiet=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return train(recipe(epochs=3, optimizer="adam", lr=0.01, schedule="plateau"), folder, quiet=True)


def test_training_learns_every_point_and_writes_the_whole_run_folder(whole):
    lines = metrics(whole)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    for part in ("train", "val"):
        assert set(lines[0][part]) == {"exit=1", "exit=2", "full"}
    assert lines[-1]["loss"] < lines[0]["loss"]
    names = {path.name for path in whole.iterdir()}
    assert {"model.safetensors", "manifest.json", "ladder.json", "metrics.jsonl", "recipe.yaml", "report.html"} <= names
    assert not (whole / "state").exists()
    model = checkpoint.load(whole)
    rows = model.ladder.rows
    assert [row.point for row in rows] == ["exit=1", "exit=2", "full"]
    assert all(row.score > 0.4 and row.n == 64 for row in rows)  # four classes: chance is 0.25
    assert model.classes
    assert model.preprocess.size == 16


def test_the_resolved_recipe_has_no_auto_left(whole):
    settings = yaml.safe_load((whole / "recipe.yaml").read_text())["train"]
    assert {settings[key] for key in ("precision", "memory_format", "compile")} == {"fp32", "channels_first", "off"}
    assert settings["threads"] == 1


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path, whole):
    settings = {"epochs": 3, "optimizer": "adam", "lr": 0.01, "schedule": "plateau"}
    again = train(recipe(**settings), tmp_path / "again", quiet=True)
    other = train(recipe(**settings, seed=1), tmp_path / "other", quiet=True)
    assert weights(again) == weights(whole) != weights(other)


@pytest.mark.parametrize("steps", [(3,), (8,), (11, 2)])
def test_a_training_stopped_in_any_epoch_resumes_bit_identically(monkeypatch, tmp_path, whole, steps):
    settings = {"epochs": 3, "optimizer": "adam", "lr": 0.01, "schedule": "plateau"}
    for step in steps:
        interrupted(monkeypatch, tmp_path / "run", step, **settings)
    train(None, tmp_path / "run", resume=True, quiet=True)
    assert weights(tmp_path / "run") == weights(whole)
    for line, same in zip(metrics(tmp_path / "run"), metrics(whole), strict=True):
        assert line["loss"] == pytest.approx(same["loss"])
        assert line["val"] == same["val"]
        assert line["train"]["full"] == pytest.approx(same["train"]["full"])


def test_a_damaged_newest_state_falls_back_to_the_one_before(monkeypatch, tmp_path, whole):
    settings = {"epochs": 3, "optimizer": "adam", "lr": 0.01, "schedule": "plateau"}
    folder = tmp_path / "run"
    interrupted(monkeypatch, folder, 12, **settings)
    interrupted(monkeypatch, folder, 5, **settings)
    states = sorted((folder / "state").glob("epoch-*.safetensors"))
    assert len(states) == 2
    states[-1].write_bytes(states[-1].read_bytes()[:-100])
    facts, _ = newest_state(folder)
    assert (facts["epoch"], facts["step"]) < (2, 5)
    train(None, folder, resume=True, quiet=True)
    assert weights(folder) == weights(whole)


def test_a_failed_save_leaves_the_state_before_it(monkeypatch, tmp_path):
    folder = tmp_path / "run"
    interrupted(monkeypatch, folder, 3)
    before, _ = newest_state(folder)
    (folder / "state" / ".epoch-00000-step-0000099.safetensors.x").write_bytes(b"half a file")
    (folder / "state" / "epoch-00000-step-0000099.safetensors").write_bytes(b"whole, but its JSON was never written")
    assert newest_state(folder)[0] == before


def test_a_killed_process_ends_bit_identical():
    script = Path(__file__).parents[1] / "benchmarks" / "kill_resume.py"
    words = [sys.executable, str(script), "--kills", "1", "--seed", "5", "--epochs", "4"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 end bit-identical" in done.stdout


def test_two_processes_train_one_model_together(tmp_path):
    recipe_file = tmp_path / "r.yaml"
    recipe_file.write_text(recipe(epochs=2, devices=2, accelerator="cpu").to_yaml())
    words = [sys.executable, "-m", "supple", "train", str(recipe_file), "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["points"]) == 3  # one document: only the first process tells
    assert [line["step"] for line in metrics(tmp_path / "run")] == [4, 8]  # 256 images, 2 x 32 per step


def test_ctrl_c_once_saves_and_exits_130_and_resume_finishes(tmp_path):
    """In a process of its own: the signal arrives while it trains."""
    recipe_file = tmp_path / "r.yaml"
    recipe_file.write_text(recipe(epochs=400).to_yaml())
    code = (
        "import os, signal, sys, threading, time; from pathlib import Path; from supple.cli import main\n"
        "def interrupt():\n"
        "    while not Path(sys.argv[2], 'metrics.jsonl').exists(): time.sleep(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "sys.exit(main(['train', sys.argv[1], '--out', sys.argv[2]]))"
    )
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", code, recipe_file, folder], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 130, done.stderr
    assert f"supple train {folder} --resume" in done.stderr
    assert newest_state(folder) is not None


def test_a_finished_run_is_not_trained_again(whole, capsys):
    before = weights(whole)
    assert main(["train", str(whole), "--resume"]) == 0
    assert weights(whole) == before
    with pytest.raises(CheckpointError, match="already holds a finished run"):
        train(recipe(), whole)


def test_slim_trains_with_the_sandwich_rule_and_settles_a_further_width(tmp_path):
    folder = train(recipe(SLIM, sample="sandwich", settle=["width=0.6"], lr=0.02), tmp_path / "run", quiet=True)
    model = checkpoint.load(folder)
    assert model.settled == (Point(width=0.6),)
    assert [row.point for row in model.ladder] == ["width=0.5", "width=0.6", "width=0.75", "full"]
    assert model(torch.randn(2, 3, 16, 16), Point(width=0.6)).shape == (2, 4)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "schedule": "exponential", "gamma": 0.9},
        {"clip": 0.1, "memory_format": "channels_last", "nesterov": True, "warmup": 1},
        {"sample": "one", "schedule": "step", "milestones": [1]},
        {"sample": "full", "schedule": "constant", "select": "loss"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_every_setting_trains(tmp_path, settings):
    folder = train(recipe(epochs=1, **settings), tmp_path / "run", quiet=True)
    assert checkpoint.load(folder).ladder.rows[-1].score is not None


def test_the_kept_epoch_is_the_best_one_by_the_chosen_rule(tmp_path):
    for select in ("score", "loss"):
        folder = train(recipe(epochs=4, lr=0.2, select=select), tmp_path / select, quiet=True)
        lines = metrics(folder)
        sums = [{k: sum(entry[k] for entry in line["val"].values()) for k in ("score", "loss")} for line in lines]
        means = [(s["score"], -s["loss"]) if select == "score" else (-s["loss"], s["score"]) for s in sums]
        kept = json.loads((folder / "manifest.json").read_text())["epoch"]
        assert kept == 1 + means.index(max(means))
        assert [line["selected"] for line in lines] == [
            mean > max(means[:i], default=(-1e9, 0)) for i, mean in enumerate(means)
        ]


def test_early_stopping_ends_the_training(tmp_path):
    folder = train(recipe(epochs=50, lr=1e-12, weight_decay=0, early_stop=2, schedule="constant"), tmp_path, quiet=True)
    lines = metrics(folder)
    assert len(lines) < 50
    losses = [sum(entry["loss"] for entry in line["val"].values()) for line in lines]
    assert len(losses) - 1 - losses.index(min(losses)) == 2


def test_without_a_terminal_there_is_one_line_per_epoch(tmp_path, capsys):
    train(recipe(epochs=2), tmp_path / "run")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert len(lines) == 2
    assert re.search(r"epoch 2/2  loss .* full .* images/s  ETA", lines[1])


def test_mixed_precision_is_refused_where_the_machine_has_none():
    assert pick_precision("auto", "cpu") == "fp32"
    with pytest.raises(RecipeError, match="fp16"):
        pick_precision("fp16", "cpu")
    if not has_bf16():
        with pytest.raises(RecipeError, match="no bf16 arithmetic"):
            pick_precision("bf16", "cpu")


def test_auto_takes_bf16_on_a_gpu_that_has_it_before_anything_is_set_up(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert pick_precision("auto", "auto") == "bf16"
    assert pick_precision("auto", "cpu") == "fp32"
    assert make_fabric(recipe(precision="fp32", accelerator="cpu").train).device.type == "cpu"


def test_mixed_precision_trains_through_fabric(tmp_path, monkeypatch):
    monkeypatch.setattr("supple.probe.has_bf16", lambda: True)
    folder = train(recipe(epochs=1, precision="bf16"), tmp_path / "run", quiet=True)
    assert checkpoint.load(folder)(torch.randn(1, 3, 16, 16), FULL).dtype == torch.float32


def test_a_short_training_is_neither_probed_nor_compiled():
    from supple.assemble import fresh_model, load_data
    from supple.losses import distill_objective

    wanted = recipe()
    splits = load_data(wanted)
    model = fresh_model(wanted, splits)
    objective = distill_objective(model.points)
    chosen = choose(wanted, model, model.points, splits.train, objective, torch.device("cpu"), quiet=True)
    assert (chosen.train.compile, chosen.train.memory_format) == ("off", "channels_first")
