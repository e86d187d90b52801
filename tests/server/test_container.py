"""The container, as far as it can be tried without a container engine: its list of packages, in an environment of its
own, serves an exported run; and its file says what it has to.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import requires
from pathlib import Path

import pytest
import requests
from packaging.requirements import Requirement

import supple

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines)}


def test_the_list_is_pinned_as_everything_else_is():
    listed, constraints = pins(DOCKER / "requirements.txt"), pins(ROOT / "constraints.txt")
    assert listed
    assert {name: constraints.get(name) for name in listed} == listed


def test_the_list_is_what_the_packages_asked_for_need_and_no_more():
    needed: set[str] = set()
    waiting = [*pins(DOCKER / "requirements.in")]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            found = map(Requirement, requires(name) or [])
            waiting += [normal(one.name) for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert {*pins(DOCKER / "requirements.txt")} == needed
    assert not needed & {"torch", "torchvision", "timm", "lightning-fabric"}


def test_the_list_has_all_that_serving_asks_for():
    extras = [Requirement(one) for one in requires("supple") or []]
    serve = {normal(one.name) for one in extras if one.marker is not None and one.marker.evaluate({"extra": "serve"})}
    assert {*serve} - {*pins(DOCKER / "requirements.in")} == set()


def test_the_container_runs_as_nobody_special_and_says_how_it_is():
    text = (DOCKER / "Dockerfile").read_text()
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert "/live" in last
    assert "--no-deps" in text
    for name in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in name.split():
            assert (ROOT / source).exists(), source
            allowed = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
            assert f"!{source}" in allowed


@pytest.mark.system
@pytest.mark.timeout(900)
def test_an_environment_of_the_list_serves_an_exported_run_without_torch(exits_run, tmp_path):
    folder = supple.export(supple.load(exits_run), tmp_path / "models" / "demo").folder
    python = _environment(tmp_path)
    probe = [python, "-c", "import importlib.util as u; print(u.find_spec('torch'))"]
    assert subprocess.run(probe, capture_output=True, text=True, check=True).stdout == "None\n"
    before = sorted(path.name for path in folder.iterdir())
    out = tmp_path / "out"
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-m", "supple", "serve", str(folder), "--port", "0", "--token", "correct-horse"]
    with out.open("w") as stdout:
        process = subprocess.Popen(command, stdout=stdout, env=environment, cwd="/")
    try:
        address = _address(process, out)
        preprocess = supple.load(exits_run).preprocess
        assert preprocess is not None
        answer = requests.post(
            f"{address}/v1/models/demo/predict",
            data=preprocess.blank_file(),
            headers={"content-type": "image/png", "authorization": "Bearer correct-horse"},
        )
        expected = supple.predict(folder, preprocess.blank_file(), engine="onnxruntime", threads=1)
        assert answer.json()["predictions"][0]["label"] == expected.label
        assert requests.get(f"{address}/").status_code == 200  # the page came along
        assert requests.get(f"{address}/docs/docs.js").status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    assert status == 0
    assert sorted(path.name for path in folder.iterdir()) == before  # it may be mounted read-only


def _environment(tmp_path: Path) -> str:
    """As the Dockerfile makes it; of a copy, since building leaves files beside the sources."""
    source = tmp_path / "source"
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=leave_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    for what in (["-r", str(DOCKER / "requirements.txt")], [str(source)]):
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *what]
        done = subprocess.run(pip, capture_output=True, text=True, env={**os.environ})
        if done.returncode and "Could not find a version" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr[-2000:]
    return python


def _address(process: subprocess.Popen[bytes], out: Path) -> str:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for line in out.read_text().splitlines(keepends=True):
            if line.endswith("\n") and json.loads(line)["event"] == "ready":
                return str(json.loads(line)["address"])
        assert process.poll() is None
        time.sleep(0.1)
    raise AssertionError("it does not get ready")
