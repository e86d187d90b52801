"""Devices by name: which are valid, which are here, what is moved and what is waited for."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from supple import device as module
from supple.device import device_here, device_named, devices, must_be_here, placed, synchronise
from supple.errors import RecipeError
from supple.machine import has_bf16, machine, same_instructions, short_names
from tiny_gpu import NAME, pretend


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("given", "device"),
    [
        ("cpu", "cpu"),
        (" CPU ", "cpu"),
        ("cuda", "cuda:0"),
        ("cuda:1", "cuda:1"),
        ("mps", "mps"),
        ("mps:0", "mps"),
        (torch.device("cuda", 2), "cuda:2"),
    ],
)
def test_a_device_has_one_spelling(given, device):
    assert device_named(given) == device


@pytest.mark.parametrize("given", ["gpu", "cuda:", "cuda:-1", "cuda:one", "cpu:1", "", "0", "xpu", "meta"])
def test_what_is_no_device_is_named_with_what_is_possible(given):
    with pytest.raises(RecipeError, match=f'"{given}" is not a valid device') as told:
        device_named(given)
    assert "cpu, cuda, cuda:1" in told.value.cure


@pytest.mark.parametrize("given", ["cuda", "cuda:3", "mps"])
def test_a_device_that_is_not_here_is_named_with_those_that_are(no_gpu, given):
    with pytest.raises(RecipeError, match=f"the device {device_named(given)} cannot be used: PyTorch finds only cpu"):
        device_here(given)


def test_a_second_gpu_that_is_not_there_is_refused(monkeypatch):
    pretend(monkeypatch)
    assert device_here("cuda") == "cuda:0"
    with pytest.raises(RecipeError, match="finds only cuda:0, cpu here"):
        must_be_here("cuda:1")


def test_auto_takes_cuda_before_mps_before_the_cpu(no_gpu, monkeypatch):
    assert (device_named("auto"), device_here("auto")) == ("cpu", "cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device_here("auto") == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices() == ["cuda:0", "cuda:1", "mps", "cpu"]
    assert device_here("auto") == "cuda:0"


def test_without_torch_there_is_the_cpu(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert (devices(), device_named("auto")) == (["cpu"], "cpu")


def test_nothing_named_means_where_the_model_is():
    model = torch.nn.Linear(1, 1)
    assert (device_here(None), device_here(None, model), device_here(None, model.to("meta"))) == ("cpu", "cpu", "meta")


class Moving(torch.nn.Linear):
    """Writes down where it is sent, and stays."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.sent: list[str] = []

    def to(self, device):
        self.sent.append(device)
        return self


def test_a_model_goes_to_a_device_and_back_also_after_an_error():
    model = Moving()
    with placed(model, "cuda:0"):
        assert model.sent == ["cuda:0"]
    assert model.sent == ["cuda:0", "cpu"]
    with pytest.raises(ZeroDivisionError), placed(model, "cuda:0"):
        raise ZeroDivisionError
    assert model.sent == ["cuda:0", "cpu"] * 2


def test_a_model_that_is_there_is_left_alone():
    model = Moving()
    with placed(model, "cpu"):
        pass
    assert model.sent == []


def test_the_cpu_is_not_waited_for(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "synchronize", seen.append)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: seen.append("the accelerator"))
    for device in ("cpu", "cuda:1", "mps"):
        synchronise(device)
    assert seen == ["cuda:1", "the accelerator"]


# --- the machine's name -----------------------------------------------------------------------------------------------


@pytest.fixture
def nameless():
    """Names of GPUs are asked for once: forget them."""
    from supple.machine import _gpu

    _gpu.cache_clear()
    yield
    _gpu.cache_clear()


def test_the_name_of_a_machine_ends_with_that_of_its_gpu(monkeypatch, nameless):
    pretend(monkeypatch)
    assert machine("cpu") == machine()
    assert machine("cuda:0") == f"{machine()}, {NAME}"
    assert machine("mps") == f"{machine()}, mps GPU"


def test_scores_of_a_gpu_count_on_that_gpu_alone(monkeypatch, nameless):
    pretend(monkeypatch)
    mine = "A processor, 2 cores, avx2 avx512"
    assert same_instructions(f"{mine}, {NAME}", f"{mine}, {NAME}")
    assert not same_instructions(mine, f"{mine}, {NAME}")
    assert not same_instructions(f"{mine}, Another GPU", f"{mine}, {NAME}")


def test_without_cuda_in_torch_the_driver_names_the_gpu(no_gpu, monkeypatch, nameless):
    asked = []

    def run(words, **how):
        asked.append(words)
        return SimpleNamespace(stdout="NVIDIA Other\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert machine("cuda:1") == f"{machine()}, NVIDIA Other"
    assert asked[0][:2] == ["nvidia-smi", "--id=1"]


def test_a_gpu_that_nobody_can_name_is_not_the_cpu(no_gpu, monkeypatch, nameless):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    assert machine("cuda:0") == f"{machine()}, cuda:0 of unknown name"


def test_bf16_is_a_matter_of_the_device(no_gpu, monkeypatch):
    assert (has_bf16("cuda:0"), has_bf16("mps")) == (False, False)
    pretend(monkeypatch)
    assert has_bf16("cuda:0")
    assert not has_bf16("cuda:1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not has_bf16("cuda:0")


def test_machines_are_told_apart_by_what_differs():
    mine, its = "A processor, 2 cores, avx2", "A processor, 2 cores, avx2, NVIDIA Pretend"
    assert short_names([mine, its]) == {mine: "CPU", its: "NVIDIA Pretend"}
    assert short_names([mine, "A processor, 4 cores, avx2"]) == {
        mine: "2 cores, avx2",
        "A processor, 4 cores, avx2": "4 cores, avx2",
    }
