"""The Open Inference Protocol as Triton's own client speaks it, and what no client should be able to do with it."""

import gzip
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from fake_service import CLASSES, FakeModel, FakeService, front_of, listening
from supple.server.requests import Options, Refusal
from supple.server.tensors import LENGTH

IMAGES = np.arange(3 * 4, dtype=np.float32).reshape(3, 1, 2, 2) // 4  # the fake service goes by the first pixel


@pytest.fixture
def service() -> FakeService:
    both = FakeModel("both", input_shape=((1, 2, 2), (3,)), kind=None)
    return FakeService([FakeModel(), FakeModel("sounds", kind="sound"), both])


@pytest.fixture
def address(service: FakeService) -> Iterator[str]:
    with listening(front_of(service, max_body=100_000, max_inputs=8)) as found:
        yield found


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with triton.InferenceServerClient(address) as made:
        yield made


def image(values: np.ndarray = IMAGES, binary: bool = True, name: str = "image") -> Any:
    made = triton.InferInput(name, list(values.shape), "FP32")
    made.set_data_from_numpy(values, binary_data=binary)
    return made


def files(*contents: bytes) -> Any:
    made = triton.InferInput("file", [len(contents)], "BYTES")
    made.set_data_from_numpy(np.array(contents, object))
    return made


def labels(found: Any) -> list[str]:
    return [text.decode() if isinstance(text, bytes) else text for text in found.as_numpy("label").tolist()]


# --- Triton's client --------------------------------------------------------------------------------------------------


def test_the_client_finds_server_and_models(client, service):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("pets")
    assert client.is_model_ready("pets", "1")
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready("pets", "2")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    about = client.get_model_metadata("pets")
    assert about["versions"] == ["1"]
    assert about["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [-1, 1, 2, 2]},
        {"name": "file", "datatype": "BYTES", "shape": [-1]},
    ]
    assert {"name": "logits", "datatype": "FP32", "shape": [-1, 3]} in about["outputs"]
    assert [one["name"] for one in client.get_model_metadata("both")["inputs"]] == ["image", "audio"]
    assert client.get_model_metadata("sounds")["inputs"][0]["name"] == "audio"
    service.ready = False
    assert not client.is_server_ready()


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tensors_go_and_come_as_bytes_or_as_json(client, service, binary_in, binary_out):
    wanted = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("logits", "label", "score")]
    found = client.infer("pets", [image(binary=binary_in)], outputs=wanted, request_id="7")
    assert labels(found) == [*CLASSES]
    np.testing.assert_array_equal(found.as_numpy("logits"), 4 * np.eye(3, dtype=np.float32))
    assert found.as_numpy("score").tolist() == pytest.approx([0.96466315] * 3)
    assert found.get_response()["id"] == "7"
    given = service.asked[0][1]
    assert len(given) == 3
    for row, (part,) in zip(IMAGES, given):
        assert part.dtype == np.float32
        np.testing.assert_array_equal(part, row)


def test_files_go_as_bytes(client, service):
    found = client.infer("pets", [files(b"\x02 owl", b"\x00\n", b"\x01")], model_version="1")
    assert labels(found) == ["owl", "cat", "dog"]
    assert service.asked[0][1] == [b"\x02 owl", b"\x00\n", b"\x01"]


def test_without_names_every_output_comes_as_bytes(client):
    found = client.infer("pets", [image()])
    outputs = found.get_response()["outputs"]
    assert {one["name"] for one in outputs} == {"logits", "label", "point", "reason", "details", "score"}
    assert all("binary_data_size" in one["parameters"] for one in outputs)
    assert found.as_numpy("point").tolist() == [b"full"] * 3
    assert found.as_numpy("details").tolist() == [b"{}"] * 3


def test_the_answer_says_which_point_ran(client):
    found = client.infer("pets", [image()], parameters={"point": "exit=1"}).get_response()["parameters"]
    assert found == {"point": "exit=1", "reason": "asked", "queue_ms": 1.25, "compute_ms": 3.5}


def test_deadlines_come_in_milliseconds_or_as_tritons_microseconds(client, service):
    client.infer("pets", [image()], timeout=2500)
    client.infer("pets", [image()], parameters={"deadline_ms": 7, "budget_macs": "0.5x"})
    client.infer("pets", [image()], timeout=0)
    assert [asked[2] for asked in service.asked] == [
        Options(deadline_ms=2.5),
        Options(deadline_ms=7, budget_macs="0.5x"),
        Options(),
    ]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_the_client_may_compress(client, algorithm):
    how = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    assert labels(client.infer("pets", [image()], **how)) == [*CLASSES]


def test_classes_can_be_asked_for_as_triton_writes_them(client):
    wanted = [triton.InferRequestedOutput("logits", class_count=2)]
    found = client.infer("pets", [image()], outputs=wanted).as_numpy("logits")
    assert found.tolist() == [
        [b"4.000000:0:cat", b"0.000000:1:dog"],
        [b"4.000000:1:dog", b"0.000000:0:cat"],
        [b"4.000000:2:owl", b"0.000000:0:cat"],
    ]


def test_a_network_of_two_parts_gets_both(client, service):
    sounds = np.ones((3, 3), np.float32)
    client.infer("both", [image(sounds, name="audio"), image()])  # in any order
    assert [[part.shape for part in given] for given in service.asked[0][1]] == [[(1, 2, 2), (3,)]] * 3


def test_the_client_is_told_why_not(client, service):
    service.refusal = Refusal(503, "overloaded", "Too much.", 1.0)
    with pytest.raises(InferenceServerException, match=r"Too much.") as caught:
        client.infer("pets", [image()])
    assert caught.value.status() == "503"


@pytest.mark.parametrize(
    ("inputs", "how", "word"),
    [
        ([image(IMAGES[:, :, :1])], {}, "shape"),
        ([image(IMAGES[0])], {}, "batch first"),
        ([image(name="picture")], {}, "image"),
        ([image(), image()], {}, "twice"),
        ([files(b"\x01"), image()], {}, "takes image"),
        ([image(np.full((1, 1, 2, 2), np.nan, np.float32))], {}, "not finite"),
        ([image(np.zeros((9, 1, 2, 2), np.float32))], {}, "more than 8"),
        ([files(*[b"\x01"] * 9)], {}, "more than 8"),
        ([files(b"\x01", b"")], {}, "Input 1 is empty"),
        ([image()], {"priority": 1}, "priority"),
        ([image()], {"sequence_id": 5}, "sequence"),
        ([image()], {"timeout": 5, "parameters": {"deadline_ms": 5}}, "one of them"),
        ([image()], {"parameters": {"point": 3}}, "point"),
        ([image()], {"outputs": [triton.InferRequestedOutput("probabilities")]}, "probabilities"),
        ([image()], {"outputs": [triton.InferRequestedOutput("label", class_count=2)]}, "classification"),
    ],
)
def test_requests_that_do_not_fit_are_refused(client, service, inputs, how, word):
    with pytest.raises(InferenceServerException, match=word) as caught:
        client.infer("pets", inputs, **how)
    assert caught.value.status() in ("400", "413", "422")
    assert service.asked == []


# --- what no client of Triton's would send ----------------------------------------------------------------------------


def post(address: str, body: bytes, **headers: str) -> requests.Response:
    return requests.post(f"http://{address}/v2/models/pets/infer", data=body, headers=headers)


def document(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 2, 2], "data": [1, 2, 3, 4]}
    return {"inputs": [{**tensor, **changes}]}


def test_json_alone_may_be_nested_or_flat_and_files_are_base64(address):
    for data in ([1, 2, 3, 4], [[[[1, 2], [3, 4]]]]):
        answer = post(address, json.dumps(document(data=data)).encode()).json()
        (label,) = [one for one in answer["outputs"] if one["name"] == "label"]
        assert label == {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["dog"]}
    file = document(name="file", datatype="BYTES", shape=[2, 1], data=["AA==", "Ag=="])
    answer = post(address, json.dumps(file).encode()).json()
    assert [one["data"] for one in answer["outputs"] if one["name"] == "label"] == [["cat", "owl"]]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        b"[]",
        b"{}",
        b'{"inputs": []}',
        b'{"inputs": [1]}',
        b'{"inputs": {"name": "image"}}',
        b"[" * 90_000,
        *(
            json.dumps(document(**changes)).encode()
            for changes in (
                {"name": 3},
                {"datatype": "INT8"},
                {"datatype": None},
                {"shape": []},
                {"shape": [-1, 1, 2, 2]},
                {"shape": [0, 1, 2, 2]},
                {"shape": [True, 1, 2, 2]},
                {"shape": [1.0, 1, 2, 2]},
                {"shape": [2**40] * 4},
                {"shape": [1] * 99},
                {"shape": "1"},
                {"data": [1, 2, 3]},
                {"data": [1, 2, 3, 4, 5]},
                {"data": [[1, 2], [3]]},
                {"data": ["a", "b", "c", "d"]},
                {"data": [{}, 1, 2, 3]},
                {"data": {"0": 1}},
                {"data": [10**400, 1, 2, 3]},
                {"data": [1e300, 1, 2, 3]},
                {"data": [None, 1, 2, 3]},
                {"parameters": []},
                {"parameters": {"shared_memory_region": "x"}},
                {"parameters": {"binary_data_size": 16}},
                {"name": "file", "datatype": "BYTES", "shape": [4]},
                {"name": "file", "datatype": "BYTES", "shape": [1], "data": ["?"]},
                {"name": "file", "datatype": "FP32", "shape": [4]},
            )
        ),
        json.dumps({**document(), "id": 5}).encode(),
        json.dumps({**document(), "outputs": 5}).encode(),
        json.dumps({**document(), "outputs": [5]}).encode(),
        json.dumps({**document(), "outputs": [{"name": []}]}).encode(),
        json.dumps({**document(), "outputs": [{"name": "label", "parameters": {"binary_data": 1}}]}).encode(),
        json.dumps({**document(), "parameters": 5}).encode(),
        json.dumps({**document(), "parameters": {"timeout": "5"}}).encode(),
        json.dumps({**document(), "parameters": {"timeout": -5}}).encode(),
        json.dumps({**document(), "parameters": {"binary_data_output": 1}}).encode(),
    ],
)
def test_json_that_describes_no_request_is_refused(address, service, body):
    answer = post(address, body)
    assert answer.status_code in (400, 413, 422), answer.text
    assert set(answer.json()) == {"error", "code", "request_id"}
    assert service.asked == []


@pytest.mark.parametrize(
    ("sizes", "rest", "length"),
    [
        ([16], b"\0" * 15, None),
        ([16], b"\0" * 17, None),
        ([-1], b"", None),
        ([True], b"\0", None),
        (["16"], b"\0" * 16, None),
        ([2**70], b"\0" * 16, None),
        ([12], b"\0" * 12, None),
        ([16], b"\0" * 16, "99999"),
        ([16], b"\0" * 16, "-1"),
        ([16], b"\0" * 16, "1e2"),
        ([16], b"\0" * 16, "9" * 5000),
        ([16], b"\0" * 16, "0"),
    ],
)
def test_sizes_are_held_against_what_came(address, service, sizes, rest, length):
    (size,) = sizes
    given = document(parameters={"binary_data_size": size})
    del given["inputs"][0]["data"]
    head = json.dumps(given).encode()
    answer = post(address, head + rest, **{LENGTH: str(len(head)) if length is None else length})
    assert answer.status_code in (400, 431), answer.text
    assert service.asked == []


@pytest.mark.parametrize(
    "rest",
    [b"\1", struct.pack("<I", 5) + b"abcd", struct.pack("<I", 2**32 - 1), struct.pack("<I", 0) * 1000],
)
def test_elements_are_held_against_what_came(address, service, rest):
    given = document(name="file", datatype="BYTES", shape=[1], parameters={"binary_data_size": len(rest)})
    del given["inputs"][0]["data"]
    head = json.dumps(given).encode()
    assert post(address, head + rest, **{LENGTH: str(len(head))}).status_code == 400
    assert service.asked == []


def test_the_limit_counts_what_is_unpacked(address):
    body = gzip.compress(json.dumps({**document(), "id": "x" * 100_000}).encode())
    assert len(body) < 1000
    answer = requests.post(f"http://{address}/v2/models/pets/infer", data=body, headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
