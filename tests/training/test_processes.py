"""Several processes train one model as a single one does, and none waits for one that was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from supple import checkpoint, files
from supple.data.loaders import as_batches
from supple.recipe import load_recipe, make_recipe
from supple.training.loop import train
from supple.training.processes import is_main

# Layer norm, so that samples do not meet in a norm of the batch; a random order of random layers in every step; crops
# and flips. In 32-bit floats, sums in another order differ by 1e-7, and a few steps of AdamW carry that on.
TOLERANCE = 1e-4
WORLD = 2


def recipe(processes: int = 1, **settings: object) -> str:
    document = {
        "data": {"name": "generated", "batch_size": 16 // processes, "crop": 1, "flip": True},
        "backbone": {"name": "vit_cifar", "width": 24, "mlp": 24, "heads": 3, "layers": 3, "grid": 4},
        "method": {"name": "shuffle", "drop": 0.3},
        "train": {"epochs": 3, "lr": 0.003, "optimizer": "adamw", "sample": "layerdrop", "threads": 1, "clip": 1.0}
        | {"precision": "fp32", "accelerator": "cpu", "devices": processes, **settings},
    }
    return make_recipe(document).to_yaml()


def words(*given: object) -> list[str]:
    return [sys.executable, "-m", "supple", "train", *map(str, given), "--json"]


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> str:
    return files.sha256(folder / checkpoint.WEIGHTS)


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> Path:
    """A training by two processes, with half of every batch each."""
    folder = tmp_path_factory.mktemp("together")
    (folder / "r.yaml").write_text(recipe(WORLD))
    done = subprocess.run(
        words(folder / "r.yaml", "--out", folder / "run"), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.system
def test_two_processes_have_the_losses_of_one_with_the_same_batches(together, tmp_path):
    (tmp_path / "r.yaml").write_text(recipe())
    alone = train(load_recipe(tmp_path / "r.yaml"), tmp_path / "run", quiet=True)
    both = list(zip(metrics(together), metrics(alone), strict=True))
    assert len(both) == 3
    for line, same in both:
        assert line["step"] == same["step"]
        assert line["loss"] == pytest.approx(same["loss"], rel=TOLERANCE)
        for part in ("train", "val"):
            assert line[part].keys() == same[part].keys() != set()
            for name in line[part]:
                assert line[part][name]["loss"] == pytest.approx(same[part][name]["loss"], rel=TOLERANCE)
    one, other = (checkpoint.read_tensors(folder / checkpoint.WEIGHTS) for folder in (together, alone))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-3, msg=name)


@pytest.mark.system
@pytest.mark.parametrize("killed", [0, 1], ids=["first", "second"])
def test_a_killed_process_ends_the_training_and_it_resumes_to_the_same_bits(together, tmp_path, killed):
    folder, wanted = tmp_path / "run", tmp_path / "r.yaml"
    wanted.write_text(recipe(WORLD, save_every_s=0.001))
    started = subprocess.Popen(words(wanted, "--out", folder), stderr=subprocess.PIPE, text=True)
    state = folder / "state"
    try:
        wait_for(lambda: any(state.glob("epoch-00001-step-*.json")))  # inside the second epoch
        (other,) = children(started.pid)
        os.kill(started.pid if killed == 0 else other, signal.SIGKILL)
        said = started.communicate(timeout=60)[1]
    finally:
        started.kill()
    assert started.returncode != 0
    wait_for(lambda: not Path(f"/proc/{other}").exists() or "Z" in Path(f"/proc/{other}/stat").read_text())
    if killed == 1:
        assert "another process of this training has ended" in said
        assert f"supple train {folder} --resume" in said
    assert len(metrics(folder)) < 3
    done = subprocess.run(words(folder, "--resume"), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert weights(folder) == weights(together)


def wait_for(event, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not event():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)


def children(process: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize(
    ("variables", "main"),
    [
        ({}, True),
        ({"RANK": "1", "LOCAL_RANK": "0"}, False),  # torchrun, the first process of the second machine
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "1"}, True),  # torchrun, started by SLURM
        ({"LOCAL_RANK": "1"}, False),  # started by Fabric
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"SLURM_PROCID": "3"}, False),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1"}, False),  # started by Fabric, inside an interactive job
    ],
)
def test_one_process_of_all_is_the_main_one_however_they_were_started(monkeypatch, variables, main):
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_main() is main


class Noisy:
    """Samples that are changed by chance; `reads` says how many were made."""

    def __init__(self, **facts: object) -> None:
        self.reads: list[int] = []
        vars(self).update(facts)

    def __len__(self) -> int:
        return 20

    def batch(self, indices, rng=None):
        self.reads.append(len(indices))
        noise = torch.rand(len(indices), 3, generator=rng)
        return indices[:, None] + noise / 2, indices.clone()


@pytest.mark.parametrize("world", [2, 4])
def test_the_shares_of_all_processes_are_the_batches_of_one(world):
    whole = list(as_batches(Noisy()).training(5, 1, 0, 8))
    shares = [list(as_batches(Noisy()).training(5, 1, 0, 8, (rank, world))) for rank in range(world)]
    for step, (x, y) in enumerate(whole):
        for rank in range(world):
            torch.testing.assert_close(shares[rank][step][0], x[rank::world], rtol=0, atol=0)
            assert shares[rank][step][1].tolist() == y[rank::world].tolist()


def test_where_reading_takes_time_a_process_reads_its_share_alone_with_draws_of_its_own():
    first, second = (Noisy(slow=True) for _ in range(2))
    (x, y), (other, labels) = (
        next(as_batches(data).training(5, 1, 0, 8, (rank, 2))) for rank, data in enumerate((first, second))
    )
    assert set(first.reads + second.reads) == {4}
    assert not {*y.tolist()} & {*labels.tolist()}
    noise = [part - part.floor() for part in (x, other)]
    assert not torch.equal(*noise)
