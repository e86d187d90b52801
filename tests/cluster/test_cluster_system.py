"""A real Ray on this machine: nodes killed, a wrong token, commands killed half way; nothing is left in the end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_runs import shuffled_run
from PIL import Image

from supple.cluster import local
from supple.errors import ClusterError

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LONG_S = 240  # for a command, on a machine that is busy


class Clusters:
    """Commands with a state file of their own."""

    def __init__(self, folder: Path) -> None:
        self.state, self.run = folder / "cluster.json", shuffled_run(folder / "shuffled")
        self.env = {**os.environ, local.VARIABLE: str(self.state), "OMP_NUM_THREADS": "1"}

    def popen(self, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, *map(str, words)]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, *words: object, status: int = 0) -> str:
        process = self.popen("-m", "supple", "cluster", *words)
        try:
            out, err = process.communicate(timeout=LONG_S)
        finally:
            process.kill()
        assert process.returncode == status, f"{out}\n{err}"
        return err if status else out

    def started(self) -> local.State:
        found = json.loads(self.state.read_text())
        return local.State(**{**found, "runs": tuple(found["runs"])})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Clusters(tmp_path_factory.mktemp("cluster"))
    made("start", made.run, "--nodes", 3, "--timeout-s", 200)
    state = made.started()
    yield made
    made("stop")
    assert local.processes(state) == []
    assert not made.state.exists()
    assert not Path(state.folder).exists()


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "grey.png"
    Image.new("RGB", (32, 32), (90, 120, 150)).save(path)
    return path


def test_answers_name_layers_and_nodes_and_equal_those_of_predict(cluster, picture):
    found = json.loads(cluster("run", cluster.run, picture, "--json"))["predictions"][0]
    assert (found["layers"], found["skipped"], found["reason"]) == ([1, 2, 3, 4], [], "full")
    assert found["nodes"] == ["node-1", "node-2", "node-3"]
    words = ["-m", "supple", "predict", cluster.run, picture, "--engine", "torch", "--json"]
    out, _ = cluster.popen(*words).communicate(timeout=LONG_S)
    local_scores = json.loads(out)["predictions"][0]["scores"]
    assert [row["label"] for row in found["scores"]] == [row["label"] for row in local_scores]
    assert [row["score"] for row in found["scores"]] == pytest.approx([row["score"] for row in local_scores], abs=1e-5)


def test_nodes_killed_during_requests_lose_no_answer_and_every_answer_is_that_of_the_local_model(cluster):
    words = ["--here", "--requests", 100, "--rate", 10, "--kills", 2, "--kill-every", 3, "--no-expected"]
    words += ["--hop-ms", 10_000, "--patience-s", 120]  # on a machine that is busy
    process = cluster.popen(BENCHMARKS / "cluster_chaos.py", cluster.run, *words)
    out, err = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert (found["requests"], found["answered"], found["kills"]) == (100, 100, 2), found
    assert found["equal"] == 100, found["furthest"]
    assert len(found["layers"]) > 1  # some went without the layers of the dead


def test_nodes_that_died_are_back_and_another_joins(cluster):
    joined = json.loads(cluster("add", "--layers", "2-3", "--json"))["node"]
    assert (joined["name"], joined["layers"]) == ("node-4", [2, 3])
    until, nodes = time.monotonic() + LONG_S, {}
    while time.monotonic() < until and not (len(nodes) == 4 and all(row["answers"] for row in nodes.values())):
        nodes = {row["name"]: row for row in json.loads(cluster("status", "--json"))["nodes"]}
    assert {name: row["layers"] for name, row in nodes.items()} == {
        "node-1": [1],
        "node-2": [2],
        "node-3": [3, 4],
        "node-4": [2, 3],
    }


def test_all_processes_listen_on_loopback_alone(cluster):
    psutil = local._psutil()
    places = [
        connection.laddr.ip
        for process in local.processes(cluster.started())
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert places
    assert set(places) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, set(places)


def test_a_wrong_token_is_refused_within_the_time_stated(cluster, tmp_path):
    other = Clusters.__new__(Clusters)
    other.state, other.run = tmp_path / "cluster.json", cluster.run
    other.env = {**cluster.env, local.VARIABLE: str(other.state)}
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    other.state.write_text(json.dumps({**json.loads(cluster.state.read_text()), "token": str(wrong)}))
    began = time.monotonic()
    cause, cure = other("status", status=1).splitlines()
    assert "did not let us in" in cause
    assert "--token-file" in cure
    assert time.monotonic() - began < local.CONNECT_S + 60  # and the time for Python to start


def test_a_second_cluster_is_refused_and_the_first_goes_on(cluster, monkeypatch):
    monkeypatch.setenv(local.VARIABLE, str(cluster.state))
    with pytest.raises(ClusterError, match="a cluster is there already"):
        local.must_be_none()
    assert local.processes(cluster.started())


def test_a_start_that_is_killed_leaves_processes_that_stop_ends(tmp_path):
    clusters = Clusters(tmp_path)
    process = clusters.popen("-m", "supple", "cluster", "start", clusters.run)
    until = time.monotonic() + LONG_S
    while not clusters.state.exists() and time.monotonic() < until:
        time.sleep(0.05)
    state = clusters.started()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LONG_S)
    assert local.processes(state)
    clusters("stop")
    assert local.processes(state) == []


def test_ctrl_c_during_start_leaves_nothing(tmp_path):
    clusters = Clusters(tmp_path)
    process = clusters.popen("-m", "supple", "cluster", "start", clusters.run)
    until = time.monotonic() + LONG_S
    while not clusters.state.exists() and time.monotonic() < until:
        time.sleep(0.05)
    state = clusters.started()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONG_S)
    assert (process.returncode, err.splitlines()[-1]) == (130, "stopped.")
    assert local.processes(state) == []
    assert not clusters.state.exists()
