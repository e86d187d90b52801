"""The training loop: what it learns, what it writes down, and that interruptions leave no trace."""

import json
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

import supple.training.loop
from supple import checkpoint, files
from supple.cli import main
from supple.errors import CheckpointError, RecipeError
from supple.point import Point
from supple.recipe import make_recipe
from supple.training.build import fresh_model, load_data
from supple.training.finalize import settle
from supple.training.loop import train
from supple.training.state import GracefulInterrupt, Interrupted, newest_state
from supple.training.step import make_fabric, set_up, training_step

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


class Stopper(GracefulInterrupt):
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
        patch.setattr(supple.training.loop, "GracefulInterrupt", lambda: Stopper(step))
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


def test_the_last_epoch_is_kept_where_it_is_asked_for(tmp_path):
    """At a rate that undoes what was learnt, the best epoch is not the last."""
    settings = {"epochs": 4, "optimizer": "adam", "lr": 0.01, "schedule": "constant"}
    for select in ("score", "last"):
        folder = train(recipe(**settings, select=select, seed=3), tmp_path / select, quiet=True)
        lines = metrics(folder)
        facts = checkpoint.read_manifest(folder)
        kept = [line["epoch"] for line in lines if line["selected"]]
        if select == "last":
            assert kept == [1, 2, 3, 4]
            assert facts["epoch"] == 4
        else:
            merits = [(sum(point["score"] for point in line["val"].values()), line["epoch"]) for line in lines]
            assert facts["epoch"] == kept[-1] == next(e for s, e in merits if s == max(merits)[0])


@pytest.mark.system
def test_a_killed_process_ends_bit_identical():
    script = Path(__file__).parents[2] / "benchmarks" / "kill_resume.py"
    words = [sys.executable, str(script), "--kills", "1", "--seed", "5", "--epochs", "4"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 end bit-identical" in done.stdout


@pytest.mark.system
def test_two_processes_train_one_model_together(tmp_path):
    recipe_file = tmp_path / "r.yaml"
    recipe_file.write_text(recipe(epochs=2, devices=2, accelerator="cpu").to_yaml())
    words = [sys.executable, "-m", "supple", "train", str(recipe_file), "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["points"]) == 3  # one document: only the first process tells
    assert [line["step"] for line in metrics(tmp_path / "run")] == [4, 8]  # 256 images, 2 x 32 per step


@pytest.mark.system
def test_ctrl_c_once_saves_the_step_it_came_in_and_exits_130_and_resume_finishes(tmp_path):
    """In a process of its own: the signal arrives in the eleventh step, the third of the second epoch."""
    wanted = recipe(epochs=2)
    recipe_file = tmp_path / "r.yaml"
    recipe_file.write_text(wanted.to_yaml())
    code = (
        "import os, signal, sys; import supple.training.loop as loop; from supple.cli import main\n"
        "step, done = loop.training_step, []\n"
        "def interrupted(*given):\n"
        "    done.append(1)\n"
        "    if len(done) == 11: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return step(*given)\n"
        "loop.training_step = interrupted\n"
        "sys.exit(main(['train', sys.argv[1], '--out', sys.argv[2]]))"
    )
    folder = tmp_path / "run"
    words = [sys.executable, "-c", code, recipe_file, folder]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130, done.stderr
    assert f"supple train {folder} --resume" in done.stderr
    facts, _ = newest_state(folder)
    assert (facts["epoch"], facts["step"]) == (1, 3)
    assert [line["epoch"] for line in metrics(folder)] == [1]
    assert main(["train", str(folder), "--resume"]) == 0
    assert [line["epoch"] for line in metrics(folder)] == [1, 2]
    assert weights(folder) == weights(train(wanted, tmp_path / "whole", quiet=True))


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


class Seen:
    """A data set that notes whether it was asked for augmented images."""

    def __init__(self) -> None:
        self.augmented: list[bool] = []

    def __len__(self) -> int:
        return 300

    def batch(self, indices, rng=None):
        self.augmented.append(rng is not None)
        return torch.zeros(len(indices), 3, 16, 16), torch.zeros(len(indices), dtype=torch.int64)


def test_norms_are_settled_on_images_like_those_that_the_weights_have_learnt_from():
    """On CIFAR-10, plain images cost a network that learnt from augmented ones 1.4 points of the test accuracy."""
    splits = load_data(recipe(SLIM))
    for kept, augmented in (("training", True), ("validation", False)):
        model, seen, other = fresh_model(recipe(SLIM), splits), Seen(), Seen()
        model.settles_on = kept
        parts = (seen, other) if kept == "training" else (other, seen)
        settle(model, *parts, [Point(width=0.6)], 0)
        assert seen.augmented == [augmented] * 2
        assert not other.augmented


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "schedule": {"name": "exponential", "gamma": 0.9}},
        {"clip": 0.1, "memory_format": "channels_last", "optimizer": {"nesterov": True}, "warmup": 1},
        {"sample": "one", "schedule": {"name": "step", "milestones": [1]}},
        {"sample": "full", "schedule": "constant", "select": "loss"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_every_setting_trains_all_points_and_can_be_loaded(tmp_path, settings):
    folder = train(recipe(epochs=2, **settings), tmp_path / "run", quiet=True)
    first, last = metrics(folder)
    assert last["loss"] < first["loss"] or settings.get("sample") == "one"  # of another point in each step
    model = checkpoint.load(folder)
    assert [row.point for row in model.ladder] == ["exit=1", "exit=2", "full"]
    assert all(0 <= row.score <= 1 and row.n == 64 for row in model.ladder)


def test_the_rate_follows_the_schedule_of_the_recipe(tmp_path):
    schedule = {"name": "step", "milestones": [1, 2], "gamma": 0.5}
    folder = train(recipe(epochs=3, lr=0.04, schedule=schedule), tmp_path / "run", quiet=True)
    assert [line["lr"] for line in metrics(folder)] == pytest.approx([0.04, 0.02, 0.01])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"schedule": {"name": "one_cycle", "total_steps": 3}}, "This training has 16 steps"),
        ({"optimizer": {"name": "adam", "betas": [0.9, 2]}}, "Invalid beta parameter"),
    ],
    ids=["schedule", "optimizer"],
)
def test_what_optimizer_or_schedule_refuse_is_refused_before_anything_is_written(tmp_path, settings, said):
    with pytest.raises(RecipeError, match=said):
        train(recipe(**settings), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_selected_epoch_is_the_best_one_by_the_chosen_rule(tmp_path):
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


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_step_whose_loss_is_not_a_number_changes_no_weights(clip):
    wanted = recipe(clip=clip, precision="fp32")
    splits = load_data(wanted)
    model = fresh_model(wanted, splits).train()
    fabric = make_fabric(wanted.train)
    wrapped, optimizer = set_up(fabric, wanted.train, model)
    batch = splits.train.batch(torch.arange(8))
    parameters = torch.nn.utils.parameters_to_vector(model.parameters()).clone()
    for factor, same in ((math.nan, True), (1.0, False)):
        objective = partial(lambda factor, outputs, y: factor * outputs[-1].logits.sum(), factor)
        _, loss = training_step(fabric, wanted.train, wrapped, optimizer, objective, batch, model.points)
        assert math.isfinite(loss) is not same
        assert torch.equal(torch.nn.utils.parameters_to_vector(model.parameters()), parameters) is same


def test_a_step_learns_from_the_penalty_too():
    wanted = recipe(optimizer={"name": "sgd", "momentum": 0.0}, lr=0.5, weight_decay=0.0, precision="fp32")
    model = fresh_model(wanted, load_data(wanted)).train()
    weight = next(model.parameters())
    model.penalty = lambda outputs: (weight * torch.ones_like(weight)).sum()  # its gradient is 1
    fabric = make_fabric(wanted.train)
    wrapped, optimizer = set_up(fabric, wanted.train, model)
    before = weight.detach().clone()
    batch = torch.randn(4, 3, 16, 16), torch.zeros(4, dtype=torch.long)
    training_step(fabric, wanted.train, wrapped, optimizer, lambda outputs, y: torch.zeros(()), batch, model.points)
    torch.testing.assert_close(weight.detach(), before - 0.5)
