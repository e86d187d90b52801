"""Nodes killed with SIGKILL while requests come at a steady rate: every answer is compared with the local model.

    python benchmarks/cluster_chaos.py runs/shuffled --nodes 4 --requests 2000 --rate 4 --kills 100 --kill-every 5
    python benchmarks/cluster_chaos.py runs/shuffled --fault delay_ms=200 --deadline-ms 300 --kills 0

Starts a cluster of its own on this machine, and ends it (--here: uses the one that is there). `equal`: answers within
1e-5 of the local model run with the layers that they name. `expected`: the accuracy of the local model on random
choices of as many layers as the answers ran, in order and in any order, weighted by how often that number was run.
`lost_ms`: of requests with a hop that did not come back, the time spent on it. --fault: the first node has this fault.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from supple.cluster import chaos, local, manage, remote
from supple.cluster.chaos import Answered, Killed, storm
from supple.cluster.node import Fault, Spec
from supple.cluster.session import Session, session
from supple.cluster.walk import PATIENCE_S, Walked
from supple.machine import machine
from supple.opening import open_source
from supple.point import Group, Point
from supple.scoring import evaluate_group

TOLERANCE = 1e-5
DRAWS = 5


@contextmanager
def cluster(run: Path, nodes: int, replicas: int = 1, fault: str = "", **how: Any) -> Iterator[Session]:
    """A cluster that is ended in any case; the user's own, if there is one, is not touched."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[local.VARIABLE] = str(Path(folder) / "cluster.json")
        started = manage.start(run, nodes, replicas, force=True)
        try:
            if fault:
                first, state = started.nodes[0], local.must_be_known()
                with local.connected(state):
                    remote.remove(first.name)
                    spec = Spec(f"{first.name}-faulty", state.runs, first.holds, fault=Fault.parse(fault))
                    remote.start_nodes([spec])
            with session(run, **how) as opened:
                yield opened
        finally:
            remote.stop()


def samples(run: Path, count: int) -> list[tuple[torch.Tensor, int]]:
    """Single test samples with their targets; the same for every run of one data set."""
    return list(islice(chaos.samples(run), count))


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the maximum."""
    times = sorted(times)
    if not times:
        return {}
    return {**{f"p{q}": times[min(len(times) - 1, q * len(times) // 100)] for q in (50, 95, 99)}, "max": times[-1]}


def expected(session: Session, run: Path, counts: Counter[int], any_order: bool) -> float:
    """The accuracy of the local model with as many layers, weighted by how often they were run."""
    model, data = session.model, open_source(run).data(None, "test")
    layers = session.walker.ends.layers

    def draw(kept: int, rng: random.Random) -> Point:
        drawn = rng.sample(range(1, layers + 1), kept)
        return Point(layers=drawn if any_order else sorted(drawn))

    scores = {
        kept: evaluate_group(model, data, Group(f"{kept} {any_order}", partial(draw, kept)), DRAWS).score
        for kept in counts
    }
    return sum(scores[kept] * count for kept, count in counts.items()) / counts.total()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds")
    parser.add_argument("--deadline-ms", type=float)
    parser.add_argument("--hop-ms", type=float, default=200.0)
    parser.add_argument("--patience-s", type=float, default=PATIENCE_S, help="for a node, where none is alive")
    parser.add_argument("--fault", default="")
    parser.add_argument("--here", action="store_true", help="on the cluster that is there, not on one of its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-expected", action="store_true", help="leave out the accuracy of the local model")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    drawn = samples(given.run, given.requests)
    answers: dict[int, Any] = {}
    killed: list[Killed] = []
    own = cluster(given.run, given.nodes, given.replicas, given.fault, hop_deadline_ms=given.hop_ms)
    with session(given.run, hop_deadline_ms=given.hop_ms) if given.here else own as opened:
        opened.walker.patience_s = given.patience_s
        walk = partial(opened.walker.walk, deadline_ms=given.deadline_ms)
        for x, _ in drawn[:10]:
            walk(x)  # the first calls open connections
        how: dict[str, Any] = {"rate": given.rate, "kill_every_s": given.kill_every if given.kills else 0.0}
        how |= {"most_kills": given.kills, "rng": random.Random(given.seed)}
        for event in storm(walk, (x for x, _ in drawn), opened.members, remote.kill, **how):
            if isinstance(event, Answered):
                answers[event.number] = event.answer
            else:
                killed.append(event)
    walked = {number: answer for number, answer in answers.items() if isinstance(answer, Walked)}
    apart, hits = [], []
    with torch.inference_mode():
        for number, answer in walked.items():
            x, target = drawn[number]
            logits = opened.model(x, Point(layers=answer.layers))
            apart.append(float((logits - torch.from_numpy(answer.logits)).abs().max()))
            hits.append(int(answer.logits[0].argmax()) == target)
    counts = Counter(len(answer.layers) for answer in walked.values())
    lost = [answer.lost_ms for answer in walked.values() if answer.replays]
    errors = [str(answer).splitlines()[0] for answer in answers.values() if not isinstance(answer, Walked)]
    late = [answer for answer in walked.values() if given.deadline_ms and answer.elapsed_ms > given.deadline_ms]
    found = {
        "requests": len(drawn),
        "answered": len(walked),
        "kills": len(killed),
        "errors": Counter(errors),
        "equal": sum(one <= TOLERANCE for one in apart),
        "furthest": max(apart, default=0.0),
        "accuracy": statistics.fmean(hits),
        "layers": dict(sorted(counts.items())),
        "reasons": Counter(answer.reason for answer in walked.values()),
        "elapsed_ms": quantiles([answer.elapsed_ms for answer in walked.values()]),
        "replayed": len(lost),
        "lost_ms": quantiles(lost),
        "late": len(late),
        "machine": machine(),
    }
    if not given.no_expected:
        found["expected"] = {
            name: expected(opened, given.run, counts, any_order)
            for name, any_order in (("in order", False), ("any order", True))
        }
    text = json.dumps(found, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
