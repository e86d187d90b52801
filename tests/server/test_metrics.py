"""What Prometheus reads: counts of what happened, with labels of few values."""

from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from fake_service import FakeService, front_of, listening
from supple.server.metrics import Metrics
from supple.server.record import Record
from supple.server.requests import Refusal

PREDICT = "/v1/models/{name}/predict"


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def served() -> Any:
    service = FakeService()
    with listening(front_of(service)) as address, requests.Session() as session:

        def post(path: str, body: bytes = b"\x01") -> int:
            how: dict[str, Any] = {"data": body, "headers": {"content-type": "image/png"}}
            return session.post(f"http://{address}{path}", **how).status_code

        yield service, post, lambda: values(session.get(f"http://{address}/metrics").text)


def test_requests_answers_and_refusals_are_counted(served):
    service, post, read = served
    post("/v1/models/pets/predict")
    post("/v1/models/pets/predict?point=exit%3D1")
    post("/v1/models/pets/predict", b"")
    service.refusal = Refusal(503, "overloaded", "Too much.", 1.0)
    post("/v1/models/pets/predict")
    found = read()

    def value(name: str, **labels: str) -> float | None:
        return found.get((name, tuple(sorted(labels.items()))))

    assert value("supple_requests_total", route=PREDICT, status="200") == 2
    assert value("supple_requests_total", route=PREDICT, status="422") == 1
    assert value("supple_requests_total", route=PREDICT, status="503") == 1
    assert value("supple_rejects_total", model="pets", code="overloaded") == 1
    assert value("supple_answers_total", model="pets", point="full", reason="full") == 1
    assert value("supple_answers_total", model="pets", point="exit=1", reason="asked") == 1
    assert value("supple_queue_seconds_count", model="pets") == 2
    assert value("supple_queue_seconds_sum", model="pets") == pytest.approx(2 * 0.00125)
    assert value("supple_compute_seconds_bucket", model="pets", le="0.005") == 2
    assert value("supple_compute_seconds_bucket", model="pets", le="0.002") == 0
    assert value("supple_waiting") == 2
    assert value("supple_slots") == 256
    assert (value("process_resident_memory_bytes") or 0) > 1e6


def test_answers_after_the_deadline_are_missed_deadlines(served):
    service, post, read = served
    service.refusal = Refusal(504, "late", "Too late.")
    post("/v1/models/pets/predict")
    assert read()["supple_deadline_misses_total", (("model", "pets"),)] == 1


def test_no_word_of_a_client_becomes_a_label(served):
    _, post, read = served
    before = {key for key in read() if key[0].startswith("supple_")}
    for k in range(20):
        post(f"/v1/models/nobody-{k}/predict")
        post(f"/somewhere/{k}")
        post(f"/v2/models/x{k}/infer")
    labels = {value for _, pairs in {*read()} - before for _, value in pairs}
    assert labels <= {PREDICT, "/v2/models/{name}/infer", "none", "404", "", "model_not_found", "not_found",
                      "/metrics", "200", *(f"{le}" for le in (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                                             0.5, 1.0, 2.0, 5.0, 10.0, 30.0, "+Inf"))}  # fmt: skip


def test_two_servers_in_one_process_count_apart():
    one, other = Metrics(dict), Metrics(dict)
    one.count(Record("a", "GET", "/live", 0.0, route="/live", status=200), 1.0)
    assert b'supple_requests_total{route="/live"' in one.text()
    assert b'supple_requests_total{route="/live"' not in other.text()
