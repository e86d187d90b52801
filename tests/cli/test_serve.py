"""`supple serve`, as a process of its own: it starts, answers, and ends without leaving anything behind."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

import supple
from serving import Process
from supple.server import running

Serve = Callable[..., Process]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    made: list[Process] = []

    def start(*words: object, **environment: str) -> Process:
        made.append(Process(tmp_path, words, environment))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


@pytest.fixture(scope="module")
def exported(exits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return supple.export(supple.load(exits_run), tmp_path_factory.mktemp("served") / "pets").folder


def picture(exits_run: Path) -> bytes:
    preprocess = supple.load(exits_run).preprocess
    assert preprocess is not None
    return bytes(preprocess.blank_file())


# --- before anything is opened ----------------------------------------------------------------------------------------


def test_what_is_not_installed_is_named(command, monkeypatch, tmp_path):
    real = running.find_spec
    monkeypatch.setattr(running, "find_spec", lambda name: None if name in ("fastapi", "uvicorn") else real(name))
    command("serve", tmp_path).refused(2, "fastapi, uvicorn are not installed", "pip install 'supple[serve]'")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--host", "0.0.0.0"], "--no-auth"),
        (["--host", "0.0.0.0", "--token", "correct-horse", "--no-auth"], "both"),
        (["--token", "short"], "--token"),
        (["--port", "70000"], "--port"),
        (["--workers", "0"], "--workers"),
        (["--max-body-mb", "0"], "--max-body-mb"),
        (["--drain-s", "nan"], "--drain-s"),
    ],
)
def test_mistakes_are_named_before_a_model_is_opened(command, tmp_path, words, text):
    command("serve", tmp_path, *words).refused(2, text)


def test_a_token_may_come_from_the_environment(command, monkeypatch, tmp_path):
    monkeypatch.setenv("SUPPLE_TOKEN", "short")
    command("serve", tmp_path).refused(2, "--token is not")


def test_a_port_that_is_taken_is_named(command, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command("serve", tmp_path, "--port", port).refused(2, f"--port {port} cannot be listened on")


def test_the_verb_is_a_function_too():
    assert supple.serve is running.serve


# --- as a process -----------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_folder_that_is_no_model_is_named_and_nothing_is_left(serve, tmp_path):
    one = serve(tmp_path, "--port", 0)
    assert one.process.wait(120) == 2
    assert "error: " in one.err.read_text()
    assert str(tmp_path) in one.err.read_text()
    assert "Traceback" not in one.err.read_text()
    assert one.children() == []


@pytest.mark.system
def test_it_answers_and_ends_with_zero_and_no_child(serve, exported, exits_run):
    one = serve(f"zoo={exported}", "--port", 0, "--engine", "onnxruntime")
    address = one.started()
    answer = requests.post(
        f"{address}/v1/models/zoo/predict", data=picture(exits_run), headers={"content-type": "image/png"}
    )
    expected = supple.predict(exported, picture(exits_run), engine="onnxruntime", threads=1)
    (found,) = answer.json()["predictions"]
    assert (found["label"], found["point"], found["reason"]) == (expected.label, "full", "full")
    assert found["scores"][0]["score"] == pytest.approx(expected.best_score, abs=1e-5)
    assert len(one.children()) == 2  # a worker and a decoder
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(60) == 0
    assert one.children() == []
    (line,) = [line for line in one.lines() if line["event"] == "request"]
    assert (line["status"], line["model"], line["points"]) == (200, "zoo", {"full": 1})
    assert one.err.read_text().count("\n") == 1  # where it listens, and nothing else


@pytest.mark.system
def test_it_lives_before_it_is_ready(serve, exported):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    one = serve(exported, "--port", port)
    seen = []
    while not seen or seen[-1] != 200:
        try:
            seen.append(requests.get(f"http://127.0.0.1:{port}/ready", timeout=10).status_code)
            assert requests.get(f"http://127.0.0.1:{port}/live", timeout=10).status_code == 200
        except requests.ConnectionError:
            assert one.process.poll() is None
        time.sleep(0.02)
    assert seen[0] == 503


@pytest.mark.system
def test_all_that_is_in_flight_at_sigterm_is_answered(serve, exported, exits_run):
    """Each of 50 requests has sent its head and half of its body when the signal comes. So much of it that the other
    half may take the longest that any may, 5 s: what stands behind a picture in its file is not looked at."""
    one = serve(exported, "--port", 0, "--engine", "onnxruntime")
    host, port = one.started().removeprefix("http://").split(":")
    body, found = picture(exits_run).ljust(700_000, b"\0"), []
    half, signalled = threading.Barrier(51), threading.Event()

    def ask() -> None:
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/models/pets/predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body[:350_000])
            half.wait(60)
            assert signalled.wait(60)
            connection.sendall(body[350_000:])
            found.append(connection.recv(1000).split(b" ")[1])

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    half.wait(60)
    until = time.monotonic() + 20
    while _in_flight(f"http://{host}:{port}") < 51:
        assert time.monotonic() < until
        time.sleep(0.02)
    one.process.send_signal(signal.SIGTERM)
    while requests.get(f"http://{host}:{port}/ready", timeout=10).status_code != 503:
        assert time.monotonic() < until
        time.sleep(0.02)
    signalled.set()
    for thread in threads:
        thread.join(60)
    assert found == [b"200"] * 50
    assert one.process.wait(60) == 0
    assert one.children() == []


def _in_flight(address: str) -> int:
    text = requests.get(f"{address}/metrics", timeout=10).text
    (line,) = [line for line in text.splitlines() if line.startswith("supple_in_flight ")]
    return int(float(line.split()[1]))


@pytest.mark.system
def test_ctrl_c_ends_it_like_any_other_verb(serve, exported):
    one = serve(exported, "--port", 0, "--engine", "onnxruntime")
    one.started()
    os.killpg(one.process.pid, signal.SIGINT)  # a terminal sends it to all processes
    assert one.process.wait(60) == 130
    assert one.err.read_text().splitlines()[-1] == "stopped."
    assert "Traceback" not in one.err.read_text()
    assert one.children() == []


@pytest.mark.system
def test_it_can_be_ended_while_it_opens_its_models(serve, exported):
    one = serve(exported, "--port", 0)
    time.sleep(1.0)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(60) in (0, -signal.SIGTERM)  # the latter: before it could listen to signals
    assert one.children() == []
