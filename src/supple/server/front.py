"""What the routes share: the service, the settings, and whether requests are taken. Without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from supple.server.logs import Log
from supple.server.metrics import Metrics
from supple.server.record import Record
from supple.server.requests import Answer, Refusal
from supple.server.settings import Settings

if TYPE_CHECKING:
    from supple.server.served import Served
    from supple.server.service import Service

AGAIN_S = 1.0  # after which a client may ask a server that starts or stops


@dataclass
class Doors:
    """Who came in before the server began to stop is answered; who comes later is sent away."""

    closed: bool = False
    inside: int = 0


@dataclass
class Front:
    service: "Service"
    settings: Settings
    log: Log
    metrics: Metrics
    clock: Callable[[], float]
    doors: Doors

    def must_take(self, request: Request) -> None:
        if record_of(request).came_late:
            raise Refusal(503, "draining", "The server is stopping.", AGAIN_S)
        if not self.service.ready:
            raise Refusal(503, "starting", "The models are being opened and measured.", AGAIN_S)

    def answered(self, record: Record, answer: Answer) -> None:
        """Counted at once: a request of many inputs may go on for long."""
        record.answers.append(answer)
        if answer.final:
            self.metrics.answer(record.model, answer)

    def refused_early(self, refusal: Refusal) -> None:
        """What was refused before it was a request: it has no route and no path, but a line and a count."""
        self.metrics.early.labels(refusal.code).inc()
        self.log.line("refused_early", status=refusal.status, code=refusal.code)

    def model(self, request: Request) -> "tuple[str, Served]":
        """The one that the path names. The name is looked up and nothing else: it is never part of a path of a file."""
        name = request.path_params["name"]
        served = self.service.models.get(name)
        if served is None:
            raise Refusal(404, "model_not_found", "There is no model of this name.")
        record_of(request).model = name
        return name, served


def make_front(service: "Service", settings: Settings, log: Log, clock: Callable[[], float]) -> Front:
    doors = Doors()
    metrics = Metrics(lambda: {**service.load(), "in_flight": doors.inside, "log_lines_dropped": log.dropped})
    return Front(service, settings, log, metrics, clock, doors)


def record_of(request: Request) -> Record:
    found: Record = request.scope["state"]["record"]
    return found
