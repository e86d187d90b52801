"""The log: one line of JSON for each request, and a server that does not wait for whoever reads it."""

import json
import logging
import threading

from fake_service import Lines, answered
from supple.server.logs import IntoLog, Log
from supple.server.record import Record, request_id
from supple.server.requests import Options


def test_every_line_is_one_json_document():
    out = Lines()
    log = Log(out, every_s=0.01)
    log.line("request", path='/a\n"b"\u2028', status=200)
    log.close(20)
    (line,) = out.text.splitlines()
    assert json.loads(line)["path"] == '/a\n"b"\u2028'
    assert json.loads(line)["event"] == "request"


def test_a_reader_that_stops_reading_does_not_stop_the_server():
    class Stuck(Lines):
        def write(self, text: str) -> int:
            begun.set()
            assert go_on.wait(20)
            return super().write(text)

    begun, go_on, out = threading.Event(), threading.Event(), Stuck()
    log = Log(out, most_waiting=5, every_s=0.001)
    log.line("first")
    assert begun.wait(20)
    for count in range(12):
        log.line("request", count=count)  # none of these waits
    assert log.dropped == 7
    go_on.set()
    log.close(20)
    found = [json.loads(line) for line in out.text.splitlines()]
    assert [line["event"] for line in found] == ["first", *["request"] * 5, "log"]
    assert found[-1]["dropped"] == 7


def test_a_reader_that_is_gone_ends_the_log_and_nothing_else():
    class Gone(Lines):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    log = Log(Gone(), every_s=0.001)
    log.line("first")
    log.close(20)
    assert not log._thread.is_alive()
    log.line("second")
    assert log.dropped == 1


def test_what_libraries_say_goes_into_the_same_log():
    out = Lines()
    log = Log(out, every_s=0.01)
    handler = IntoLog(log)
    try:
        raise ValueError("odd")
    except ValueError:
        handler.emit(logging.LogRecord("uvicorn.error", logging.ERROR, "", 1, "it is %s", ("broken",), None))
    log.close(20)
    line = json.loads(out.text)
    assert (line["from"], line["level"], line["text"]) == ("uvicorn.error", "error", "it is broken")


def test_a_line_says_what_ran_and_why():
    record = Record("a1", "POST", "/v1/models/pets/predict", began=10.0, status=200, bytes_in=7, bytes_out=9)
    record.asks("pets", 3, Options(deadline_ms=50))
    record.answers = [
        answered(0, b"\0", "exit=1", "load"),
        answered(1, b"\0", "exit=1", "deadline", final=False),
        answered(1, b"\0"),
        answered(2, b"\0"),
    ]
    assert record.line(10.5) == {
        "request_id": "a1",
        "method": "POST",
        "path": "/v1/models/pets/predict",
        "status": 200,
        "ms": 500.0,
        "bytes_in": 7,
        "bytes_out": 9,
        "model": "pets",
        "inputs": 3,
        "deadline_ms": 50,
        "points": {"exit=1": 1, "full": 2},
        "reasons": {"load": 1, "full": 2},
        "queue_ms": 1.25,
        "compute_ms": 3.5,
    }


def test_an_id_that_could_break_a_log_or_a_header_is_not_taken():
    assert request_id("trace-1.2:3_4") == "trace-1.2:3_4"
    for given in (None, "", "a\nb", "a b", "\u00e4", "x" * 65):
        assert request_id(given) != given
