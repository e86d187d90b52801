"""The routes below /v1: predictions, the models, the load. Without torch."""

from typing import TYPE_CHECKING

from fastapi import APIRouter
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
    from supple.server.service import Served


def routes(front: Front) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["predictions"])

    @router.get("/models", **openapi.read("The models, and what each of their points costs and scores", "Models"))
    async def models(request: Request) -> Response:
        return respond({"models": [about(served) for served in front.service.models.values()]})

    @router.get(
        "/models/{name}",
        **openapi.model(),
    )
    async def model(request: Request) -> Response:
        _, served = front.model(request)
        return respond({**about(served), "classes": list(served.classes)})

    @router.get("/load", **openapi.read("What waits and runs, and which points answered lately", "Load"))
    async def load(request: Request) -> Response:
        return respond(front.service.load())

    @router.post("/models/{name}/predict", **openapi.predict())
    async def predict(request: Request) -> Response:
        return await _predict(front, request)

    @router.post("/models/{name}/reload", **openapi.reload())
    async def reload(request: Request) -> Response:
        if not front.settings.allow_reload:
            raise Refusal(403, "forbidden", "This server was started without --allow-reload.")
        name, _ = front.model(request)
        front.must_take(request)
        await front.service.reload(name)
        return respond(about(front.service.models[name]))

    return router


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
        return Stream(front.service.stream(name, found.given, found.options, arrived=arrived), record)
    work = front.service.predict(name, found.given, found.options, arrived=arrived)
    record.answers = await unless_gone(request.receive, work)
    answers = [answer_json(answer) for answer in record.answers]
    return respond({"model": name, "predictions": answers, "request_id": record.id})


def must_be_of_kind(media: str, served: "Served") -> None:
    """A model of pictures takes no sounds; bytes that do not say what they are may be either."""
    if served.kind is None:
        cause = "This model knows no way to prepare files: send arrays to its /v2 route."
        raise Refusal(415, "unsupported_media_type", cause)
    wrong = {"image": "audio/", "sound": "image/"}.get(served.kind)
    if wrong is not None and media.lower().startswith(wrong):
        raise Refusal(415, "unsupported_media_type", f"This model takes files of one kind: {served.kind}.")
