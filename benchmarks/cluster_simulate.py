"""The simulation against the real local cluster, on three settings.

    python benchmarks/cluster_simulate.py runs/shuffled --requests 400

The times that go into the simulation (of a layer, of a hop, of stem and head) are measured on the same cluster, one
request at a time, with a pause before each. Then requests come at rates that are shares of what one core could do, and
the simulation gets the same. All processes share the cores of this machine, in the simulation too.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cluster_chaos import cluster, quantiles, samples
from supple.cluster import remote
from supple.cluster.chaos import Answered, storm
from supple.cluster.session import Session
from supple.cluster.simulate import Setting, simulate
from supple.cluster.walk import Walked
from supple.machine import machine

PAUSE_S = 0.02


def measured(session: Session, drawn: list[torch.Tensor]) -> dict[str, float]:
    """Median ms of a layer, of a hop beside its layers, and of stem and head."""
    ends, run = session.walker.ends, session.walker.transport.run
    found: dict[str, list[float]] = {"block_ms": [], "hop_ms": [], "ends_ms": []}
    nodes = session.members.alive()
    for x in drawn:
        time.sleep(PAUSE_S)  # caches cool down, threads fall asleep
        began = time.perf_counter()
        state = ends.stem(x)
        spent = time.perf_counter() - began
        for node in nodes:
            blocks, start = tuple(sorted(node.holds)), time.perf_counter()
            state, node_ms = run(node.name, blocks, 0, state, 10.0)
            found["block_ms"].append(node_ms / len(blocks))
            found["hop_ms"].append(1000 * (time.perf_counter() - start) - node_ms)
        start = time.perf_counter()
        ends.head(state)
        found["ends_ms"].append(1000 * (spent + time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in found.items()}


def real(session: Session, inputs: list[torch.Tensor], rate: float) -> dict[str, Any]:
    walked, last = [], 0.0
    for event in storm(session.walker.walk, inputs, session.members, remote.kill, rate=rate):
        assert isinstance(event, Answered), event
        assert isinstance(event.answer, Walked), event.answer
        walked.append(event.answer)
        last = max(last, event.at_s)
    times = [one.elapsed_ms for one in walked]
    return {"per_s": len(walked) / last, "mean_layers": statistics.fmean(len(one.layers) for one in walked)} | {
        f"{name}_ms": value for name, value in quantiles(times).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--nodes", default="2,4")
    parser.add_argument("--shares", default="0.2,0.5", help="of the rate that one core could keep up with")
    parser.add_argument("--requests", type=int, default=400)
    given = parser.parse_args()
    torch.set_num_threads(1)
    drawn = [x for x, _ in samples(given.run, given.requests)]
    rows = []
    for nodes in map(int, given.nodes.split(",")):
        with cluster(given.run, nodes, hop_deadline_ms=10_000) as session:
            layers = session.walker.ends.layers
            times = measured(session, drawn[:100])
            alone_ms = layers * times["block_ms"] + nodes * times["hop_ms"] + times["ends_ms"]
            for share in map(float, given.shares.split(",")):
                rate = share * 1000 / alone_ms
                setting = Setting(nodes=nodes, layers=layers, rate=rate, requests=given.requests, even=True,
                                  cores=os.cpu_count(), **times)  # fmt: skip
                found, there = asdict(simulate(setting)), real(session, drawn, rate)
                ratios = {name: found[name] / there[name] for name in ("per_s", "p50_ms", "mean_layers")}
                rows.append({"setting": asdict(setting), "real": there, "simulated": found, "ratio": ratios})
    print(json.dumps({"settings": rows, "machine": machine()}, indent=1))


if __name__ == "__main__":
    main()
