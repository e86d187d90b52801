"""Throughput of two nodes with half of the layers each, against one process on one core; and what a hop costs.

    python benchmarks/cluster_throughput.py runs/shuffled --batch 16 --batches 200

The one process runs the whole model with one thread, on one core; then the cluster runs the same batches, several on
their way at once. In turn, a few rounds; the best of each is compared. `hop_ms`: of calls with one sample, what they
take beside the node's own work.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

from cluster_chaos import cluster, quantiles, samples
from supple.cluster.session import Session
from supple.machine import machine


def alone(session: Session, batches: list[torch.Tensor]) -> float:
    """Samples per second of this process, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        with torch.inference_mode():
            session.model(batches[0])
            began = time.perf_counter()
            for batch in batches:
                session.model(batch)
            return sum(map(len, batches)) / (time.perf_counter() - began)
    finally:
        os.sched_setaffinity(0, cores)


def together(session: Session, batches: list[torch.Tensor], in_flight: int) -> float:
    """Samples per second of the cluster."""
    for found in session.walker.walk_many(batches[:in_flight], in_flight):
        assert not isinstance(found, Exception), found
    began = time.perf_counter()
    for found in session.walker.walk_many(batches, in_flight):
        assert not isinstance(found, Exception), found
        assert found.reason == "full", found.reason
    return sum(map(len, batches)) / (time.perf_counter() - began)


def hops(session: Session, x: torch.Tensor, calls: int) -> list[float]:
    """Of calls of one block with one sample: ms beside the node's own."""
    (node, *_) = session.members.alive()
    state, block, times = session.walker.ends.stem(x), min(node.holds), []
    for _ in range(calls):
        began = time.perf_counter()
        _, node_ms = session.walker.transport.run(node.name, (block,), 0, state, 10.0)
        times.append(1000 * (time.perf_counter() - began) - node_ms)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--in-flight", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    drawn = [x for x, _ in samples(given.run, given.batch)]
    batches = [torch.cat(drawn)] * given.batches
    with cluster(given.run, given.nodes, hop_deadline_ms=10_000) as session:
        rounds = [(alone(session, batches), together(session, batches, given.in_flight)) for _ in range(given.rounds)]
        one, many = (max(column) for column in zip(*rounds))
        hop_ms = quantiles(hops(session, drawn[0], given.calls))
    found = {"one": one, "cluster": many, "ratio": many / one, "rounds": rounds, "hop_ms": hop_ms}
    print(json.dumps({**found, "machine": machine()}, indent=1))


if __name__ == "__main__":
    main()
