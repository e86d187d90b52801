"""The application: routes, what is around them, the page and the documentation. Without torch."""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from supple.server import open_inference, openapi, v1
from supple.server.answering import refused, respond
from supple.server.around import Around
from supple.server.assets import Assets
from supple.server.front import Front, record_of
from supple.server.metrics import MEDIA
from supple.server.requests import Refusal

HERE = Path(__file__).parent
OPEN = ("/", "/live", "/ready", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready")
FOLDERS = {"page": HERE / "page", "docs": HERE / "docs"}  # served below these paths; files of no secret
_OTHER = {404: ("not_found", "There is nothing here."), 405: ("method_not_allowed", "This is not asked in this way.")}


def make_app(front: Front) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    v1.add_routes(app, front)
    open_inference.add_routes(app, front)
    _add_health(app, front)
    _add_files(app)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_middleware(Around, front=front, is_open=is_open)
    return app


def is_open(path: str) -> bool:
    """Whether a path is answered without the token: probes cannot send one, and the page has to ask for it."""
    return path in OPEN or path.startswith(tuple(f"/{name}/" for name in FOLDERS))


def _add_health(app: FastAPI, front: Front) -> None:
    @app.get("/live", **openapi.read("Whether the server runs", "Live"))
    async def live(request: Request) -> Response:
        return respond({"live": True})

    @app.get("/ready", **openapi.read("Whether every point of every model is warmed up", "Ready"))
    async def ready(request: Request) -> Response:
        front.must_take(request)
        return respond({"ready": True})

    @app.get("/metrics", **openapi.route("For Prometheus", openapi.content(openapi.TEXT, "text/plain")))
    async def metrics(request: Request) -> Response:
        return Response(front.metrics.text(), media_type=MEDIA)


def _add_files(app: FastAPI) -> None:
    folders = {name: Assets(folder) for name, folder in FOLDERS.items()}
    described: list[bytes] = []

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return folders["page"].response("index.html", request)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return folders["docs"].response("index.html", request)

    @app.get("/openapi.json", include_in_schema=False)
    async def description(request: Request) -> Response:
        if not described:
            described.append(json.dumps(openapi.document(app)).encode())
        return Response(described[0], media_type="application/json")

    async def file(request: Request) -> Response:
        folder, name = request.scope["path"].split("/")[1], request.path_params["name"]
        if name not in folders[folder]:
            raise HTTPException(404)
        return folders[folder].response(name, request)

    for folder in folders:
        app.get(f"/{folder}/{{name:path}}", include_in_schema=False)(file)


async def _no_route(request: Request, error: Any) -> Response:
    """What Starlette refuses: a path, or a method, that there is not."""
    record = record_of(request)
    code, message = _OTHER.get(error.status_code, ("malformed", "The request cannot be read."))
    record.code = code
    response = refused(Refusal(error.status_code, code, message), record)
    response.headers.update(error.headers or {})
    return response
