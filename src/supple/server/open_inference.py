"""The Open Inference Protocol, version 2, over HTTP: for clients that people have already. Without torch.

Inputs: `image` (or `audio`, or both, as the network takes them), FP32, preprocessed; or `file`, BYTES, as it is.
Outputs: what the network gives (`logits`, `density`) as FP32, and `label`, `score`, `point`, `reason`, `details` of
each input. What Triton offers beyond that (sequences, shared memory, priorities) is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from supple import __version__
from supple.inference.inputs import parts_of
from supple.server import openapi
from supple.server.answering import JSON, as_json, respond
from supple.server.asking import OPTIONS, options_of, too_many
from supple.server.bodies import read_body
from supple.server.front import Front, record_of
from supple.server.leaving import unless_gone
from supple.server.requests import Answer, Array, Given, Options, Refusal, invalid
from supple.server.tensors import (
    BYTES,
    FP32,
    LENGTH,
    Output,
    Tensor,
    malformed,
    parameters_of,
    read_request,
    write_response,
)
from supple.tasks import get_task
from supple.text import did_you_mean

if TYPE_CHECKING:
    from supple.server.served import Served

VERSION = "1"  # of every model: versions are folders of their own here
EXTENSIONS = ["binary_tensor_data", "classification", "parameters"]
TEXTS = ("label", "point", "reason", "details")


def add_routes(app: FastAPI, front: Front) -> None:
    async def infer(request: Request) -> Response:
        return await _infer(front, request)

    async def model(request: Request) -> Response:
        return respond(metadata(_asked(front, request)[1]))

    async def model_ready(request: Request) -> Response:
        name, _ = _asked(front, request)
        front.must_take(request)
        return respond({"name": name, "ready": True})

    for path, versioned in (("/v2/models/{name}", False), ("/v2/models/{name}/versions/{version}", True)):
        app.post(f"{path}/infer", **openapi.infer(versioned))(infer)
        app.get(path, **openapi.protocol("What a model takes and gives", versioned))(model)
        app.get(f"{path}/ready", **openapi.protocol("Whether a model is ready", versioned))(model_ready)

    @app.get("/v2", **openapi.protocol("The server"))
    async def server(request: Request) -> Response:
        return respond({"name": "supple", "version": __version__, "extensions": EXTENSIONS})

    @app.get("/v2/health/live", **openapi.protocol("Whether the server runs"))
    async def live(request: Request) -> Response:
        return respond({"live": True})

    @app.get("/v2/health/ready", **openapi.protocol("Whether every point of every model is warmed up"))
    async def ready(request: Request) -> Response:
        front.must_take(request)
        return respond({"ready": True})


def _asked(front: Front, request: Request) -> "tuple[str, Served]":
    if request.path_params.get("version", VERSION) != VERSION:
        raise Refusal(404, "model_not_found", f"Every model has one version: {VERSION}.")
    return front.model(request)


def metadata(served: "Served") -> dict[str, Any]:
    inputs = [_about(name, FP32, [-1, *sides]) for name, sides in arrays_of(served).items()]
    if served.kind is not None:
        inputs.append(_about("file", BYTES, [-1]))
    task = get_task(served.task)
    given = [-1, len(served.classes)] if task.confidence else [-1, -1, -1, -1]
    outputs = [_about(task.output, FP32, given), *(_about(name, BYTES, [-1]) for name in TEXTS)]
    if task.confidence:
        outputs.append(_about("score", FP32, [-1]))
    points = ", ".join(map(str, served.points))
    about = {"points": points, "engine": served.engine, "task": served.task}
    head = {"name": served.name, "versions": [VERSION], "platform": "supple", "parameters": about}
    return {**head, "inputs": inputs, "outputs": outputs}


def _about(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def arrays_of(served: "Served") -> dict[str, tuple[int, ...]]:
    """The network's own inputs, by the names that exported graphs give them, and the shape of one sample of each."""
    parts = parts_of(served.input_shape)
    if len(parts) == 1:
        return {"audio" if served.kind == "sound" else "image": parts[0]}
    return dict(zip(("image", "audio", *(f"input_{place}" for place in range(2, len(parts)))), parts))


# --- a request --------------------------------------------------------------------------------------------------------


async def _infer(front: Front, request: Request) -> Response:
    front.must_take(request)
    name, served = _asked(front, request)
    body = await read_body(request, front.settings.max_body)
    arrived = front.clock()
    document, tensors = read_request(body, request.headers.get(LENGTH))
    parameters = parameters_of(document)
    all_binary = parameters.pop("binary_data_output", False)
    if type(all_binary) is not bool:
        raise malformed("binary_data_output is true or false.")
    options = options_from(parameters)
    given = given_of(tensors, served, front.settings.max_inputs)
    wanted = wanted_of(document, served, all_binary)
    id = document.get("id")
    if not isinstance(id, str | None) or len(id or "") > 1000:
        raise malformed("id is not a short text.")
    record = record_of(request)
    record.asks(name, len(given), options)
    work = front.service.predict(name, given, options, arrived=arrived)
    answers = await unless_gone(request.receive, work)
    for answer in answers:
        front.answered(record, answer)
    head = {"model_name": name, "model_version": VERSION, "parameters": facts_of(answers)}
    outputs = [output(found, answers, served) for found in wanted]
    content, length = write_response(head if id is None else {**head, "id": id}, outputs)
    if length is None:
        return Response(content, media_type=JSON)
    return Response(content, headers={LENGTH: str(length)}, media_type="application/octet-stream")


def options_from(parameters: Mapping[str, Any]) -> Options:
    """timeout: Triton's, in microseconds; 0 is none."""
    words = dict(parameters)
    if "timeout" in words:
        timeout = words.pop("timeout")
        if type(timeout) is not int or not 0 <= timeout < 2**63:
            raise invalid("timeout is not a number of microseconds.")
        if timeout and "deadline_ms" in words:
            raise invalid("timeout and deadline_ms are given; give one of them.")
        if timeout:
            words["deadline_ms"] = timeout / 1000
    for name in words:
        if name not in OPTIONS:
            raise invalid(f"There is no parameter {name!r:.40}. {did_you_mean(name[:40], [*OPTIONS, 'timeout'])}")
    return options_of(words)[0]


def given_of(tensors: Sequence[Tensor], served: "Served", most: int) -> list[Given]:
    named = {tensor.name: tensor for tensor in tensors}
    if len(named) < len(tensors):
        raise malformed("An input is given twice.")
    arrays = arrays_of(served)
    if set(named) == {"file"} and served.kind is not None:
        file = named["file"]
        if file.datatype != BYTES or len(file.shape) > 2 or file.shape[-1] != 1 < len(file.shape):
            raise malformed("file is given as BYTES of shape [N] or [N, 1].")
        if file.shape[0] > most:
            raise too_many(most)
        files: list[Given] = [*file.files()]
        if not all(files):
            raise Refusal(422, "unusable_input", f"Input {files.index(b'')} is empty.")
        return files
    if set(named) != set(arrays):
        takes = " and ".join(arrays) + (" (FP32), or file (BYTES)" if served.kind is not None else " (FP32)")
        raise malformed(f"The inputs are {', '.join(map(repr, sorted(named)))[:100]}; this model takes {takes}.")
    return _samples([named[name] for name in arrays], list(arrays.values()), most)


def _samples(tensors: Sequence[Tensor], sides: Sequence[tuple[int, ...]], most: int) -> list[Given]:
    batch = tensors[0].shape[0]
    for tensor, expected in zip(tensors, sides):
        if tensor.datatype != FP32:
            raise malformed(f"{tensor.name} is {tensor.datatype!r:.20}; give FP32.")
        if tensor.shape != (batch, *expected):
            raise Refusal(
                422,
                "unusable_input",
                f"{tensor.name} has the shape {list(tensor.shape)}; give {[batch, *expected]}: the batch first.",
            )
    if batch > most:
        raise too_many(most)
    parts = [tensor.floats() for tensor in tensors]
    for part in parts:
        must_be_finite(part)
    return [tuple(part[place] for part in parts) for place in range(batch)]


def must_be_finite(part: Array) -> None:
    finite = np.isfinite(part.reshape(len(part), -1)).all(1)
    if not finite.all():
        raise Refusal(422, "not_finite", f"Input {int(finite.argmin())} holds values that are not finite.")


# --- its answer -------------------------------------------------------------------------------------------------------


class Wanted:
    """An output that was asked for. classification: as texts `value:index:label` of so many classes."""

    def __init__(self, name: str, binary: bool, classification: int = 0) -> None:
        self.name, self.binary, self.classification = name, binary, classification


def wanted_of(document: Mapping[str, Any], served: "Served", all_binary: bool) -> list[Wanted]:
    task = get_task(served.task)
    known = [task.output, *TEXTS, *(["score"] if task.confidence else [])]
    asked = document.get("outputs") or []
    if not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
        raise malformed("The outputs are not a list of JSON objects.")
    if not asked:
        return [Wanted(name, all_binary) for name in known]
    found = []
    for one in asked:
        parameters = parameters_of(one)
        if one.get("name") not in known:
            raise malformed(f"There is no output {one.get('name')!r:.40}: there are {', '.join(known)}.")
        if other := set(parameters) - {"binary_data", "classification"}:
            raise malformed(f"An output has no parameter {min(other)!r:.40}.")
        binary, count = parameters.get("binary_data", all_binary), parameters.get("classification", 0)
        if type(binary) is not bool or type(count) is not int or not 0 <= count <= 1000:
            raise malformed("binary_data is true or false, classification a number of classes.")
        if count and not (task.confidence and one["name"] == task.output):
            raise malformed(f"classification is for {task.output} of classifiers.")
        found.append(Wanted(one["name"], binary, count))
    return found


def output(wanted: Wanted, answers: Sequence[Answer], served: "Served") -> Output:
    found = [answer.prediction for answer in answers]
    if wanted.name == "score":
        best = [next(iter(one.scores.values())) for one in found]
        return Output("score", np.array(best, np.float32), wanted.binary)
    if wanted.name in TEXTS:
        texts = [{**vars(one), "details": as_json(one.details).decode()}[wanted.name] for one in found]
        return Output(wanted.name, np.array(texts, object), wanted.binary)
    if len({one.logits.shape for one in found}) > 1:
        cause = f"The points that answered give {wanted.name} of different shapes: ask for one point, or one input."
        raise Refusal(422, "invalid_options", cause)
    logits = np.stack([np.asarray(one.logits, np.float32) for one in found])
    if wanted.classification:
        logits = _classes(logits, served.classes, wanted.classification)
    return Output(wanted.name, logits, wanted.binary)


def _classes(logits: Array, classes: Sequence[str], count: int) -> Array:
    best = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    texts = [[f"{row[i]:f}:{i}:{classes[i]}" for i in places] for row, places in zip(logits, best.tolist())]
    return np.array(texts, object)


def facts_of(answers: Sequence[Answer]) -> dict[str, Any]:
    """What ran: of several inputs that ended at different points, all of them in their order."""
    found: dict[str, Any] = {}
    for name in ("point", "reason"):
        values = [str(getattr(answer.prediction, name)) for answer in answers]
        found[name] = values[0] if len(set(values)) == 1 else ";".join(values)
    found["queue_ms"] = round(max(answer.queue_ms for answer in answers), 3)
    found["compute_ms"] = round(max(answer.compute_ms for answer in answers), 3)
    return found
