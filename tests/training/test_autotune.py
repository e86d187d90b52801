"""Precision, memory format, compilation: what `auto` chooses by a clock that the tests set, and what a resume keeps."""

import json
import math
from dataclasses import replace

import pytest
import torch
import yaml
from test_train import interrupted, metrics, recipe, weights

from supple import checkpoint
from supple.errors import RecipeError
from supple.losses import distill_objective
from supple.point import FULL
from supple.training.autotune import choose, pick_precision
from supple.training.build import fresh_model, load_data
from supple.training.loop import train
from supple.training.step import make_fabric


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


def probed(wanted, seconds, factor=lambda: 1.0, quiet=True):
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
    chosen = choose(wanted.train, model, model.points, batch, steps, objective, where, quiet, clock=lambda: now[0])
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


def test_the_time_that_is_said_is_that_of_the_form_that_was_chosen(monkeypatch, capsys):
    monkeypatch.setattr("supple.training.autotune.has_bf16", lambda: True)
    seconds = {(False, False): 1.0, (True, False): 0.8, (True, True): 0.5}  # of a step; 80 steps
    probed(recipe(epochs=10, compile="off"), lambda *form: seconds[form], quiet=False)
    assert "precision=bf16, memory_format=channels_last, compile=off (about 40 s of steps)" in capsys.readouterr().err


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


def test_a_short_training_is_neither_probed_nor_compiled():
    settings, tried = probed(recipe(), lambda *_: 0.01)
    assert (settings.precision, settings.compile, settings.memory_format) == ("fp32", "off", "channels_first")
    assert tried == {(False, False)}
