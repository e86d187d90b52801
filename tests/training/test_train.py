"""The training loop: what it learns, what it writes down, and that interruptions leave no trace."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

import supple.training.loop
from supple import checkpoint, files
from supple.cli import main
from supple.errors import CheckpointError, RecipeError
from supple.losses import distill_objective
from supple.point import FULL, Point
from supple.recipe import make_recipe
from supple.training.autotune import choose, pick_precision
from supple.training.build import fresh_model, load_data
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


def test_a_killed_process_ends_bit_identical():
    script = Path(__file__).parents[2] / "benchmarks" / "kill_resume.py"
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


def test_mixed_precision_is_refused_where_the_machine_has_none(monkeypatch):
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: False)
    assert pick_precision(recipe(accelerator="cpu").train) == "fp32"
    for asked in ("fp16", "bf16"):
        with pytest.raises(RecipeError, match=f"no {asked} arithmetic"):
            pick_precision(recipe(precision=asked, accelerator="cpu").train)


def test_on_a_cpu_with_bf16_auto_is_left_to_a_measurement_unless_several_processes_must_agree(monkeypatch):
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: True)
    assert pick_precision(recipe(accelerator="cpu").train) == "auto"
    assert pick_precision(recipe(accelerator="cpu", devices=2).train) == "fp32"
    assert pick_precision(recipe(accelerator="cpu", nodes=2).train) == "fp32"


def test_auto_takes_bf16_on_a_gpu_that_has_it_before_anything_is_set_up(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: False)
    assert pick_precision(recipe().train) == "bf16"
    assert pick_precision(recipe(devices=2).train) == "bf16"
    assert pick_precision(recipe(accelerator="cpu").train) == "fp32"
    assert make_fabric(recipe(precision="fp32", accelerator="cpu").train).device.type == "cpu"


def test_mixed_precision_trains_through_fabric(tmp_path, monkeypatch):
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: True)
    folder = train(recipe(epochs=1, precision="bf16"), tmp_path / "run", quiet=True)
    assert checkpoint.load(folder)(torch.randn(1, 3, 16, 16), FULL).dtype == torch.float32


def probed(wanted, seconds, factor=lambda: 1.0):
    """The settings chosen, and the forms tried, where `seconds(last, bf16)` is the time of a step.

    `factor` is what logits are multiplied by: looked at in the precision that is tried.
    """
    splits = load_data(wanted)
    model = fresh_model(wanted, splits)
    now, tried = [0.0], set()

    def pass_time(module, inputs):
        form = inputs[0].is_contiguous(memory_format=torch.channels_last), torch.is_autocast_enabled("cpu")
        tried.add(form)
        now[0] += seconds(*form)

    def spoil(module, inputs, outputs):
        return [replace(output, logits=output.logits * factor()) for output in outputs]

    model.register_forward_pre_hook(pass_time)
    model.register_forward_hook(spoil)
    objective = distill_objective(model.points)
    where = torch.device("cpu")
    batch, steps = splits.train.batch(torch.arange(32)), wanted.train.epochs * (len(splits.train) // 32)
    chosen = choose(wanted.train, model, model.points, batch, steps, objective, where, quiet=True, clock=lambda: now[0])
    return chosen, tried


@pytest.mark.parametrize(("speed", "precision"), [(1.14, "fp32"), (1.16, "bf16"), (0.6, "fp32")])
def test_auto_takes_bf16_from_1_15_times_the_speed_on(monkeypatch, caplog, speed, precision):
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: True)
    # 10 epochs of 8 steps, 40 s in fp32
    settings, tried = probed(recipe(epochs=10, memory_format="channels_first"), lambda _, bf16: 0.5 / (speed**bf16))
    assert settings.precision == precision
    assert tried == {(False, False), (False, True)}
    assert not caplog.records  # Fabric says nothing of a precision that is only tried


def test_a_precision_that_breaks_the_loss_is_not_taken_however_fast_it_is(monkeypatch):
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: True)
    wanted = recipe(epochs=10, memory_format="channels_first")
    settings, tried = probed(
        wanted, lambda _, bf16: 0.1 if bf16 else 0.5, lambda: math.nan if torch.is_autocast_enabled("cpu") else 1.0
    )
    assert settings.precision == "fp32"
    assert tried == {(False, False), (False, True)}


def test_bf16_is_measured_in_the_memory_format_that_was_chosen_in_fp32(monkeypatch):
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: True)
    seconds = {(False, False): 1.0, (True, False): 0.9, (True, True): 0.7}  # no other form is tried
    settings, tried = probed(recipe(epochs=10), lambda *form: seconds[form])
    assert (settings.memory_format, settings.precision) == ("channels_last", "bf16")
    assert tried == set(seconds)


@pytest.mark.parametrize(
    ("bf16", "seconds", "asked"),
    [(True, 0.37, "auto"), (False, 1.0, "auto"), (True, 1.0, "fp32")],
    ids=["under 30 s", "no bf16", "asked for"],
)
def test_what_need_not_be_measured_is_fp32_unmeasured(monkeypatch, bf16, seconds, asked):
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: bf16)
    wanted = recipe(epochs=10, memory_format="channels_first", precision=asked)  # 80 steps
    settings, tried = probed(wanted, lambda *_: seconds)
    assert settings.precision == "fp32"
    assert tried == {(False, False)}


@pytest.fixture
def bf16_wins(monkeypatch):
    """A machine where every training is probed and bf16 always wins; elsewhere autocast emulates it."""
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: True)
    monkeypatch.setattr("supple.training.autotune.WORTH_PROBING_S", 0)
    monkeypatch.setattr("supple.training.autotune.BF16_SPEED", 1e-6)


def test_a_training_in_the_bf16_that_auto_chose_resumes_bit_identically(monkeypatch, tmp_path, bf16_wins):
    fixed = {"epochs": 2, "memory_format": "channels_first"}
    once = train(recipe(**fixed), tmp_path / "once", quiet=True)
    settings = yaml.safe_load((once / "recipe.yaml").read_text())["train"]
    assert (settings["precision"], settings["precision_chosen"]) == ("bf16", True)
    assert [line["precision"] for line in metrics(once)] == ["bf16", "bf16"]

    interrupted(monkeypatch, tmp_path / "twice", 11, **fixed)
    train(recipe(**fixed), tmp_path / "twice", resume=True, quiet=True)
    assert weights(tmp_path / "twice") == weights(once)
    by_name = train(recipe(**fixed, precision="bf16"), tmp_path / "by-name", quiet=True)
    exact = train(recipe(**fixed, precision="fp32"), tmp_path / "exact", quiet=True)
    assert weights(by_name) == weights(once) != weights(exact)


def test_bf16_that_auto_chose_is_resumed_in_fp32_where_there_is_none(monkeypatch, tmp_path, bf16_wins, capsys):
    interrupted(monkeypatch, tmp_path / "run", 11, memory_format="channels_first")  # in the second of two epochs
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: False)
    train(None, tmp_path / "run", resume=True)
    said = [line for line in capsys.readouterr().err.splitlines() if "fp32" in line]
    assert said == ["bf16, chosen by auto on another machine, is missing here: resuming in fp32."]
    assert [line["precision"] for line in metrics(tmp_path / "run")] == ["bf16", "fp32"]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["recipe"]["train"]["precision"] == "fp32"


def test_bf16_asked_for_by_name_is_not_resumed_where_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: True)
    interrupted(monkeypatch, tmp_path / "run", 3, precision="bf16")
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: False)
    with pytest.raises(RecipeError, match="no bf16 arithmetic"):
        train(None, tmp_path / "run", resume=True, quiet=True)


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


def test_a_short_training_is_neither_probed_nor_compiled():
    settings, tried = probed(recipe(), lambda *_: 0.01)
    assert (settings.precision, settings.compile, settings.memory_format) == ("fp32", "off", "channels_first")
    assert tried == {(False, False)}
