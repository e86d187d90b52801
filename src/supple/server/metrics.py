"""What Prometheus is told: requests, refusals, deadlines missed, the points that answered, and times. Without torch.

Every label has few values: names of models and points are those that there are, never words of a request.
"""

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from supple.server.record import Record
from supple.server.requests import Answer

MEDIA = CONTENT_TYPE_LATEST
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
GAUGES = {
    "in_flight": "Requests that have come and are not answered, this one among them.",
    "waiting": "Samples that wait for a worker.",
    "running": "Samples that a worker has.",
    "slots": "Samples that there is room for.",
    "free": "Of these, how many have none.",
    "workers": "Processes that compute and are up.",
    "spread": "How much slower steps are than when they were measured.",
    "log_lines_dropped": "Lines of the log that nobody read in time.",
}


class Metrics:
    """Counts of one server, in a registry of their own."""

    def __init__(self, load: Callable[[], Mapping[str, Any]]) -> None:
        """load: what GAUGES name, at any moment."""
        self.registry = CollectorRegistry()
        self.answered: dict[str, Counts[str]] = {}  # of each model, by point
        self._known: dict[tuple[Any, tuple[str, ...]], Any] = {}
        how: dict[str, Any] = {"registry": self.registry}
        timed = {**how, "buckets": SECONDS}
        self.requests = Counter("supple_requests", "Requests, by route and status.", ("route", "status"), **how)
        self.refused = Counter("supple_rejects", "Requests refused, by reason.", ("model", "code"), **how)
        self.early = Counter("supple_early_rejects", "Connections refused before a request was read.", ("code",), **how)
        self.missed = Counter("supple_deadline_misses", "Answers or refusals after the deadline.", ("model",), **how)
        self.answers = Counter("supple_answers", "Answers, by point and reason.", ("model", "point", "reason"), **how)
        self.seconds = Histogram("supple_request_seconds", "From head to end of a request.", ("route",), **timed)
        self.queue = Histogram("supple_queue_seconds", "That inputs waited.", ("model",), **timed)
        self.compute = Histogram("supple_compute_seconds", "That inputs were computed.", ("model",), **timed)
        self.registry.register(_Load(load))
        ProcessCollector(registry=self.registry)  # memory, processor time and open files of the front

    def count(self, record: Record, now: float) -> None:
        """One request that has ended."""
        route = record.route or "none"
        self._of(self.requests, route, str(record.status)).inc()
        self._of(self.seconds, route).observe(now - record.began)
        if record.code:
            self._of(self.refused, record.model, record.code).inc()
            if record.code == "late":
                self._of(self.missed, record.model).inc()

    def answer(self, model: str, answer: Answer) -> None:
        """One input that has its last answer."""
        found = answer.prediction
        self._of(self.answers, model, found.point, found.reason).inc()
        self._of(self.queue, model).observe(answer.queue_ms / 1e3)
        self._of(self.compute, model).observe(answer.compute_ms / 1e3)
        self.answered.setdefault(model, Counts())[found.point] += 1
        if found.in_time is False:
            self._of(self.missed, model).inc()

    def _of(self, metric: Any, *labels: str) -> Any:
        """The one of these labels; looked up here, since `labels` checks and locks each time."""
        found = self._known.get((metric, labels))
        if found is None:
            found = self._known[metric, labels] = metric.labels(*labels)
        return found

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Load(Collector):
    """What the service says of itself, asked when the metrics are."""

    def __init__(self, load: Callable[[], Mapping[str, Any]]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        for name, about in GAUGES.items():
            if isinstance(value := load.get(name), int | float):
                yield GaugeMetricFamily(f"supple_{name}", about, value=value)
