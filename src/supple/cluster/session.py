"""A caller of a cluster: the run's stem and head, what it knows of the nodes, and answers for files."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supple import checkpoint
from supple.cluster import local
from supple.cluster.members import Facts, Members
from supple.cluster.parts import ANY_ORDER, Parts, trained_for
from supple.cluster.remote import RayTransport, Watcher
from supple.cluster.walk import HOP_DEADLINE_MS, Walked, Walker
from supple.errors import CheckpointError, ClusterError, DataError
from supple.inference.request import Piped, Refusal
from supple.inference.result import predictions
from supple.inference.walk import Reached
from supple.model import FlexibleModel
from supple.opening import must_be_run
from supple.point import Point
from supple.tasks import get_task


@dataclass(frozen=True)
class Session:
    """A caller of a cluster."""

    folder: Path
    model: FlexibleModel
    members: Members
    walker: Walker
    runs: tuple[str, ...]

    def predict(
        self, sources: Sequence[Path | Piped], deadline_ms: float | None = None, batch: int = 1, in_flight: int = 4
    ) -> Iterator[dict[str, Any] | Refusal]:
        """The answers for files, as documents, or why there is none; several are on their way at once."""
        chunks = [sources[first : first + batch] for first in range(0, len(sources), batch)]
        for chunk, found in zip(chunks, self.walker.walk_many(chunks, in_flight, deadline_ms)):
            if isinstance(found, Walked):
                yield from self._documents(chunk, found, deadline_ms)
            elif not isinstance(found, DataError):
                raise found
            elif len(chunk) == 1:
                yield Refusal.of(chunk[0], found)
            else:
                yield from self.predict(chunk, deadline_ms, 1, in_flight)

    def _documents(
        self, files: Sequence[Path | Piped], walked: Walked, deadline_ms: float | None
    ) -> Iterator[dict[str, Any]]:
        point = str(self.model.check(Point(layers=walked.layers)))
        reached = [Reached(point, row, walked.reason) for row in walked.logits]
        in_time = None if deadline_ms is None else walked.elapsed_ms <= deadline_ms
        task = get_task(self.model.task)
        facts: dict[str, Any] = {"elapsed_ms": walked.elapsed_ms, "in_time": in_time}
        siblings = {str(layer): self.runs[number] for layer, number in walked.siblings.items()}
        for file, answer in zip(files, predictions(task, self.model.classes, reached, {}, {}, **facts)):
            yield {
                **replace(answer, file=str(file)).to_json(),
                "layers": walked.layers,
                "nodes": walked.nodes,
                "skipped": walked.skipped,
                "siblings": siblings,
                "replays": walked.replays,
            }


@contextmanager
def session(
    run: str | Path | None = None,
    *,
    any_order: bool | None = None,
    hop_deadline_ms: float = HOP_DEADLINE_MS,
) -> Iterator[Session]:
    """Connected to a cluster; any_order None: as the run was trained. Refuses nodes that hold other weights."""
    state = local.must_be_known()
    if not state.runs:
        raise ClusterError("the cluster has no nodes yet.", "Start it anew: supple cluster stop, then start.")
    folder = must_be_run(run if run is not None else state.runs[0])
    model = checkpoint.load(folder).eval()
    parts = Parts([model], [str(folder)])
    digest = checkpoint.read_manifest(folder)["files"][checkpoint.WEIGHTS]
    anyhow = trained_for(model) == ANY_ORDER if any_order is None else any_order
    with local.connected(state):
        members, transport = Members(), RayTransport()
        with Watcher(members, transport) as watcher:
            watcher.check()
            for member in members.everybody().values():
                if member.facts.models[0] != digest:
                    cause = f"{member.facts.name} holds other weights than {folder}: those of {state.runs[0]}."
                    raise CheckpointError(cause, f"Use supple cluster run {state.runs[0]}, or start a cluster anew.")
            walker = Walker(parts, members, transport, any_order=anyhow, hop_deadline_ms=hop_deadline_ms)
            yield Session(folder, model, members, walker, state.runs)


def unheld(layers: int, facts: Iterable[Facts]) -> list[int]:
    """Layers that no node holds."""
    held = {block.layer for one in facts for block in one.holds}
    return [layer for layer in range(1, layers + 1) if layer not in held]
