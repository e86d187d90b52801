"""What the verbs do: a cluster is started for a run, gets more nodes, answers, tells of itself, and ends."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supple import checkpoint
from supple.cluster import local, remote
from supple.cluster.local import State
from supple.cluster.members import Facts, Members
from supple.cluster.node import Fault, Spec
from supple.cluster.parts import ANY_ORDER, Parts, as_layered, must_bear_it, trained_for
from supple.cluster.placement import parse_layers, placed, scarcest
from supple.cluster.remote import RayTransport, Watcher
from supple.cluster.route import Block
from supple.cluster.walk import HOP_DEADLINE_MS, Walked, Walker
from supple.errors import IMPORTED, CheckpointError, ClusterError, DataError, RecipeError
from supple.inference.request import Piped, Refusal
from supple.inference.result import predictions
from supple.inference.walk import Reached
from supple.model import FlexibleModel
from supple.opening import must_be_run
from supple.point import Point
from supple.surgery.merge import must_be_alike, open_merge_inputs
from supple.tasks import get_task

MOST_NODES = 256


@dataclass(frozen=True)
class Started:
    address: str
    nodes: list[Facts]
    warning: str | None  # where the model was not trained for it


def start(
    run: str | Path,
    nodes: int = 4,
    replicas: int = 1,
    siblings: Sequence[str | Path] = (),
    *,
    address: str | None = None,
    token: str | Path | None = None,
    force: bool = False,
    timeout_s: float = remote.START_S,
) -> Started:
    """A cluster on this machine, or nodes in one of Ray's that is there. All runs must be readable where nodes are."""
    local.import_ray()
    folders = [must_be_run(one).resolve() for one in (run, *siblings)]
    if nodes > MOST_NODES:
        raise RecipeError(f"--nodes is {nodes}.", f"Give at most {MOST_NODES}.")
    model = checkpoint.load(folders[0])
    layers = as_layered(model, str(run)).count
    warning = must_bear_it(model, str(run), force)
    if siblings:
        must_be_alike(open_merge_inputs(folders))
    blocks = placed(layers, nodes, replicas, len(folders))
    local.must_be_none()
    if address is None:
        state = local.start(timeout_s)
    else:
        state = State(address, None if token is None else str(Path(token).resolve()))
    try:
        with local.connected(state, min(timeout_s, local.CONNECT_S)):
            if there := remote.names():
                cause = f"the cluster at {state.address} has nodes already: {', '.join(there[:5])}."
                raise ClusterError(cause, "End those first: supple cluster stop, where they were started.")
            state = local.remember(replace(state, runs=tuple(map(str, folders))))
            specs = [Spec(f"node-{number}", state.runs, held, tuple(IMPORTED)) for number, held in enumerate(blocks, 1)]
            return Started(state.address, remote.start_nodes(specs, timeout_s), warning)
    except BaseException:
        local.stop(state)
        raise


def add(layers: str | None = None, fault: Fault | None = None, timeout_s: float = remote.START_S) -> Facts:
    """One more node, with these layers, or with those that have the fewest copies."""
    state = local.must_be_known()
    with local.connected(state):
        there = remote.names()
        facts = [one for one in map(remote.facts_of, there) if one is not None]
        count = as_layered(checkpoint.load(state.runs[0]), state.runs[0]).count
        chosen = scarcest(count, [one.holds for one in facts]) if layers is None else parse_layers(layers, count)
        number = max((int(name.removeprefix("node-")) for name in there if name[5:].isdecimal()), default=0) + 1
        blocks = frozenset(Block(layer) for layer in chosen)
        spec = Spec(f"node-{number}", state.runs, blocks, tuple(IMPORTED), fault or Fault())
        return remote.start_nodes([spec], timeout_s)[0]


def status() -> tuple[State, dict[str, Facts | None]]:
    """What the nodes say; None: it does not answer now, as it is being started again, or is busy."""
    state = local.must_be_known()
    with local.connected(state):
        return state, {name: remote.facts_of(name) for name in remote.names()}


def stop() -> int | None:
    """Ends what was started: the processes of Ray on this machine (their number), or our nodes in another's cluster."""
    state = local.must_be_known()
    if not state.owned:
        try:
            with local.connected(state):
                for name in remote.names():
                    remote.remove(name)
        finally:  # it is forgotten also where it is gone
            local.stop(state)
        return None
    return local.stop(state)


@dataclass(frozen=True)
class Session:
    """A caller of a cluster."""

    folder: Path
    model: FlexibleModel
    members: Members
    walker: Walker
    watcher: Watcher
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
    state: State | None = None,
) -> Iterator[Session]:
    """Connected to a cluster; any_order None: as the run was trained. Refuses nodes that hold other weights."""
    state = state or local.must_be_known()
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
            yield Session(folder, model, members, walker, watcher, state.runs)


def unheld(layers: int, facts: Iterable[Facts]) -> list[int]:
    """Layers that no node holds."""
    held = {block.layer for one in facts for block in one.holds}
    return [layer for layer in range(1, layers + 1) if layer not in held]
