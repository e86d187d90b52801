"""How answers and refusals look as JSON. Without torch."""

import json
import math
from typing import Any

from starlette.responses import Response

from supple.server.record import Record
from supple.server.requests import Answer, Refusal

JSON, LINES = "application/json", "application/x-ndjson"


def as_json(document: Any) -> bytes:
    """Figures that are not finite are the model's fault, and no answer."""
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise Refusal(503, "model_unhealthy", "The model gives figures that are not finite.") from None


def respond(document: Any, status: int = 200) -> Response:
    return Response(as_json(document), status, media_type=JSON)


def answer_json(answer: Answer) -> dict[str, Any]:
    found = answer.prediction
    return {
        "index": answer.index,
        "label": found.label,
        "scores": [{"label": label, "score": score} for label, score in found.scores.items()],
        "point": found.point,
        "reason": found.reason,
        "queue_ms": round(answer.queue_ms, 3),
        "compute_ms": round(answer.compute_ms, 3),
        "in_time": found.in_time,
        **found.details,
    }


def line_json(item: Answer | tuple[int, Refusal]) -> dict[str, Any]:
    """A line of a stream: an exit's answer, or why an input has none."""
    if isinstance(item, Answer):
        return {**answer_json(item), "final": item.final}
    index, refusal = item
    return {"index": index, "final": True, "error": refusal_json(refusal)}


def refusal_json(refusal: Refusal) -> dict[str, Any]:
    found: dict[str, Any] = {"code": refusal.code, "message": refusal.message}
    return found if refusal.retry_after_s is None else {**found, "retry_after_s": round(refusal.retry_after_s, 3)}


def refused(refusal: Refusal, record: Record) -> Response:
    """In the form that clients of the route expect: the Open Inference Protocol has its own."""
    headers = {}
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(refusal.retry_after_s)))
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    document: dict[str, Any] = {"error": refusal_json(refusal), "request_id": record.id}
    if record.path == "/v2" or record.path.startswith("/v2/"):
        document = {"error": refusal.message, "code": refusal.code, "request_id": record.id}
    response = respond(document, refusal.status)
    response.headers.update(headers)
    return response
