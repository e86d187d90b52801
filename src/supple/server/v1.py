"""The routes below /v1: predictions, the models, the load. Without torch."""

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from supple.server import openapi
from supple.server.answering import answer_json, respond
from supple.server.asking import asked
from supple.server.bodies import read_body
from supple.server.front import Front, record_of
from supple.server.leaving import unless_gone
from supple.server.models import about
from supple.server.requests import Refusal
from supple.server.streaming import Stream

if TYPE_CHECKING:
    from supple.server.served import Served


def add_routes(app: FastAPI, front: Front) -> None:
    """The one that is asked most comes first: routes are looked for in this order."""

    @app.post("/v1/models/{name}/predict", **openapi.predict())
    async def predict(request: Request) -> Response:
        return await _predict(front, request)

    @app.get("/v1/models", **openapi.read("The models, and what each of their points costs and scores", "Models"))
    async def models(request: Request) -> Response:
        return respond({"models": [about(served) for served in front.service.models.values()]})

    @app.get("/v1/models/{name}", **openapi.model())
    async def model(request: Request) -> Response:
        _, served = front.model(request)
        return respond({**about(served), "classes": list(served.classes)})

    @app.post("/v1/models/{name}/reload", **openapi.reload())
    async def reload(request: Request) -> Response:
        if not front.settings.allow_reload:
            raise Refusal(403, "forbidden", "This server was started without --allow-reload.")
        name, _ = front.model(request)
        front.must_take(request)
        await front.service.reload(name)
        return respond(about(front.service.models[name]))

    @app.get("/v1/load", **openapi.read("What waits and runs, and which points answered lately", "Load"))
    async def load(request: Request) -> Response:
        return respond({**front.service.load(), "answered": front.metrics.answered})


async def _predict(front: Front, request: Request) -> Response:
    front.must_take(request)
    name, served = front.model(request)
    body = await read_body(request, front.settings.max_body)
    arrived = front.clock()
    media = request.headers.get("content-type", "")
    must_be_of_kind(media, served)
    found = asked(media, body, request.query_params.multi_items(), front.settings.max_inputs)
    record = record_of(request)
    record.asks(name, len(found.given), found.options)
    if found.stream:
        return Stream(front.service.stream(name, found.given, found.options, arrived=arrived), front, record)
    work = front.service.predict(name, found.given, found.options, arrived=arrived)
    answers = await unless_gone(request.receive, work)
    for answer in answers:
        front.answered(record, answer)
    return respond({"model": name, "predictions": [answer_json(answer) for answer in answers], "request_id": record.id})


def must_be_of_kind(media: str, served: "Served") -> None:
    """A model of pictures takes no sounds; bytes that do not say what they are may be either."""
    if served.kind is None:
        cause = "This model knows no way to prepare files: send arrays to its /v2 route."
        raise Refusal(415, "unsupported_media_type", cause)
    wrong = {"image": "audio/", "sound": "image/"}.get(served.kind)
    if wrong is not None and media.lower().startswith(wrong):
        raise Refusal(415, "unsupported_media_type", f"This model takes files of one kind: {served.kind}.")
