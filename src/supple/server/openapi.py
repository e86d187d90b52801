"""What /openapi.json says of every route: its parameters, its bodies, and every status that can occur. Without torch.

The routes read requests themselves (a body of megabytes goes through no model of pydantic), so it is written here by
hand; a test sends requests made from it and lets no other status pass.
"""

from typing import Any

from supple.server.requests import MOST_K

Schema = dict[str, Any]

ABOUT = """Under load answers become cheaper before they are refused. Every answer names the point that ran and why.
Errors have a stable code and one sentence; a request that was refused with Retry-After may be sent again after it."""

STATUSES = {
    200: "Answered.",
    304: "Not changed.",
    400: "malformed: the request or its body cannot be read.",
    401: "unauthorized: the token is missing or wrong.",
    403: "forbidden: the server was started without --allow-reload.",
    404: "model_not_found: there is no model of this name.",
    405: "method_not_allowed",
    408: "too_slow: the request did not arrive in time.",
    413: "too_large: the body, or the number of inputs.",
    415: "unsupported_media_type: of the body, or its encoding.",
    422: "unusable_input, unknown_point, invalid_options or not_finite.",
    431: "headers_too_large",
    503: "overloaded, starting, draining, model_unhealthy or worker_lost. Some can be sent again: see Retry-After.",
    504: "late: it was admitted, and its deadline passed all the same.",
}
COMMON = (400, 401, 408, 413, 431, 503)  # before a route is reached
RUNS = (404, 415, 422, 504)


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


TEXT, COUNT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
ANY: Schema = {}
_PROBLEM = ("code", "message")
_ANSWER = ("index", "label", "scores", "point", "reason", "queue_ms", "compute_ms")
REASONS = ["asked", "deadline", "confident", "budget", "load", "full"]

SCHEMAS: dict[str, Schema] = {
    "Problem": _object(_PROBLEM, code=TEXT, message=TEXT, retry_after_s=NUMBER),
    "Error": _object(("error",), error=_ref("Problem"), request_id=TEXT),
    "ProtocolError": _object(("error",), error={"anyOf": [TEXT, _ref("Problem")]}, code=TEXT, request_id=TEXT),
    "Score": _object(("label", "score"), label=TEXT, score=NUMBER),
    "Prediction": _object(
        _ANSWER,
        index=COUNT,
        label=TEXT,
        scores=_list(_ref("Score")),
        point=TEXT,
        reason={**TEXT, "description": ", ".join(REASONS)},
        queue_ms=NUMBER,
        compute_ms=NUMBER,
        in_time={"type": ["boolean", "null"]},
    ),
    "Predictions": _object(
        ("model", "predictions", "request_id"),
        model=TEXT,
        predictions=_list(_ref("Prediction")),
        request_id=TEXT,
    ),
    "Line": {
        "description": "One line of a stream: an answer, or an error of one input (index null: of all that are left).",
        **_object(("index", "final"), index={"type": ["integer", "null"]}, final=FLAG, error=_ref("Problem")),
    },
    "Row": _object(
        ("point",),
        point=TEXT,
        macs={"type": ["integer", "null"]},
        metric={"type": ["string", "null"]},
        metric_label=TEXT,
        unit=TEXT,
        score={"type": ["number", "null"]},
        higher_is_better={"type": ["boolean", "null"]},
        expected_ms={"type": ["number", "null"], "description": "Of one sample, alone, on this machine."},
    ),
    "Model": _object(
        ("name", "task", "engine", "points", "ladder"),
        name=TEXT,
        task=TEXT,
        engine=TEXT,
        precision={"type": ["string", "null"]},
        input_shape=_list(_list(COUNT)),
        accepts={"type": ["object", "null"]},
        num_classes=COUNT,
        classes=_list(TEXT),
        calibrated=FLAG,
        points=_list(TEXT),
        ladder=_list(_ref("Row")),
    ),
    "Models": _object(("models",), models=_list(_ref("Model"))),
    "Load": _object(
        ("waiting", "running"),
        waiting=COUNT,
        running=COUNT,
        slots=COUNT,
        points={"type": "object"},
        answered={"type": "object"},
    ),
    "Live": _object(("live",), live=FLAG),
    "Ready": _object(("ready",), ready=FLAG),
    "Tensor": _object(
        ("name", "datatype", "shape"),
        name=TEXT,
        datatype=TEXT,
        shape=_list({**COUNT, "minimum": 1}),
        parameters={"type": "object"},
        data=_list(ANY),
    ),
    "InferRequest": _object(
        ("inputs",),
        id=TEXT,
        inputs={**_list(_ref("Tensor")), "minItems": 1},
        outputs=_list(_object(("name",), name=TEXT, parameters={"type": "object"})),
        parameters={"type": "object"},
    ),
    "InferResponse": _object(
        ("model_name", "model_version", "outputs"),
        model_name=TEXT,
        model_version=TEXT,
        id=TEXT,
        parameters={"type": "object"},
        outputs=_list(_ref("Tensor")),
    ),
    "Inputs": _object(
        ("inputs",),
        inputs={**_list(_object(("data",), data={**TEXT, "format": "byte"})), "minItems": 1},
        stream=FLAG,
    ),
}
OPTIONS: dict[str, tuple[Schema, str]] = {
    "deadline_ms": ({**NUMBER, "minimum": 0}, "Answer within this, counted from when the body has arrived."),
    "point": (TEXT, "Run this point, such as exit=2 or full."),
    "budget_macs": (
        {"anyOf": [{**NUMBER, "minimum": 1}, TEXT]},
        "The best within MACs: 2e6, or 0.5x of full.",
    ),
    "min_confidence": ({**NUMBER, "minimum": 0, "maximum": 1}, "Stop at the first exit this confident."),
    "policy": (FLAG, "Stop as calibrated."),
    "top_k": ({**COUNT, "minimum": 1, "maximum": MOST_K}, "How many scores."),
    "stream": (FLAG, "One line of JSON for every input and exit, as it comes."),
}
SCHEMAS["Inputs"]["properties"] |= {name: schema for name, (schema, _) in OPTIONS.items()}
_FILE = {"schema": {"type": "string", "format": "binary"}}
_BODY = {
    "required": True,
    "content": {
        "image/*": _FILE,
        "audio/*": _FILE,
        "application/octet-stream": _FILE,
        "multipart/form-data": {"schema": {"type": "object", "additionalProperties": _FILE["schema"]}},
        "application/json": {"schema": _ref("Inputs")},
    },
}
_INFER = {
    "required": True,
    "content": {"application/json": {"schema": _ref("InferRequest")}, "application/octet-stream": _FILE},
}


def _parameter(name: str, place: str, schema: Schema, about: str = "") -> Schema:
    return {"name": name, "in": place, "required": place == "path", "schema": schema, "description": about}


NAME = _parameter("name", "path", TEXT, "Of a model that GET /v1/models lists.")
_QUERY = [_parameter(name, "query", schema, about) for name, (schema, about) in OPTIONS.items()]


def content(schema: Schema, kind: str = "application/json") -> Schema:
    return {"description": STATUSES[200], "content": {kind: {"schema": schema}}}


def responses(good: Schema, *statuses: int, protocol: bool = False) -> dict[int | str, Schema]:
    """good: what 200 has."""
    error = {"application/json": {"schema": _ref("ProtocolError" if protocol else "Error")}}
    others: dict[int | str, Schema] = {
        status: {"description": STATUSES[status], "content": error} for status in sorted({*COMMON, *statuses})
    }
    return {200: good, **others}


def route(
    summary: str, good: Schema, *statuses: int, parameters: tuple[Schema, ...] = (), protocol: bool = False, **body: Any
) -> dict[str, Any]:  # fmt: skip
    """Keywords for a route of FastAPI."""
    from starlette.responses import Response

    found = {"parameters": list(parameters), **body} if parameters else body
    return {
        "tags": ["Open Inference Protocol" if protocol else "supple"],
        "summary": summary,
        "responses": responses(good, *statuses, protocol=protocol),
        "openapi_extra": found,
        "response_class": Response,
        "response_model": None,
    }


def predict() -> dict[str, Any]:
    good = content(_ref("Predictions"))
    good["content"]["application/x-ndjson"] = {"schema": _ref("Line")}
    return route("Answers for files", good, *RUNS, parameters=(NAME, *_QUERY), requestBody=_BODY)


def read(summary: str, schema: str, *statuses: int, **how: Any) -> dict[str, Any]:
    return route(summary, content(_ref(schema)), *statuses, **how)


def model() -> dict[str, Any]:
    return read("One model, with the names of its classes", "Model", 404, parameters=(NAME,))


def reload() -> dict[str, Any]:
    how: dict[str, Any] = {"parameters": (NAME,)}
    return read("Opens a model again, beside the old one; needs --allow-reload", "Model", 403, 404, 422, **how)


_VERSION = _parameter("version", "path", TEXT, "1: every model has one.")


def protocol(summary: str, versioned: bool | None = None) -> dict[str, Any]:
    """versioned: of a model, with its version in the path; None: of the server."""
    if versioned is None:
        return route(summary, content({"type": "object"}), protocol=True)
    parameters = (NAME, _VERSION) if versioned else (NAME,)
    return route(summary, content({"type": "object"}), 404, parameters=parameters, protocol=True)


def infer(versioned: bool) -> dict[str, Any]:
    good = content(_ref("InferResponse"))
    good["content"]["application/octet-stream"] = _FILE
    length = _parameter("Inference-Header-Content-Length", "header", COUNT, "Where the JSON ends, if bytes follow it.")
    parameters = (NAME, _VERSION, length) if versioned else (NAME, length)
    return route("Answers for tensors", good, *RUNS, parameters=parameters, protocol=True, requestBody=_INFER)


def document(app: Any) -> dict[str, Any]:
    """The whole of it."""
    from fastapi.openapi.utils import get_openapi

    from supple import __version__

    found = get_openapi(title="supple", version=__version__, description=ABOUT, routes=app.routes)
    found.setdefault("components", {})["schemas"] = SCHEMAS
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return found
