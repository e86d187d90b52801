"""Engines and verbs on the device that they are told. The GPU of these tests is pretended (tiny_gpu.py): what is moved
to it is counted and stays on the CPU, so that the answers must be those of the CPU."""

import json
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

import supple
from supple.checkpoint import load, load_ladder
from supple.errors import RecipeError
from supple.inference.bundle import Check, open_bundle
from supple.inference.engines import check_device, open_engine
from supple.inference.engines.torch import TorchEngine
from supple.inference.select import Choice, choices_for, of_model, predictor, within
from supple.inference.select import fastest as choose
from supple.ladder import Ladder
from supple.machine import machine
from supple.surgery.deploy import fastest
from tiny_gpu import NAME, pretend

SHAPE = (3, 16, 16)  # of the generated images
WAITED = "waited for cuda:0"


@pytest.fixture
def gpu(monkeypatch):
    from supple.machine import _gpu

    _gpu.cache_clear()
    yield pretend(monkeypatch)
    _gpu.cache_clear()


@pytest.fixture(scope="module")
def exported(exits_run, tmp_path_factory):
    pytest.importorskip("onnxscript", reason="needs the extra export")
    return supple.export(load(exits_run), tmp_path_factory.mktemp("exported") / "onnx", calibration=Noise()).folder


class Noise:
    at_once = None

    def __len__(self) -> int:
        return 8

    def batch(self, indices, rng=None):
        return torch.from_numpy(images(8))[indices], indices % 2


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, *SHAPE), np.float32)


def assert_same(found, expected) -> None:
    """But for rounding: the clock says in which memory format each of the two was the fastest."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-6)


# --- the CPU, said or not ---------------------------------------------------------------------------------------------


def test_cpu_said_equals_nothing_said(exits_copy):
    silent, said = supple.evaluate(exits_copy), supple.evaluate(exits_copy, device="cpu")
    assert silent.to_json() == said.to_json()
    one, other = (supple.calibrate(exits_copy, budget_macs="0.7x", **how) for how in ({}, {"device": "cpu"}))
    assert (one.to_json(), one.facts) == (other.to_json(), other.facts)
    x = images()
    for point in ("exit=1", "exit=2", "full"):
        answers = [
            supple.predict(exits_copy, x, engine="torch", threads=1, point=point, **how)
            for how in ({}, {"device": "cpu"}, {"device": "auto"} if not torch.cuda.is_available() else {})
        ]
        for answer in answers[1:]:
            assert_same(answer, answers[0])
    rows = supple.bench(exits_copy, rounds=5, threads=1, device="cpu")
    assert {row.machine for row in rows} == {machine()}


def test_a_model_in_hand_is_left_where_it_is(exits_run):
    model = load(exits_run)
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    supple.evaluate(model, Noise(), device="cpu")
    supple.bench(model, rounds=5, threads=1)
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "verb",
    [
        ("evaluate",),
        ("evaluate", "--ensemble", "RUN"),
        ("calibrate", "--budget-macs", "0.7x"),
        ("bench",),
        ("bench", "--engine", "all"),
        ("search", "--budget-ms", "5"),
        ("predict", "x.png"),
    ],
)
def test_a_gpu_that_is_not_here_is_refused_and_nothing_changes(command, exits_copy, verb):
    before = {path: path.read_bytes() for path in exits_copy.rglob("*") if path.is_file()}
    words = [verb[0], exits_copy, *(exits_copy if word == "RUN" else word for word in verb[1:])]
    command(*words, "--device", "cuda").refused(2, "the device cuda:0 cannot be used: PyTorch finds only cpu", "auto")
    command(*words, "--device", "gpu").refused(2, '"gpu" is not a valid device', "cpu, cuda")
    assert {path: path.read_bytes() for path in exits_copy.rglob("*") if path.is_file()} == before


def test_onnxruntime_without_cuda_names_the_package(monkeypatch, exported, command):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RecipeError, match="no CUDAExecutionProvider, only CPUExecutionProvider") as told:
        open_engine("onnxruntime", open_bundle(exported), 1, device="cuda:0")
    assert "onnxruntime-gpu" in told.value.cure
    for verb in (("predict", exported, "x.png"), ("bench", exported), ("bench", exported, "--engine", "onnxruntime")):
        command(*verb, "--device", "cuda").refused(2, "no CUDAExecutionProvider", "onnxruntime-gpu")
    command("bench", exported, "--device", "mps").refused(2, "the engine onnxruntime does not run on mps")


def test_openvino_runs_on_the_cpu_only(exported, command):
    pytest.importorskip("openvino")
    with pytest.raises(RecipeError, match="runs on the CPU only, not on cuda:0"):
        check_device("openvino", "cuda:0")
    said = command("predict", exported, "x.png", "--engine", "openvino", "--device", "cuda")
    said.refused(2, "the engine openvino runs on the CPU only")


# --- ONNX Runtime -----------------------------------------------------------------------------------------------------


class Sessions:
    """Stands for ONNX Runtime's sessions: the CPU's, under the names of the providers that were asked for."""

    def __init__(self, monkeypatch, works: bool = True) -> None:
        real, self.asked = onnxruntime.InferenceSession, []

        def session(path, options, providers):
            self.asked.append(providers)
            made = real(path, options, ["CPUExecutionProvider"])
            if works:
                names = [one if isinstance(one, str) else one[0] for one in providers]
                made.get_providers = lambda: names
            return made

        monkeypatch.setattr(onnxruntime, "InferenceSession", session)
        there = ["CUDAExecutionProvider", "CPUExecutionProvider"]
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: there)


def test_sessions_get_the_gpu_and_then_the_cpu(monkeypatch, exported, gpu):
    sessions = Sessions(monkeypatch)
    with predictor(exported, "onnxruntime", threads=1) as made:
        expected = made.run_point("full", (images(),))
    assert sessions.asked
    assert all(providers == ["CPUExecutionProvider"] for providers in sessions.asked)
    sessions.asked.clear()
    with predictor(exported, threads=1, device="cuda") as made:
        assert made.engine.name == "onnxruntime"  # openvino is not among the choices
        assert np.array_equal(made.run_point("full", (images(),)), expected)
    cuda = ("CUDAExecutionProvider", {"device_id": "0"})
    assert sessions.asked
    assert all(providers == [cuda, "CPUExecutionProvider"] for providers in sessions.asked)


def test_a_session_that_fell_back_to_the_cpu_is_refused(monkeypatch, exported, gpu):
    Sessions(monkeypatch, works=False)
    with pytest.raises(RecipeError, match="has CUDA, but cannot use cuda:0 here"):
        predictor(exported, "onnxruntime", threads=1, device="cuda")


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def test_the_engine_waits_once_for_every_graph_it_runs(exits_run, gpu):
    model, x = load(exits_run), (images(),)
    plain = TorchEngine(model, 1, "fp32")
    assert gpu.total() == 0
    there = TorchEngine(model, 1, "fp32", "cuda:0")
    assert gpu["weights"] == 1  # of the chain
    for number, point in enumerate(("exit=1", "full", "full"), 1):
        found = there.array(there.run(point, x)[0])
        assert np.array_equal(found, plain.array(plain.run(point, x)[0]))
        assert (gpu[WAITED], gpu["inputs"]) == (number, number)
    assert gpu["weights"] == 3  # each point once
    gpu.clear()
    state, ran = x, 0
    for stage in there.graphs.stages:
        for graph in filter(None, (stage.body, stage.head)):
            after, ran = there.run(graph, state), ran + 1
            state = after if graph == stage.body else state
            assert gpu[WAITED] == ran
    assert (ran, gpu["inputs"]) == (5, 1)  # between the stages nothing is moved


def test_the_clock_is_read_after_the_wait(exits_run, gpu, monkeypatch):
    """Every step of a chain takes 1 ms of the GPU, all of it in the wait."""
    now = [0.0]

    def wait(device):
        now[0] += 0.001

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    made = of_model(load(exits_run), 1, device="cuda:0")
    made._clock = lambda: now[0]
    made.warm()
    steps = [("body", 0), ("head", 0), ("body", 1), ("head", 1), ("head", 2)]
    assert [made.latency.usual_ms((*step, 1)) for step in steps] == pytest.approx([1.0] * 5)
    answer = made.predict(images(1)[0], deadline_ms=2.5)  # one body and one head, and not two more
    assert (answer.point, answer.reason, answer.elapsed_ms) == ("exit=1", "deadline", pytest.approx(2.0))


def test_the_cpu_never_waits(exits_run, gpu):
    with of_model(load(exits_run), 1) as made:
        made.warm()
        made.predict(images(), deadline_ms=50)
    assert gpu.total() == 0


def test_the_probe_of_memory_formats_waits_for_its_device(monkeypatch):
    waited = []
    monkeypatch.setattr("supple.surgery.deploy.synchronise", waited.append)
    modules = [torch.nn.Identity(), torch.nn.Identity()]
    fastest(modules, torch.zeros(1), rounds=2)
    assert waited == ["cpu"] * (2 + 1) * 2  # once for the calls of a module in a round


# --- the verbs --------------------------------------------------------------------------------------------------------


def test_scores_are_found_on_the_device(exits_copy, gpu):
    expected = supple.evaluate(exits_copy).to_json()
    assert gpu["weights"] == 0
    assert supple.evaluate(exits_copy, device="cuda").to_json() == expected  # a score in fp32 counts everywhere
    assert gpu["weights"] == 1


def test_scores_in_bf16_name_the_gpu_and_count_there_alone(exits_copy, gpu, command):
    said = command("evaluate", exits_copy, "--precision", "bf16", "--device", "cuda")
    assert said.status == 0, said.err
    assert NAME in said.out
    rows = [row for row in load_ladder(exits_copy) if row.precision == "bf16"]
    assert {row.machine for row in rows} == {machine("cuda:0")}
    assert all(row.lost is not None for row in rows)
    assert "bf16" in {choice.precision for choice in choices_for(exits_copy, "cuda:0")}
    assert "bf16" not in {choice.precision for choice in choices_for(exits_copy)}
    with predictor(exits_copy, "torch", threads=1, precision="bf16", device="cuda") as made:
        assert (made.engine.precision, made.engine.device) == ("bf16", "cuda:0")


def test_a_budget_of_time_is_that_of_the_device(exits_copy, gpu):
    policy = supple.calibrate(exits_copy, budget_ms="0.9x", device="cuda")
    assert policy.facts["machine"] == machine("cuda:0")
    assert gpu["weights"] >= 2  # the model itself, and the engine's copies
    assert gpu[WAITED] > 0


def test_times_of_a_gpu_are_rows_of_their_own(exits_copy, gpu, command):
    words = ("bench", exits_copy, "--rounds", "5", "--threads", "1")
    assert machine() in command(*words).out
    assert gpu[WAITED] == 0
    said = command(*words, "--device", "cuda")
    assert machine("cuda:0") in said.out
    assert gpu[WAITED] == 3 * (2 + 5)  # three points, two calls to warm up and five rounds
    rows = [row for row in load_ladder(exits_copy) if row.p50_ms is not None]
    assert sorted((row.point, row.machine) for row in rows) == sorted(
        (point, machine(device)) for point in ("exit=1", "exit=2", "full") for device in ("cpu", "cuda:0")
    )
    ladder = load(exits_copy).ladder
    assert NAME in str(ladder)
    assert NAME not in str(Ladder(row for row in ladder if row.machine == machine()))
    assert all(row.p50_ms is None for row in ladder.on(machine()) if row.machine == machine("cuda:0"))


def test_the_untouched_network_is_timed_on_the_same_device(exits_copy, gpu):
    rows = supple.bench(exits_copy, "full", engine="torch", rounds=5, threads=1, device="cuda")
    assert {(row.point, row.machine) for row in rows} == {(name, machine("cuda:0")) for name in ("full", "static")}
    assert gpu[WAITED] == 2 * (2 + 5)


def test_the_engine_that_was_chosen_is_remembered_for_its_device(exits_copy, gpu):
    choices = [Choice("torch", device="cuda:0"), Choice("torch", precision="bf16", device="cuda:0")]
    choose(exits_copy, choices, 1, False)
    assert json.loads((exits_copy / "engine.json").read_text())["machine"] == machine("cuda:0")
    choose(exits_copy, [replace(choice, device="cpu") for choice in choices[:1]], 1, False)
    assert json.loads((exits_copy / "engine.json").read_text())["machine"] == machine()


def test_what_int8_lost_on_the_cpu_says_nothing_of_the_gpu(gpu):
    check = Check("onnxruntime", "int8", "A processor, 2 cores, avx2", lost={"full": 0.0})
    here = replace(check, machine=machine())
    assert within(Choice("onnxruntime", None, "int8", here), 0.01)
    assert not within(Choice("onnxruntime", None, "int8", here, "cuda:0"), 0.01)
    assert within(Choice("onnxruntime", None, "int8", replace(check, machine=machine("cuda:0")), "cuda:0"), 0.01)


def test_predictions_come_from_the_device(exits_copy, gpu):
    x = images()
    expected = supple.predict(exits_copy, x, engine="torch", threads=1)
    assert gpu["inputs"] == 0
    found = supple.predict(exits_copy, x, engine="torch", threads=1, device="cuda")
    assert_same(found, expected)
    assert (gpu["inputs"], gpu[WAITED]) == (1, 1)
    model = load(exits_copy)
    assert len(supple.predict(model, x, threads=1, device="cuda")) == len(x)
