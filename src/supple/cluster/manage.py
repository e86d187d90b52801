"""A cluster is started for a run, and gets more nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from supple import checkpoint
from supple.cluster import local, remote
from supple.cluster.local import State
from supple.cluster.members import Facts
from supple.cluster.node import Fault, Spec
from supple.cluster.parts import as_layered, must_bear_it
from supple.cluster.placement import parse_layers, placed, scarcest
from supple.cluster.route import Block
from supple.errors import IMPORTED, ClusterError, RecipeError
from supple.opening import must_be_run
from supple.surgery.merge import must_be_alike, open_merge_inputs

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
