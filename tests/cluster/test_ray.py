"""Commands that start Ray, as processes of their own: what they write, and that nothing is left of them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import supple
from supple.cluster.ray_local import must_answer

pytestmark = pytest.mark.system
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}  # of IPv4, of IPv6
ENV = {
    **os.environ,
    "RAY_worker_niceness": "0",
}  # other tests run beside these: Ray's own 15 would wait for all of them


def left(folder: Path) -> list[Path]:
    """The processes that work in a folder: all that a command started there."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").readlink() == folder and (path / "cmdline").read_bytes():
                found.append(path)
        except OSError:
            continue  # another user's, or it has ended
    return found


def listens_at(folder: Path) -> set[str]:
    """The addresses, as /proc writes them, that processes which work in a folder listen at."""
    sockets = set()
    for process in left(folder):
        for handle in (process / "fd").iterdir():
            with suppress(OSError):
                sockets.add(str(handle.readlink()))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


@pytest.fixture
def here(tmp_path) -> Iterator[Path]:
    """Where commands are run; afterwards none of their processes is left."""
    folder = tmp_path / "here"
    folder.mkdir()
    yield folder
    end = time.monotonic() + 60  # a worker that was about to start sees only then that its cluster has gone
    while left(folder) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left(folder)


def words(*given: object) -> list[str]:
    return [sys.executable, "-m", "supple", *map(str, given)]


def run(here: Path, *given: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words(*given), cwd=here, env=ENV | more, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Pictures as files, in a Parquet file and in a tar; one of each kind is broken."""
    folder = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(0)
    (folder / "files").mkdir()
    for number in range(30):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(folder / "files" / f"{number:02d}.png")
    (folder / "files" / "07.png").write_bytes(b"broken")
    contents = [path.read_bytes() for path in sorted((folder / "files").glob("*.png"))]
    parquet.write_table(pa.table({"image": contents}), folder / "table.parquet", row_group_size=10)
    with tarfile.open(folder / "shard.tar", "w") as tar:
        tar.add(folder / "files", "in")
    return folder


def test_a_batch_answers_every_row_as_single_predictions_do(exits_run, source, here, tmp_path):
    out = tmp_path / "out"
    done = run(here, "predict", exits_run, source, "--ray", "--workers", 2, "--out", out, "--engine", "torch", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"folder": str(out), "parts": 3, "rows": 90, "errors": 3, "found": 0}
    rows = parquet.read_table(out).to_pylist()
    assert sum(row["error"] is not None for row in rows) == 3
    with supple.predictor(exits_run, "torch", 1) as made:
        for row, path in zip(rows[:30], sorted((source / "files").glob("*.png")), strict=True):
            assert row["path"] == str(path)
            if path.name != "07.png":
                alone = made.predict(path)
                assert (row["label"], row["point"], row["reason"]) == (alone.label, "full", "full")
                scores = {entry["label"]: entry["score"] for entry in row["scores"]}
                assert scores == pytest.approx(alone.scores, abs=1e-5)
    for kind in (rows[30:60], rows[60:]):  # the tar and the table hold the same pictures
        assert sorted((row["label"] or "") for row in kind) == sorted((row["label"] or "") for row in rows[:30])


@pytest.fixture(scope="module")
def many(source, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    for number in range(12_000):
        (folder / f"{number:05d}.png").symlink_to(source / "files" / "03.png")
    return folder


def first_part(started: subprocess.Popen[str], out: Path) -> None:
    while not any(out.glob("part-*")):
        assert started.poll() is None, started.communicate()[1]
        time.sleep(0.01)


def test_an_actor_that_is_killed_is_replaced_and_no_answer_is_lost(exits_run, many, here, tmp_path):
    out = tmp_path / "out"
    command = words("predict", exits_run, many, "--ray", "--workers", 2, "--out", out, "--engine", "torch", "--json")
    how = {"cwd": here, "env": ENV, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = subprocess.Popen(command, text=True, **how)
    try:
        first_part(started, out)
        actors = [one for one in left(here) if b"ray::MapWorker" in (one / "cmdline").read_bytes()]
        os.kill(int(actors[0].name), signal.SIGKILL)
        said, errors = started.communicate(timeout=240)
    finally:
        started.kill()
    assert started.returncode == 0, errors
    assert json.loads(said)["rows"] == 12_000
    paths = parquet.read_table(out)["path"].to_pylist()
    assert paths == sorted(map(str, many.iterdir()))


def test_a_batch_that_was_interrupted_goes_on_where_it_stopped(exits_run, many, here, tmp_path):
    out = tmp_path / "out"
    command = words("predict", exits_run, many, "--ray", "--workers", 1, "--out", out, "--engine", "torch")
    how = {"cwd": here, "env": ENV, "text": True, "start_new_session": True}
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    try:
        first_part(started, out)
        heard = listens_at(here)
        assert heard
        assert heard <= LOOPBACK
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does, Ray's processes among them
        said = started.communicate(timeout=60)[1]
    finally:
        started.kill()
    assert (started.returncode, said) == (130, "stopped.\n")
    first = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert 0 < len(first) < 12
    again = run(here, *command[3:])
    assert again.returncode == 0, again.stderr
    assert f"{len(first)} file" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert parquet.read_table(out).num_rows == 12_000
    other = run(here, *command[3:], "--point", "exit=1")
    assert other.returncode == 2
    assert "another batch: other limits" in other.stderr


def test_a_search_over_ray_finds_what_one_without_it_does(exits_run, here, tmp_path):
    found = []
    for name, more in (("alone", ()), ("ray", ("--ray",))):
        folder = shutil.copytree(exits_run, tmp_path / name)
        done = run(here, "search", folder, "--budget-macs", "0.9x", "--json", *more)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    alone, over_ray = found
    assert [point["point"] for point in over_ray["points"]] == [point["point"] for point in alone["points"]]
    assert over_ray == alone


def test_an_address_that_nothing_listens_at_is_refused_at_once():
    began = time.monotonic()
    for address in ("127.0.0.1:9", "nowhere", "127.0.0.1:x"):
        with pytest.raises(supple.SuppleError, match="no Ray cluster answers"):
            must_answer(address)
    assert time.monotonic() - began < 10


HEAD = """
import os, sys, time
from supple.cluster.ray_local import connect

with connect(None, 2) as ray:
    print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN_PATH"], flush=True)
    sys.stdin.read()
"""


def test_a_cluster_is_joined_with_its_token_and_not_without(exits_run, source, here, tmp_path):
    out = tmp_path / "out"
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD], cwd=here, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        address, token = head.stdout.readline().split()
        assert Path(token).stat().st_mode & 0o777 == 0o600
        assert Path(token).parent.stat().st_mode & 0o777 == 0o700
        given = ("predict", exits_run, source / "files", "--ray", "--workers", 1, "--engine", "torch", "--out", out)
        given = (*given, "--ray-address", address)
        refused = run(here, *given)
        assert (refused.returncode, refused.stdout) == (1, "")
        cause, cure = refused.stderr.splitlines()
        assert f"the Ray cluster at {address} cannot be joined" in cause
        assert "RAY_AUTH_TOKEN_PATH" in cure
        more = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token}
        joined = run(here, *given, **more)
        assert joined.returncode == 0, joined.stderr
        assert parquet.read_table(out).num_rows == 30
        assert head.poll() is None  # only those that joined have left
    finally:
        head.communicate("")
    assert not Path(token).exists()
