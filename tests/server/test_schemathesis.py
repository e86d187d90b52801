"""Requests made from /openapi.json, sent to the real server: no status that is not described, and no fault of ours."""

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

import supple
from serving import Process

CASES = int(os.environ.get("SUPPLE_CASES", "40"))  # of every operation
CHECKS = [status_code_conformance, content_type_conformance]


@pytest.fixture(scope="module")
def server(exits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fuzzed")
    exported = supple.export(supple.load(exits_run), folder / "pets").folder
    one = Process(folder, (exported, "--port", 0, "--engine", "onnxruntime", "--allow-reload"), {})
    yield one.started()
    one.process.terminate()
    status = one.process.wait(60)
    bugs = [line for line in one.lines() if line["event"] in ("bug", "library")]
    assert (status, bugs, one.children()) == (0, [], [])


def aimed(case: Any, picture: bytes, rng: random.Random) -> None:
    """Most made-up names meet no model, and no made-up bytes are a picture."""
    if "name" in case.path_parameters and rng.random() < 0.8:
        case.path_parameters["name"] = "pets"
    if "version" in case.path_parameters and rng.random() < 0.8:
        case.path_parameters["version"] = "1"
    if str(case.media_type).startswith("image/") and rng.random() < 0.7:
        case.body, case.media_type = picture, "image/png"
    if case.path.endswith("/infer") and isinstance(case.body, dict) and rng.random() < 0.5:
        tensor = {"name": "image", "datatype": "FP32", "shape": [1, 3, 16, 16], "data": [0] * 768}
        case.body = {**case.body, "inputs": [tensor]} if rng.random() < 0.5 else {"inputs": [tensor]}


def tried(operation: Any, server: str, picture: bytes, cases: int) -> set[int]:
    """Sends requests that fit the description, and others that do not; the statuses that came back."""
    statuses: set[int] = set()
    rng = random.Random(0)
    with requests.Session() as session:
        for mode in schemathesis.GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=[*HealthCheck])
            def send(case: Any) -> None:
                aimed(case, picture, rng)
                answer = case.call(base_url=server, session=session, timeout=60)
                statuses.add(answer.status_code)
                assert answer.status_code < 500 or answer.status_code in (503, 504), answer.text
                case.validate_response(answer, checks=CHECKS)

            with suppress(Unsatisfiable):  # where nothing can be given, nothing wrong can be given either
                send()
    return statuses


@pytest.mark.system
@pytest.mark.timeout(1500)
def test_no_request_finds_a_status_that_is_not_described(server, exits_run):
    schema = schemathesis.openapi.from_url(f"{server}/openapi.json")
    preprocess = supple.load(exits_run).preprocess
    assert preprocess is not None
    picture, seen = preprocess.blank_file(), {}
    for found in schema.get_all_operations():
        operation = found.ok()
        few = 3 if operation.path.endswith("/reload") else CASES  # opening a model takes seconds
        seen[operation.label] = tried(operation, server, picture, few)
    assert len(seen) >= 16
    for path in ("/v1/models/{name}/predict", "/v2/models/{name}/infer"):
        assert {200, 400, 404} <= seen[f"POST {path}"]  # else it would have tried little
