"""`supple cluster ...` where nothing has to be started: what is refused, and what is simulated."""

import os
import time
from pathlib import Path

import pytest
from cluster_runs import shuffled_run

from supple.cluster import local


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No cluster of the user's is touched."""
    monkeypatch.setenv(local.VARIABLE, str(tmp_path / "cluster.json"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return shuffled_run(tmp_path_factory.mktemp("runs") / "shuffled")


@pytest.mark.parametrize("words", [("status",), ("stop",), ("add",), ("run", "RUN", "photo.png"), ("chaos",)])
def test_without_a_cluster_there_is_an_error_that_says_how_to_start_one(command, run, words):
    said = command("cluster", *(run if word == "RUN" else word for word in words))
    said.refused(1, "no cluster was started here", "supple cluster start")


def test_a_model_that_was_not_trained_for_it_needs_force(command, tmp_path):
    plain = shuffled_run(tmp_path / "plain", sample="full")
    command("cluster", "start", plain).refused(2, "was not trained for layers that are left out", "--force")


def test_a_model_whose_layers_cannot_be_spread_is_refused(command, exits_run):
    command("cluster", "start", exits_run).refused(2, "cannot be spread over nodes", "shuffle")


def test_more_copies_than_nodes_are_refused(command, run):
    command("cluster", "start", run, "--nodes", 2, "--replicas", 3).refused(2, "do not fit on 2 nodes")


def test_siblings_that_do_not_fit_are_refused(command, run, tmp_path):
    other = shuffled_run(tmp_path / "other", variant="position")
    command("cluster", "start", run, "--sibling", other).refused(2, "does not fit")


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [("127.0.0.1:1", 1, "nothing answers at 127.0.0.1:1"), ("here", 2, '"here" is not an address')],
)
def test_an_address_where_nothing_answers_is_refused_at_once(command, run, address, status, words):
    began = time.monotonic()
    command("cluster", "start", run, "--address", address).refused(status, words)
    assert time.monotonic() - began < 30
    assert local.known() is None


def test_a_token_goes_with_an_address(command, run, tmp_path):
    command("cluster", "start", run, "--token-file", "x").refused(2, "without --address")


def test_ray_that_is_missing_is_named_with_the_cure(command, run, monkeypatch):
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    command("cluster", "start", run).refused(2, "ray is not installed", "supple[ray]")


@pytest.mark.parametrize("text", ["", "x", "-1s", "nan", "1e9s"])
def test_times_are_checked(command, text):
    command("cluster", "chaos", "--kill-every", text).refused(2, "--kill-every")


def test_a_state_of_another_boot_is_nobody_s_processes(monkeypatch, tmp_path):
    state = local.State("127.0.0.1:1", None, str(tmp_path / "ray"), session=os.getsid(0), began=0.0, booted=1.0)
    assert local.processes(state) == []  # the machine was started anew since: the number is another session's
    local.remember(state)
    assert local.known() == state
    local.must_be_none()  # nothing is left of it: forgotten
    assert local.known() is None


def test_simulated_clusters_are_rows_of_a_table_and_of_json(command, run):
    words = ("cluster", "simulate", run, "--nodes", "1,2", "--block-ms", 2, "--requests", 200, "--fails-every", "5s")
    rows = command(*words, "--json").json["simulated"]
    assert [row["setting"]["nodes"] for row in rows] == [1, 2]
    assert all(row["setting"]["layers"] == 4 and row["answered"] == 200 for row in rows)
    text = command(*words).out
    assert len(text.splitlines()) == 3
    command("cluster", "simulate").refused(2, "--block-ms is missing")
    command("cluster", "simulate", "--block-ms", 1, "--rate", 0).refused(2, "rate is 0")


def test_a_token_file_is_private(tmp_path, monkeypatch):
    """Ray itself is not started: the command fails, and nothing is left."""
    monkeypatch.setattr(local.sys, "executable", "/bin/false")
    seen = []
    monkeypatch.setattr(local, "remember", lambda state: seen.append(_mode(state)) or state)
    with pytest.raises(local.ClusterError, match="did not start"):
        local.start(10)
    assert seen == [(0o600, 64)]
    assert not local.path().exists()


def _mode(state: local.State) -> tuple[int, int]:
    token = Path(state.token)
    return token.stat().st_mode & 0o777, len(token.read_text())
