"""What the scenarios decide by, without any server."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serve_client import Outcome, Request
from serve_load import cores, names
from serve_process import alive, below, cpu_s, left, open_files, status
from serve_scenarios import by_deadline, mixed
from serve_soak import bad_requests, plan, unexplained
from serve_target import Picture, Settings, Target, Yardstick, pictures_in

SUPPLE = Target("supple", 8000, "/v1/models/model/predict", takes_options=True)
PICTURE = Picture(b"\x89PNG" + bytes(range(200)), "cat")
YARD = Yardstick(full_ms=30.0, capacity=40.0, width=16)


def settings(**changes: object) -> Settings:
    return Settings(Path("export"), Path("pictures"), **changes)  # type: ignore[arg-type]


def test_options_go_to_the_server_that_knows_them_and_the_deadline_is_kept_for_all() -> None:
    asked = SUPPLE.request(PICTURE, 300.0, point="exit=1")
    assert b"POST /v1/models/model/predict?deadline_ms=300.0&top_k=1&point=exit%3D1 HTTP/1.1\r\n" in asked.content()
    plain = Target("fastapi", 8001).request(PICTURE, 300.0, point="exit=1")
    assert plain.head.startswith(b"POST /predict HTTP/1.1\r\n")
    assert plain.deadline_ms == asked.deadline_ms == 300.0
    assert asked.content().endswith(b"\r\n\r\n" + PICTURE.file)


def test_pictures_are_drawn_from_all_classes_in_turn(tmp_path: Path) -> None:
    for name in ("b1.png", "b2.png"):
        (tmp_path / "bird").mkdir(exist_ok=True)
        (tmp_path / "bird" / name).write_bytes(name.encode())
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "c1.png").write_bytes(b"c1.png")
    assert [(one.label, one.file) for one in pictures_in(tmp_path)] == [
        ("bird", b"b1.png"),
        ("cat", b"c1.png"),
        ("bird", b"b2.png"),
    ]
    assert len(pictures_in(tmp_path, 2)) == 2
    with pytest.raises(SystemExit, match="no folders of pictures"):
        pictures_in(tmp_path / "cat")


def test_a_scale_shrinks_counts_and_times_but_not_to_nothing() -> None:
    small = settings(scale=0.001)
    assert small.count(10_000) == 20
    assert small.seconds(60) == 1.5
    assert settings().count(10_000) == 10_000
    assert settings().seconds(60) == 60
    assert settings(scale=0.001).seconds(1, least=3) == 1  # never longer than the whole


def test_mixed_deadlines_fill_their_range_evenly_on_a_logarithmic_scale() -> None:
    found = mixed(40_000, 2, 40, seed=0)
    assert found.min() >= 2
    assert found.max() <= 40
    assert (found < 80**0.5).mean() == pytest.approx(0.5, abs=0.02)  # the geometric mean of 2 and 40 halves them
    assert (mixed(5, 10, 10, seed=0) == pytest.approx(10)) is True


def test_shares_in_time_are_told_apart_by_deadline() -> None:
    def one(times: float, took_ms: float) -> Outcome:
        return Outcome(Request(b"", deadline_ms=times * YARD.full_ms), 0.0, 0.0, took_ms / 1000, 200, b"{}")

    shares = by_deadline([one(2, 50), one(3, 500), one(39, 500)], YARD)
    assert shares == {"2 to 4 x": 0.5, "4 to 10 x": 0.0, "10 to 40 x": 1.0}


def test_a_soak_mixes_bad_requests_in_and_knows_what_each_may_be_told() -> None:
    requests, allowed, due = plan(settings(), SUPPLE, [PICTURE], YARD, 60.0)
    bad = [one for one in requests if one.kind == "bad"]
    assert len(requests) == len(allowed) == len(due)
    assert len(requests) == pytest.approx(0.8 * 40 * 60, rel=0.15)
    assert len(bad) / len(requests) == pytest.approx(0.05, abs=0.02)
    assert all(500 not in statuses for statuses in allowed)
    assert {statuses for request, statuses in zip(requests, allowed) if request.kind == "good"} == {(200, 503, 504)}


def test_what_a_request_may_not_be_told_is_unexplained() -> None:
    def told(kind: str, code: int | None) -> Outcome:
        return Outcome(Request(b"", kind=kind), 0.0, 0.0, 0.0, code, b"", "" if code else "the connection was closed")

    fine = [told("good", 200), told("good", 503), told("bad", 422), told("bad", 503)]
    assert unexplained(fine, [(200, 503, 504), (200, 503, 504), (422,), (422,)]) == {}
    wrong = [told("good", 500), told("good", None), told("bad", 200)]
    found = unexplained(wrong, [(200, 503, 504), (200, 503, 504), (422,)])
    assert sum(found.values()) == 3
    assert any("the connection was closed" in what for what in found)


def test_every_bad_request_is_whole_http() -> None:
    for name, (request, statuses) in bad_requests(SUPPLE, PICTURE).items():
        head, _, body = request.content().partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head, name
        assert all(400 <= code < 500 or name == "damaged" for code in statuses)


def test_cores_are_two_numbers_or_none() -> None:
    assert cores("0,1") == (0, 1)
    assert cores("none") == (None, None)
    with pytest.raises(SystemExit, match="two numbers"):
        cores("0")


def test_a_word_that_is_not_known_is_named() -> None:
    assert names("ray,fastapi", ("fastapi", "ray"), "--against") == ("ray", "fastapi")
    with pytest.raises(SystemExit, match="no triton"):
        names("triton", ("fastapi", "ray"), "--against")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
def test_a_process_is_seen_with_what_it_uses_until_it_ends() -> None:
    program = "import sys; x = bytearray(50_000_000); print('up', flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert process.pid in below(os.getpid())
        assert status(process.pid, "RssAnon") > 50_000_000
        assert open_files(process.pid) >= 3
        assert left([process.pid], 0.0) == [process.pid]
        process.kill()
        process.wait()
    assert not alive(process.pid)
    assert left([process.pid]) == []
    assert status(process.pid, "VmRSS") == 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
def test_time_of_the_processor_is_that_of_all_threads() -> None:
    before, end = cpu_s(os.getpid()), time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert 0.05 < cpu_s(os.getpid()) - before < 10
