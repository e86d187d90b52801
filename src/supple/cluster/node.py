"""A node: it holds some blocks of a run, and runs those it is asked for on a state. One thread. Without Ray."""

import os
import random
import socket
import statistics
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from supple.cluster.members import Facts
from supple.cluster.route import Block
from supple.errors import ClusterError, RecipeError

Array = np.ndarray[Any, Any]
PROBES = 5  # of every block at the start


class Broken(Exception):
    """The node's blocks give values that are not finite: it must not go on."""


@dataclass(frozen=True)
class Fault:
    """What a node does wrong, for experiments: added to every call, or at random."""

    delay_ms: float = 0.0
    loss: float = 0.0  # share of answers that get lost on the way
    hang_s: float = 0.0  # every call takes this long
    nan: float = 0.0  # share of calls that spoil the state

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """`delay_ms=200,loss=0.05`."""
        try:
            return cls(**{name: float(value) for name, value in (part.split("=") for part in text.split(","))})
        except (TypeError, ValueError):
            raise RecipeError(f'--fault is "{text}".', "Give delay_ms=200, loss=0.05, hang_s=10 or nan=0.1.") from None


@dataclass(frozen=True)
class Spec:
    """What a node is started with: small, as the blocks come from the run folders, which it must be able to read."""

    name: str
    runs: tuple[str, ...]  # the folder of the run, then of its siblings
    holds: frozenset[Block]
    imports: tuple[str, ...] = ()  # modules of the user's
    fault: Fault = field(default_factory=Fault)


class Node:
    def __init__(self, spec: Spec) -> None:
        import torch

        from supple import checkpoint
        from supple.cluster.parts import Parts, as_layered
        from supple.surgery.merge import merge

        torch.set_num_threads(1)
        for module in spec.imports:
            import_module(module)
        self.spec, self._random = spec, random.Random(spec.name)
        self._models = tuple(checkpoint.read_manifest(Path(run))["files"][checkpoint.WEIGHTS] for run in spec.runs)
        own, *others = (checkpoint.load(run) for run in spec.runs)
        layers = as_layered(own, spec.runs[0]).count
        siblings = [merge([own, other], (2,) * layers) for other in others]  # their layers, all else the run's
        self._parts = Parts([own, *siblings], spec.runs)
        probe = self._parts.probe()
        self._parts.keep(list(spec.holds))
        self._began, self._busy_s, self._hops, self._blocks = time.perf_counter(), 0.0, 0, 0
        self._shape, self._block_ms = probe.shape[1:], self._check(probe)

    def _check(self, probe: Array) -> float:
        """The median time of a block. Raises where one of them gives no finite values of the shape it was given."""
        times = []
        for block in sorted(self.spec.holds):
            for _ in range(PROBES):
                began = time.perf_counter()
                after = self._parts.run((block,), 0, probe)
                times.append(1000 * (time.perf_counter() - began))
            if after.shape != probe.shape or not np.isfinite(after).all():
                cause = f"layer {block.layer} of {self.spec.runs[block.model]} gives no finite values."
                raise ClusterError(cause, "Its weights are broken: train the run again.")
        return statistics.median(times) if times else 0.0

    def facts(self) -> Facts:
        busy = self._busy_s / max(1e-9, time.perf_counter() - self._began)
        about = (self.spec.name, self.spec.holds, self._models, self._shape, self._block_ms)
        return Facts(*about, os.getpid(), socket.gethostname(), self._hops, self._blocks, busy)

    def run(self, blocks: tuple[Block, ...], place: int, state: Array) -> tuple[Array, float] | None:
        """The state after these blocks, and how many ms they took; None: the answer got lost (a fault)."""
        began, fault = time.perf_counter(), self.spec.fault
        if not self.spec.holds.issuperset(blocks):
            raise ClusterError(f"{self.spec.name} was asked for layers that it does not hold.", "Report this.")
        time.sleep(fault.delay_ms / 1000 + fault.hang_s)
        after = self._parts.run(blocks, place, state)
        if self._random.random() < fault.nan:
            after = np.full_like(after, np.nan)
        if not np.isfinite(after).all() and np.isfinite(state).all():
            raise Broken(self.spec.name)
        took = time.perf_counter() - began
        self._busy_s, self._hops, self._blocks = self._busy_s + took, self._hops + 1, self._blocks + len(blocks)
        return None if self._random.random() < fault.loss else (after, 1000 * took)
