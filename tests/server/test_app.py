"""What a client sees of the server: forms of requests, answers, refusals, and what is around all of them."""

import base64
import gzip
import json
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from fake_service import CLASSES, FakeModel, FakeService, Lines, front_of, listening
from supple.server.asking import MOST_VALUES, from_json
from supple.server.front import Front
from supple.server.requests import Options, Refusal

FILE = b"\x01 a picture"  # the fake service goes by the first byte: a dog


class Client:
    def __init__(self, address: str, front: Front, service: FakeService) -> None:
        self.address, self.front, self.service, self.session = address, front, service, requests.Session()

    def __call__(self, path: str, body: Any = None, media: str | None = "image/png", **how: Any) -> requests.Response:
        headers = {**({"content-type": media} if media and body is not None else {}), **how.pop("headers", {})}
        method = how.pop("method", "GET" if body is None and "files" not in how else "POST")
        return self.session.request(method, f"http://{self.address}{path}", data=body, headers=headers, **how)

    def predict(self, body: Any = FILE, options: str = "", media: str | None = "image/png", **how: Any) -> Any:
        return self(f"/v1/models/pets/predict{options}", body, media, **how)

    def lines(self, event: str = "request") -> list[dict[str, Any]]:
        """All of this kind, once every request has left."""
        until(lambda: self.front.doors.inside == 0)
        self.front.log.close(20)
        found = [json.loads(line) for line in written(self.front).splitlines()]
        return [line for line in found if line["event"] == event]


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def written(front: Front) -> str:
    out = front.log._out
    assert isinstance(out, Lines)
    return out.text


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
def service() -> FakeService:
    return FakeService([FakeModel(), FakeModel("sounds", kind="sound"), FakeModel("arrays", kind=None)])


@pytest.fixture
def client(service: FakeService, settings: dict[str, Any]) -> Iterator[Client]:
    front = front_of(service, **settings)
    with listening(front) as address:
        made = Client(address, front, service)
        yield made
        made.session.close()


def refused(answer: requests.Response, status: int, code: str, *words: str) -> None:
    """One stable code, one clear sentence, and nothing of how the server is made."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    message = answer.json()["error"]["message"]
    assert "\n" not in message
    assert "Traceback" not in answer.text
    assert "/src/" not in answer.text
    for word in words:
        assert word in message


# --- forms of requests ------------------------------------------------------------------------------------------------


def test_a_raw_body_is_one_input(client, service):
    answer = client.predict()
    assert answer.status_code == 200
    (found,) = answer.json()["predictions"]
    assert {name: found[name] for name in ("index", "label", "point", "reason", "queue_ms", "compute_ms")} == {
        "index": 0, "label": "dog", "point": "full", "reason": "full", "queue_ms": 1.25, "compute_ms": 3.5,
    }  # fmt: skip
    assert [score["label"] for score in found["scores"]] == ["dog", "cat", "owl"]
    assert answer.json()["model"] == "pets"
    assert service.asked[0][:3] == ("pets", [FILE], Options())


@pytest.mark.parametrize("media", ["image/jpeg", "application/octet-stream", "IMAGE/PNG; q=1", None])
def test_bytes_that_do_not_say_what_they_are_are_taken_too(client, media):
    assert client.predict(media=media).status_code == 200


def test_json_has_several_inputs_and_the_options(client, service):
    inputs = [{"data": base64.b64encode(bytes([k])).decode()} for k in range(3)]
    body = {"inputs": inputs, "deadline_ms": 50, "point": "exit=1", "top_k": 2, "budget_macs": None}
    answer = client.predict(json.dumps(body), media="application/json; charset=utf-8")
    assert [one["label"] for one in answer.json()["predictions"]] == [*CLASSES]
    assert [one["index"] for one in answer.json()["predictions"]] == [0, 1, 2]
    assert service.asked[0][2] == Options(deadline_ms=50, point="exit=1", top_k=2)


def test_a_form_has_files_and_fields(client, service):
    files = [
        ("file", ("a.png", b"\x00")),
        ("other", ("b.png", b"\x02\r\n--no boundary")),
        ("deadline_ms", (None, "40")),
    ]
    answer = client("/v1/models/pets/predict", files=files)
    assert [one["label"] for one in answer.json()["predictions"]] == ["cat", "owl"]
    assert service.asked[0][1:3] == ([b"\x00", b"\x02\r\n--no boundary"], Options(deadline_ms=40))


def test_every_option_can_be_in_the_query(client, service):
    client.predict(options="?deadline_ms=12.5&min_confidence=0.5&top_k=3")
    client.predict(options="?policy=true")
    client.predict(options="?budget_macs=0.5x")
    client.predict(options="?budget_macs=2e6")
    assert [asked[2] for asked in service.asked] == [
        Options(deadline_ms=12.5, min_confidence=0.5, top_k=3),
        Options(policy=True),
        Options(budget_macs="0.5x"),
        Options(budget_macs=2e6),
    ]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate"])
def test_compressed_bodies_are_unpacked(client, service, encoding):
    bare = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(FILE),
        "deflate": zlib.compress(FILE),
        "raw deflate": bare.compress(FILE) + bare.flush(),
    }
    headers = {"content-encoding": encoding.removeprefix("raw ")}
    assert client.predict(packed[encoding], headers=headers).status_code == 200
    assert service.asked[0][1] == [FILE]


def test_the_deadline_counts_from_when_the_body_is_complete(client, service):
    def slowly() -> Iterator[bytes]:
        yield FILE
        between.append(client.front.clock())
        yield b"more"

    between: list[float] = []
    client.predict(slowly())
    assert service.asked[0][3] > between[0]


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_has_a_line_for_every_input_and_exit(client):
    answer = client.predict(options="?stream=true")
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [(line["index"], line["point"], line["final"]) for line in lines] == [
        (0, "exit=1", False),
        (0, "full", True),
    ]


def test_a_line_is_sent_before_the_next_answer_is_there(client, service):
    held = [True]
    service.hold = lambda: held[0]
    with client.predict(options="?stream=true", stream=True) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["point"] == "exit=1"
        assert service.answered == 0
        held.clear()
        held.append(False)
        assert json.loads(next(lines))["final"] is True


def test_one_input_of_a_stream_may_be_refused_alone(client, service):
    service.later = {1: Refusal(422, "unusable_input", "It is broken.")}
    files = [("file", (f"{k}.png", bytes([k]))) for k in range(3)]
    answer = client("/v1/models/pets/predict?stream=true", files=files)
    assert answer.status_code == 200
    last = {line["index"]: line for line in map(json.loads, answer.text.splitlines()) if line["final"]}
    assert last[1]["error"] == {"code": "unusable_input", "message": "It is broken."}
    assert (last[0]["label"], last[2]["label"]) == ("cat", "owl")


def test_a_stream_that_is_refused_before_its_first_line_has_a_status(client, service):
    service.later = {0: Refusal(503, "overloaded", "Too much.", 0.2)}
    answer = client.predict(options="?stream=true")
    refused(answer, 503, "overloaded")
    assert answer.headers["retry-after"] == "1"


def test_a_refusal_behind_the_first_line_is_a_line(client, service):
    service.refusal = Refusal(504, "late", "Too late.")
    lines = [json.loads(line) for line in client.predict(options="?stream=true").text.splitlines()]
    assert [line.get("error", {}).get("code") for line in lines] == [None, "late"]
    assert lines[-1]["index"] is None


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "media", "status", "code"),
    [
        (b"", "image/png", 422, "unusable_input"),
        (b"x=1", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"x", "text/html", 415, "unsupported_media_type"),
        (b"x", "audio/wav", 415, "unsupported_media_type"),
        (b"{", "application/json", 400, "malformed"),
        (b"[]", "application/json", 400, "malformed"),
        (b"\xff\xfe", "application/json", 400, "malformed"),
        (b"[" * 100_000, "application/json", 400, "malformed"),
        (b'{"inputs": []}', "application/json", 400, "malformed"),
        (b'{"inputs": {}}', "application/json", 400, "malformed"),
        (b'{"inputs": [{"data": "AA==", "x": 1}]}', "application/json", 400, "malformed"),
        (b'{"inputs": [{"data": "A"}]}', "application/json", 400, "malformed"),
        (b'{"inputs": [{"data": "\xc3\xa4"}]}', "application/json", 400, "malformed"),
        (b'{"inputs": [{"data": ""}]}', "application/json", 422, "unusable_input"),
        (b'{"inputs": [{"data": "AA=="}], "top_k": NaN}', "application/json", 400, "malformed"),
        (b'{"inputs": [{"data": "AA=="}], "deadline_ms": 1e999}', "application/json", 422, "invalid_options"),
        (b'{"inputs": [{"data": "AA=="}], "top_k": 1%s}' % (b"0" * 999), "application/json", 422, "invalid_options"),
        (b'{"inputs": [{"data": "AA=="}], "deadline_ms": 1%s}' % (b"0" * 9999), "application/json", 400, "malformed"),
        (b'{"inputs": [{"data": "AA=="}], "deadline_ms": [1]}', "application/json", 422, "invalid_options"),
        (b'{"inputs": [{"data": "AA=="}], "budget_macs": {}}', "application/json", 422, "invalid_options"),
        (b'{"inputs": [{"data": "AA=="}], "stream": 1}', "application/json", 422, "invalid_options"),
        (b'{"inputs": [{"data": "AA=="}], "point": "\\ud800"}', "application/json", 200, ""),
        (b"--x", "multipart/form-data", 400, "malformed"),
        (b"--x", "multipart/form-data; boundary=x", 400, "malformed"),
        (b"", "multipart/form-data; boundary=x", 400, "malformed"),
        (b"--x--", "multipart/form-data; boundary=x", 400, "malformed"),
        (b"--x\r\n" + b"a" * 9000 + b": b\r\n\r\n\r\n--x--\r\n", "multipart/form-data; boundary=x", 400, "malformed"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(client, body, media, status, code):
    answer = client.predict(body, media=media)
    if status == 200:
        assert answer.status_code == 200
    else:
        refused(answer, status, code)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("?deadline=5", "deadline_ms"),
        ("?deadline_ms=soon", "deadline_ms"),
        ("?deadline_ms=nan", "deadline_ms"),
        ("?deadline_ms=-1", "deadline_ms"),
        ("?deadline_ms=5&deadline_ms=6", "twice"),
        ("?top_k=0", "top_k"),
        ("?top_k=1.5", "top_k"),
        ("?policy=maybe", "policy"),
        ("?stream=", "stream"),
        ("?point=full&policy=1", "point and policy"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(client, options, words):
    refused(client.predict(options=options), 422, "invalid_options", words)


def test_an_option_is_given_in_one_place(client):
    body = {"inputs": [{"data": "AA=="}], "top_k": 2}
    refused(client.predict(json.dumps(body), "?top_k=3", "application/json"), 422, "invalid_options", "top_k")


def test_models_are_looked_up_and_nothing_else(client, service):
    names = [
        "nobody",
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "pets%00",
        "pets/",
        "PETS",
        "\u00e4",
        "%ff",
        "pets;x",
        "pets%20",
    ]
    for name in names:
        for path in (f"/v1/models/{name}/predict", f"/v2/models/{name}/infer"):
            url = f"http://{client.address}{path}"
            prepared = requests.Request("POST", url, data=FILE, headers={"content-type": "image/png"}).prepare()
            prepared.url = url  # as it is: requests would tidy it up
            assert client.session.send(prepared).status_code == 404, name
    assert service.asked == []


def test_a_model_without_preprocessing_takes_no_files(client):
    refused(client("/v1/models/arrays/predict", FILE), 415, "unsupported_media_type", "/v2")


def test_a_model_of_sounds_takes_no_pictures(client):
    refused(client("/v1/models/sounds/predict", FILE), 415, "unsupported_media_type", "sound")
    assert client("/v1/models/sounds/predict", FILE, "audio/wav").status_code == 200


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(422, "not_finite", "No."),
        Refusal(503, "overloaded", "Too much.", 2.3),
        Refusal(503, "model_unhealthy", "It is ill."),
        Refusal(504, "late", "Too late."),
    ],
)
def test_what_the_service_refuses_has_its_status(client, service, refusal):
    service.refusal = refusal
    answer = client.predict()
    refused(answer, refusal.status, refusal.code, refusal.message)
    assert answer.headers.get("retry-after") == (None if refusal.retry_after_s is None else "3")


def test_a_bug_shows_nothing_of_the_server(client, service):
    service.refusal = RuntimeError("secret /home/someone")
    refused(client.predict(), 500, "internal")
    assert "secret" not in client.predict().text
    assert "secret" in client.lines("bug")[0]["trace"]


@pytest.mark.parametrize("settings", [{"max_body": 1000}])
@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_have_a_limit(client, service, chunked):
    def pieces(count: int) -> Iterator[bytes]:
        yield b"\x01" * 500
        yield b"\x01" * (count - 500)

    body = pieces if chunked else lambda count: b"\x01" * count
    assert client.predict(body(1000)).status_code == 200
    refused(client.predict(body(1001)), 413, "too_large", "1 kB")


@pytest.mark.parametrize("settings", [{"max_body": 1000}])
@pytest.mark.parametrize("path", ["/v1/models/pets/predict", "/v2/models/pets/infer"])
def test_the_limit_holds_for_what_is_unpacked(client, path):
    bomb = gzip.compress(b"\x01" * 10_000_000)[:1000]
    assert len(gzip.compress(b"\x01" * 1001)) < 100
    for body in (gzip.compress(b"\x01" * 1001), bomb):
        answer = client(path, body, headers={"content-encoding": "gzip"})
        assert (answer.status_code, "1 kB" in answer.text) == (413, True)


@pytest.mark.parametrize("path", ["/v1/models/pets/predict", "/v2/models/pets/infer"])
@pytest.mark.parametrize("value", [b"[]", b"{}", b"0", b'""', b'{"a":0}', b"[[[0]]]"])
def test_a_small_body_does_not_become_millions_of_values(client, service, path, value):
    body = b'{"inputs":[' + b",".join([value] * 400_000) + b"]}"
    packed = gzip.compress(body)
    assert len(packed) < 100_000
    answer = client(path, packed, "application/json", headers={"content-encoding": "gzip"})
    assert (answer.status_code, "250,000 values" in answer.text) == (413, True)
    assert service.asked == []


def test_json_of_as_many_values_as_there_may_be_is_read():
    values = [0] * (MOST_VALUES - 4)
    assert from_json(json.dumps({"inputs": [values]}).encode())["inputs"] == [values]
    with pytest.raises(Refusal, match="more than 250,000 values"):
        from_json(json.dumps({"inputs": [values * 2]}).encode())
    long = json.dumps({"inputs": [{"data": "A" * 4_000_000}]}).encode()
    assert len(from_json(long)["inputs"][0]["data"]) == 4_000_000


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("br", FILE, 415),
        ("gzip, gzip", gzip.compress(gzip.compress(FILE)), 415),
        ("gzip", FILE, 400),
        ("gzip", gzip.compress(FILE)[:-9], 400),
        ("gzip", gzip.compress(FILE) * 2, 400),
        ("deflate", b"", 400),
        ("identity", FILE, 200),
    ],
    ids=("unknown", "two of them", "not packed", "cut off", "two members", "empty", "identity"),
)
def test_encodings_that_cannot_be_undone_are_refused(client, encoding, body, status):
    assert client.predict(body, headers={"content-encoding": encoding}).status_code == status


@pytest.mark.parametrize("settings", [{"max_inputs": 3}])
def test_the_number_of_inputs_has_a_limit(client):
    def files(count: int) -> list[Any]:
        return [("file", ("a.png", b"\x01"))] * count

    def document(count: int) -> str:
        return json.dumps({"inputs": [{"data": "AA=="}] * count})

    assert client("/v1/models/pets/predict", files=files(3)).status_code == 200
    for count in (4, 400):
        refused(client("/v1/models/pets/predict", files=files(count)), 413, "too_large")
        refused(client.predict(document(count), media="application/json"), 413, "too_large")


# --- who may ask ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"token": "correct-horse"}])
def test_with_a_token_nothing_is_answered_without_it(client, service):
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic correct-horse"},
                    {"authorization": "correct-horse"}, {"authorization": "Bearer correct-horse\u00e4"}):  # fmt: skip
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        answer = client.predict(headers=encoded)
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/v1/models", "/v1/load", "/metrics", "/v2", "/v2/models/pets", "/nowhere", "//live", "/live/"):
            assert client(path, headers=encoded).status_code == 401, path
    assert service.asked == []
    assert client.predict(headers={"authorization": "bearer correct-horse"}).status_code == 200


@pytest.mark.parametrize("settings", [{"token": "correct-horse"}])
def test_probes_and_the_page_need_no_token(client):
    for path in ("/live", "/ready", "/v2/health/live", "/v2/health/ready", "/", "/docs", "/openapi.json"):
        assert client(path).status_code == 200, path


# --- around -----------------------------------------------------------------------------------------------------------


def test_health_follows_the_service(client, service):
    assert client("/live").json() == {"live": True}
    assert client("/ready").json() == {"ready": True}
    service.ready = False
    assert client("/live").status_code == 200
    refused(client("/ready"), 503, "starting")
    refused(client.predict(), 503, "starting")
    assert client("/v2/health/ready").status_code == 503


def test_who_comes_after_the_doors_are_closed_is_sent_away(client):
    client.front.doors.closed = True
    for answer in (client("/ready"), client.predict()):
        refused(answer, 503, "draining")
        assert answer.headers["retry-after"] == "1"
    assert client("/live").status_code == 200


def test_who_was_inside_before_is_answered(client, service):
    def slowly() -> Iterator[bytes]:
        yield FILE
        until(lambda: client.front.doors.inside == 1)
        client.front.doors.closed = True
        yield b"more"

    assert client.predict(slowly()).status_code == 200
    until(lambda: client.front.doors.inside == 0)  # the answer is sent before


def test_the_client_chooses_the_id_of_its_request(client):
    assert client("/live", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = {client("/live", headers={"x-request-id": given}).headers["x-request-id"] for given in ("a b", "x" * 65, "")}
    assert len(made) == 3
    assert all(len(one) == 16 for one in made)
    answer = client.predict(b"", headers={"x-request-id": "mine-2"})
    assert answer.json()["request_id"] == "mine-2"


def test_models_are_listed_with_their_ladders(client):
    listed = client("/v1/models").json()["models"]
    assert [one["name"] for one in listed] == ["pets", "sounds", "arrays"]
    assert listed[0]["ladder"] == [
        {"point": "exit=1", "macs": 100, "metric": "accuracy", "metric_label": "top-1", "unit": "%", "score": 0.5,
         "higher_is_better": True, "expected_ms": 1.0},
        {"point": "full", "macs": 300, "metric": "accuracy", "metric_label": "top-1", "unit": "%", "score": 0.75,
         "higher_is_better": True, "expected_ms": 3.0},
    ]  # fmt: skip
    assert listed[0]["accepts"] == {"kind": "image", "endings": [".png"]}
    assert listed[2]["accepts"] is None
    assert client("/v1/models/pets").json()["classes"] == [*CLASSES]


def test_the_load_counts_answers_by_model_and_point(client):
    client.predict()
    client.predict(options="?point=exit%3D1")
    load = client("/v1/load").json()
    assert (load["waiting"], load["answered"]) == (2, {"pets": {"full": 1, "exit=1": 1}})


def test_reloading_is_off_by_default(client, service):
    refused(client("/v1/models/pets/reload", b""), 403, "forbidden")
    assert service.reloaded == []


@pytest.mark.parametrize("settings", [{"allow_reload": True}])
def test_a_model_is_reloaded_or_the_old_one_stays(client, service):
    assert client("/v1/models/pets/reload", b"").json()["name"] == "pets"
    assert service.reloaded == ["pets"]
    assert client("/v1/models/nobody/reload", b"").status_code == 404
    service.refusal = Refusal(422, "unusable_input", "The new one is damaged.")
    refused(client("/v1/models/pets/reload", b""), 422, "unusable_input")
    service.refusal = None
    assert client.predict().status_code == 200


def test_paths_and_methods_that_there_are_not(client):
    refused(client("/nothing"), 404, "not_found")
    refused(client("/live/"), 404, "not_found")
    answer = client("/live", b"", method="DELETE")
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize("path", ["/", "/docs", "/docs/docs.js", "/docs/style.css"])
def test_pages_have_strict_headers(client, path):
    answer = client(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert client(path, headers={"if-none-match": answer.headers["etag"]}).status_code == 304


def test_files_are_served_by_name_from_a_table(client):
    for path in (
        "/docs/../app.py",
        "/docs/%2e%2e/app.py",
        "/page/..%2fapp.py",
        "/docs/",
        "/page/__init__.py",
        "/src/x",
    ):
        prepared = requests.Request("GET", f"http://{client.address}/").prepare()
        prepared.url = f"http://{client.address}{path}"
        assert client.session.send(prepared).status_code == 404, path


def test_the_documentation_needs_nothing_from_elsewhere(client):
    for path in ("/docs", "/docs/docs.js", "/docs/style.css"):
        assert "http://" not in client(path).text
        assert "https://" not in client(path).text
    described = client("/openapi.json").json()
    assert set(described["paths"]["/v1/models/{name}/predict"]["post"]["responses"]) >= {
        "200", "400", "401", "404", "408", "413", "415", "422", "431", "503", "504",
    }  # fmt: skip


def test_every_reference_of_the_description_leads_somewhere(client):
    described = client("/openapi.json").json()

    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield from [part["$ref"]] if "$ref" in part else []
            part = list(part.values())
        for inner in part if isinstance(part, list) else []:
            yield from references(inner)

    assert {*references(described)} <= {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}


# --- clients that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["", "?stream=true"])
def test_a_client_that_leaves_takes_its_request_back(client, service, options):
    service.hold = lambda: service.cancelled == 0
    host, port = client.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/models/pets/predict{options} HTTP/1.1\r\nhost: x\r\ncontent-type: image/png\r\n"
        connection.sendall(head.encode() + b"content-length: 1\r\n\r\n\x01")
        until(lambda: bool(service.asked))
    until(lambda: service.cancelled > 0)
    assert (service.cancelled, service.answered) == (1, 0)
    (line,) = client.lines()
    assert line["client_gone"] is True
    assert line["status"] == (200 if options else 499)  # of a stream, the head was sent


def test_a_client_that_leaves_within_its_body_is_no_fault(client, service):
    host, port = client.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = (
            b"POST /v1/models/pets/predict HTTP/1.1\r\nhost: x\r\ncontent-type: image/png\r\ncontent-length: 9\r\n\r\n"
        )
        connection.sendall(head + b"\x01")
        until(lambda: client.front.doors.inside == 1)
    until(lambda: client.front.doors.inside == 0)
    assert service.asked == []
    assert [(line["status"], line["client_gone"]) for line in client.lines()] == [(499, True)]
    assert client.lines("bug") == []
