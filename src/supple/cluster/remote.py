"""Nodes as Ray actors: started, found by their names, called, and watched.

A keeper, an actor too, starts nodes again that died: Ray could do that by itself, but then calls to a dead node take a
second to fail, and otherwise about 0.1 s (Ray 2.60, measured). A node whose blocks are broken ends for good.
"""

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from supple.cluster import local
from supple.cluster.local import State, import_ray
from supple.cluster.members import Facts, Members
from supple.cluster.node import Broken, Node, Spec
from supple.cluster.route import Block
from supple.cluster.walk import Died, Late
from supple.errors import ClusterError, SuppleError
from supple.text import one_line

Array = np.ndarray[Any, Any]
NAMESPACE = "supple"
START_S = 120.0  # for nodes to start
TELL_S = 5.0  # for a node to tell of itself
LOOK_S = 0.25  # between looks at who is there
KEEPER = "keeper"
MOST_STARTS = 3  # of a node that does not come up, one after the other
STAYS: dict[str, Any] = {"lifetime": "detached", "namespace": NAMESPACE, "num_cpus": 0}  # when its starter ends


class RayNode(Node):
    def run(self, blocks: tuple[Block, ...], place: int, state: Array) -> tuple[Array, float] | None:
        try:
            return super().run(blocks, place, state)
        except Broken:
            forget(self.spec.name)
            import_ray().actor.exit_actor()
            raise


class Keeper:
    """Starts nodes again that died, unless they do not come up several times in a row."""

    def __init__(self) -> None:
        self._specs, self._starts, self._up = dict[str, Spec](), Counter[str](), dict[str, Any]()
        threading.Thread(target=self._run, name="keep", daemon=True).start()

    def keep(self, specs: Sequence[Spec]) -> None:
        self._specs |= {spec.name: spec for spec in specs}

    def forget(self, name: str) -> None:
        self._specs.pop(name, None)

    def _run(self) -> None:
        ray = import_ray()
        while True:
            time.sleep(LOOK_S)
            with suppress(ray.exceptions.RayError, ValueError):  # ValueError: the name is not free yet
                self._look(ray, names())

    def _look(self, ray: Any, there: Sequence[str]) -> None:
        for name, ref in list(self._up.items()):
            if ray.wait([ref], timeout=0)[0]:
                del self._up[name]
                with suppress(ray.exceptions.RayError):
                    ray.get(ref)
                    self._starts[name] = 0
        for name, spec in list(self._specs.items()):
            if name not in there and name not in self._up:
                if self._starts[name] >= MOST_STARTS:
                    self.forget(name)
                    continue
                self._starts[name] += 1
                self._up[name] = ray.remote(RayNode).options(name=name, **STAYS).remote(spec).facts.remote()


def keeper() -> Any:
    return import_ray().remote(Keeper).options(name=KEEPER, get_if_exists=True, max_restarts=-1, **STAYS).remote()


def forget(name: str) -> None:
    """A node is not to be started again."""
    ray = import_ray()
    with suppress(ray.exceptions.RayError):
        ray.get(keeper().forget.remote(name), timeout=TELL_S)


def start_nodes(specs: Sequence[Spec], timeout_s: float = START_S) -> list[Facts]:
    """Starts nodes that stay when this process ends, and waits until they have tried their blocks."""
    ray = import_ray()
    actor = ray.remote(RayNode)
    until = time.monotonic() + timeout_s
    handles = []
    try:
        for spec in specs:
            handles.append(actor.options(name=spec.name, **STAYS).remote(spec))
        asked = {handle.facts.remote(): spec for handle, spec in zip(handles, specs)}
        found = [_told(ray, ref, spec.name, until - time.monotonic()) for ref, spec in asked.items()]
        ray.get(keeper().keep.remote(specs), timeout=max(TELL_S, until - time.monotonic()))
        return found
    except BaseException:
        for handle in handles:
            ray.kill(handle)
        raise


def _told(ray: Any, ref: Any, name: str, timeout_s: float) -> Facts:
    try:
        facts: Facts = ray.get(ref, timeout=max(0.0, timeout_s))
        return facts
    except ray.exceptions.GetTimeoutError:
        raise ClusterError(f"{name} did not start in time.", "Give it longer: --timeout-s 300.") from None
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, SuppleError):
            raise ClusterError(f"{name}: {cause.cause}", cause.cure) from None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if "Error: " in line), lines[-1] if lines else one_line(error))
        raise ClusterError(
            f"{name} cannot start: {said[:300]}", "Every machine must be able to read the run."
        ) from None


def names() -> list[str]:
    """Of the nodes that there are, also of those being restarted."""
    ray = import_ray()
    return sorted(name for name in ray.util.list_named_actors() if name != KEEPER)


def facts_of(name: str, timeout_s: float = TELL_S) -> Facts | None:
    """What a node says of itself; None: nothing in this time."""
    ray = import_ray()
    with suppress(ray.exceptions.RayError, ValueError):
        facts: Facts = ray.get(ray.get_actor(name, NAMESPACE).facts.remote(), timeout=timeout_s)
        return facts
    return None


def remove(name: str) -> None:
    """Ends a node for good."""
    ray = import_ray()
    forget(name)
    with suppress(ValueError, ray.exceptions.RayError):
        ray.kill(ray.get_actor(name, NAMESPACE))


def kill(facts: Facts) -> None:
    """Kills the process of a node, as a crash would: SIGKILL where it is on this machine. It is started again."""
    ray = import_ray()
    if facts.host == socket.gethostname() and facts.pid:
        with suppress(ProcessLookupError):
            os.kill(facts.pid, signal.SIGKILL)
        return
    with suppress(ValueError, ray.exceptions.RayError):
        ray.kill(ray.get_actor(facts.name, NAMESPACE))


# --- the verbs that need no torch -------------------------------------------------------------------------------------


def status() -> tuple[State, dict[str, Facts | None]]:
    """What the nodes say; None: it does not answer now, as it is being started again, or is busy."""
    state = local.must_be_known()
    with local.connected(state):
        return state, {name: facts_of(name) for name in names()}


def stop() -> int | None:
    """Ends what was started: the processes of Ray on this machine (their number), or our nodes in another's cluster."""
    state = local.must_be_known()
    if not state.owned:
        try:
            with local.connected(state):
                for name in (*names(), KEEPER):
                    remove(name)
        finally:  # it is forgotten also where it is gone
            local.stop(state)
        return None
    return local.stop(state)


# --- calls ------------------------------------------------------------------------------------------------------------


class RayTransport:
    """Calls nodes by their names. Safe for calls from several threads."""

    def __init__(self) -> None:
        self._ray, self._handles = import_ray(), dict[str, Any]()

    def handle(self, name: str) -> Any:
        if name not in self._handles:
            self._handles[name] = self._ray.get_actor(name, NAMESPACE)
        return self._handles[name]

    def forget(self, name: str) -> None:
        self._handles.pop(name, None)

    def run(
        self, node: str, blocks: tuple[Block, ...], place: int, state: Array, timeout_s: float
    ) -> tuple[Array, float]:
        until = time.monotonic() + timeout_s
        errors = self._ray.exceptions
        try:
            found = self._ray.get(self.handle(node).run.remote(blocks, place, state), timeout=timeout_s)
        except errors.GetTimeoutError:
            raise Late(node) from None
        except (errors.RayActorError, errors.ObjectLostError, ValueError):  # ValueError: there is none of this name
            self.forget(node)
            raise Died(node) from None
        except errors.RayTaskError as error:
            raise ClusterError(
                f"{node} failed: {one_line(error.cause, 300)}", "Look at supple cluster status."
            ) from None
        if found is None:
            time.sleep(max(0.0, until - time.monotonic()))
            raise Late(node)
        after, node_ms = found
        return after, node_ms


class Watcher:
    """Looks, in a thread of its own, which nodes come, come back and leave."""

    def __init__(self, members: Members, transport: RayTransport) -> None:
        self._ray, self._members, self._transport = import_ray(), members, transport
        self._asked: dict[str, Any] = {}
        self._problem: SuppleError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> "Watcher":
        until = time.monotonic() + TELL_S
        self.look()
        while self._asked and time.monotonic() < until:  # whoever is busy for longer joins later
            self._ray.wait(list(self._asked.values()), timeout=0.1)
            self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(TELL_S)

    def check(self) -> None:
        """Raises what was wrong with a node that wanted to join."""
        if self._problem is not None:
            raise self._problem

    def look(self) -> None:
        """Asks whoever should tell of itself, and takes in what those asked before have told since."""
        there = names()
        for name in self._members.everybody():
            if name not in there:
                self._members.left(name)
        for name in self._members.to_ask(there):
            if name not in self._asked:
                self._transport.forget(name)  # another may have its name now
                with suppress(ValueError):
                    self._asked[name] = self._transport.handle(name).facts.remote()
        for name, ref in list(self._asked.items()):
            if self._ray.wait([ref], timeout=0)[0]:
                del self._asked[name]
                try:
                    self._members.seen(self._ray.get(ref))
                except self._ray.exceptions.RayError:
                    pass  # it is asked again
                except SuppleError as error:
                    self._problem = error

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            with suppress(self._ray.exceptions.RayError):
                self.look()
