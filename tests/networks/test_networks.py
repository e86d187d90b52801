"""A network that comes with supple is known by its name wherever a run is taken, and is only read."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

import supple
from supple import Run, checkpoint, files, networks
from supple.errors import CheckpointError, DataError, SaveError
from supple.inference.bundle import open_bundle
from supple.opening import is_run
from tiny import tiny_document
from tiny_network import BUDGET, NAME, program, ship_tiny


@pytest.fixture(scope="module")
def package(exits_run, tmp_path_factory) -> Path:
    """The folder of networks inside a package, with one in it."""
    return ship_tiny(exits_run, tmp_path_factory.mktemp("networks")).parent


@pytest.fixture
def shipped(package, monkeypatch, tmp_path) -> Path:
    """The network inside the package; the current folder is empty."""
    monkeypatch.setattr("supple.networks.FOLDER", package)
    monkeypatch.chdir(tmp_path)
    before = digests(package)
    yield package / NAME
    assert digests(package) == before  # whatever a test does


def digests(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- by name ----------------------------------------------------------------------------------------------------------


def test_load_and_predictor_open_it_by_name_and_write_nothing(shipped, tmp_path):
    model = supple.load(NAME)
    x = torch.randn(1, *model.input_shape)
    with supple.predictor(NAME, threads=1) as made:
        answer = made.predict(x[0].numpy(), point="full")
    with torch.inference_mode():
        assert answer.logits == pytest.approx(model(x)[0].numpy(), abs=1e-5)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_of_that_name_goes_first(shipped, slim_run):
    shutil.copytree(slim_run, NAME)
    assert [str(point) for point in supple.load(NAME).points] == ["width=0.5", "full"]


def test_what_was_not_installed_is_named(shipped):
    with pytest.raises(CheckpointError, match="the network imagenet is not among what was installed"):
        networks.folder_of("imagenet")
    assert not is_run("imagenet")
    with pytest.raises(CheckpointError, match="there is no folder imagenet"):
        supple.load("imagenet")


def test_a_verb_that_writes_works_on_a_copy_and_says_so_once(shipped, command):
    said = command("bench", NAME, "--rounds", 5)
    assert said.status == 0
    assert said.err == f"{NAME} comes with supple and is only read: this works on a copy of it, runs/{NAME}\n"
    timed = checkpoint.load_ladder(Path("runs") / NAME)
    assert all(row.p50_ms and row.score is not None for row in timed)
    assert command("bench", NAME, "--rounds", 5).err == ""
    assert [path.name for path in Path("runs").iterdir()] == [NAME]
    assert supple.load(NAME).ladder.rows == checkpoint.load_ladder(Path("runs") / NAME).rows  # the copy answers now


def test_the_folder_in_the_package_given_as_a_path_is_not_written_to_either(shipped):
    supple.bench(shipped, rounds=5)
    assert (Path("runs") / NAME / "report.html").is_file()


def test_another_run_of_that_name_is_left_alone(shipped, slim_run):
    shutil.copytree(slim_run, f"runs/{NAME}")
    before = digests(Path("runs"))
    assert networks.own(NAME) == Path(f"runs/{NAME}-2")
    assert networks.own(NAME) == Path(f"runs/{NAME}-2")
    assert networks.located(NAME) == Path(f"runs/{NAME}-2")
    assert {name: digest for name, digest in digests(Path("runs")).items() if "-2" not in name} == before


def test_where_nothing_can_be_written_the_cure_is_another_folder(shipped):
    Path("runs").touch()
    with pytest.raises(SaveError, match=r"(?s)could not be written.*a folder that may be written to"):
        supple.bench(NAME, rounds=5)
    assert supple.load(NAME).ladder.rows[-1].score is not None


def test_a_training_may_start_from_it(shipped, command):
    document = tiny_document("exits", train={"epochs": 1, "init": NAME})
    Path("next.yaml").write_text(json.dumps(document))
    said = command("train", "next.yaml", "--out", "runs/next")
    assert said.status == 0, said.err
    assert f"starting from {NAME}\n" in said.err


# --- without its data -------------------------------------------------------------------------------------------------


@pytest.fixture
def stranger(shipped, monkeypatch) -> Path:
    """A copy of it where its data are not: those of CIFAR-10."""
    copy = networks.copied(NAME, Path("runs/mine"))
    manifest = checkpoint.read_manifest(copy)
    manifest["recipe"]["data"] = {"name": "cifar10", "batch_size": 32}
    files.write(copy / checkpoint.MANIFEST, json.dumps(manifest))
    monkeypatch.setenv("SUPPLE_DATA", "nowhere")
    return copy


def test_evaluating_it_needs_its_data_and_says_where_they_are_looked_for(stranger, command):
    command("evaluate", stranger).refused(2, "no CIFAR-10 files", "nowhere", "data.root")


@pytest.mark.system
def test_its_graphs_are_checked_on_noise_where_its_data_are_not_at_hand(stranger, command):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    said = command("export", stranger)
    assert said.status == 0, said.err
    assert "no CIFAR-10 files" in said.err
    assert "checked on noise instead" in said.err
    checks = open_bundle(stranger / "export/onnx-fp32").checks
    assert checks
    assert all(check.difference is not None and check.difference < 1e-3 for check in checks)


@pytest.mark.parametrize("words", [("--int8",), ("data.root=elsewhere",)])
def test_what_is_scored_or_named_is_not_replaced_by_noise(stranger, command, words):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    said = command("export", stranger, *words)
    assert said.status == 2
    assert "noise" not in said.err
    assert not (stranger / "export").exists()


# --- weights in fp16 --------------------------------------------------------------------------------------------------


def test_weights_in_fp16_are_loaded_as_fp32_with_the_stored_values(shipped, exits_run):
    stored, before = (files.read_tensors(run / checkpoint.WEIGHTS) for run in (shipped, exits_run))
    loaded = supple.load(NAME).state_dict()
    assert {value.dtype for value in stored.values()} == {torch.float16, torch.int64}
    for name, value in loaded.items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, stored[name].to(value.dtype))
        assert torch.equal(stored[name], before[name].to(stored[name].dtype))


@pytest.mark.system
def test_graphs_of_weights_in_fp16_are_known_as_the_runs_own(shipped):
    """Told by the digest of its file, which is not that of the same weights in fp32."""
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    bundle = supple.export(NAME)
    assert bundle.folder == Path(f"runs/{NAME}/export/onnx-fp32")
    with supple.predictor(NAME, engine="onnxruntime", threads=1) as made:
        assert made.engine.name == "onnxruntime"
    assert supple.export(NAME).folder == bundle.folder  # up to date


def test_a_model_in_hand_stands_for_its_run_in_fp16_until_it_changes(shipped):
    folder = networks.own(NAME)
    run = Run(folder, supple.load(folder))
    assert supple.bench(run, rounds=5).rows
    with torch.no_grad():
        next(run.model.parameters()).add_(1e-6)  # less than fp16 can tell
    with pytest.raises(CheckpointError, match="has changed since it was saved"):
        supple.bench(run, rounds=5)


# --- what ships -------------------------------------------------------------------------------------------------------


def test_what_ships_has_the_scores_of_its_stored_weights_and_nothing_of_a_machine(shipped, exits_run):
    again = supple.evaluate(networks.copied(NAME, Path("copy")))
    ladder = checkpoint.load_ladder(shipped)
    assert [(row.point, row.score, row.n) for row in ladder] == [(row.point, row.score, row.n) for row in again]
    assert all(row.score is not None and row.macs and row.p50_ms is None and row.machine is None for row in ladder)
    assert {path.name for path in shipped.iterdir()} == {*networks.PARTS}
    assert "seconds" in checkpoint.read_manifest(exits_run)
    assert "seconds" not in checkpoint.read_manifest(shipped)
    policy = supple.load(NAME).policy
    assert policy is not None
    assert policy.calibrated


def test_a_path_in_what_would_ship_is_refused_by_name(exits_copy, tmp_path):
    manifest = checkpoint.read_manifest(exits_copy)
    manifest["recipe"]["train"]["init"] = "/home/somebody/runs/a"
    files.write(exits_copy / checkpoint.MANIFEST, json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"manifest.json holds a path: \"/home/somebody"):
        program().ship(exits_copy, tmp_path / "out", BUDGET)
    assert not (tmp_path / "out").exists()


def test_shipping_again_replaces_what_ships_and_nothing_else(exits_run, tmp_path):
    out = ship_tiny(exits_run, tmp_path)
    (out / "ladder.json").unlink()
    program().ship(exits_run, out, BUDGET)
    assert (out / "ladder.json").is_file()
    (out / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=r"also holds notes.txt"):
        program().ship(exits_run, out, BUDGET)
    assert (out / "notes.txt").is_file()


def test_weights_that_fp16_cannot_hold_do_not_ship(exits_copy, tmp_path):
    tensors = files.read_tensors(exits_copy / checkpoint.WEIGHTS)
    name = next(name for name, value in tensors.items() if value.is_floating_point())
    tensors[name].flatten()[0] = 1e6
    files.write(exits_copy / checkpoint.WEIGHTS, tensors)
    with pytest.raises(CheckpointError, match=f"{name} has values that fp16 cannot hold"):
        program().store(exits_copy, tmp_path)


def test_what_is_too_large_does_not_ship(exits_run, tmp_path, monkeypatch):
    ship = program()
    monkeypatch.setattr(ship, "LARGEST", 10_000)
    with pytest.raises(CheckpointError, match="At most 10 kB ship"):
        ship.ship(exits_run, tmp_path / "out", BUDGET)


def test_without_data_nothing_is_shipped(exits_copy, tmp_path, monkeypatch):
    manifest = checkpoint.read_manifest(exits_copy)
    manifest["recipe"]["data"]["name"] = "cifar10"
    files.write(exits_copy / checkpoint.MANIFEST, json.dumps(manifest))
    monkeypatch.setenv("SUPPLE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError):
        program().ship(exits_copy, tmp_path / "out", BUDGET)
    assert not (tmp_path / "out").exists()
