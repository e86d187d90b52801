"""Ray on this machine: started on loopback with a token of its own, connected to, and ended, with no process left.

A file remembers what was started: the session that all its processes are in (they inherit it), when it began, and when
the machine did. Only processes of that session are ever ended.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from supple import files
from supple.errors import ClusterError, RecipeError
from supple.text import one_line

VARIABLE = "SUPPLE_CLUSTER"  # the path of the file, if not the usual one
CONNECT_S = 30.0
TRIES = 5  # of being let in, a second each
START_S = 120.0
END_S = 8.0  # that processes may take to end by themselves
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # else Ray replaces 127.0.0.1 by an address that others reach
STORE_BYTES = 200_000_000  # of the object store: states of some KB to MB pass through it


def import_ray() -> Any:
    if find_spec("ray") is None:
        raise RecipeError("supple cluster: ray is not installed.", "pip install 'supple[ray]'")
    return import_module("ray")


def _psutil() -> Any:
    with suppress(ModuleNotFoundError):
        return import_module("psutil")
    import_ray()  # which brings one
    return import_module("psutil")


@dataclass(frozen=True)
class State:
    """What was started, and how to reach it."""

    address: str  # empty: it is being started
    token: str | None  # the path of its file; None: the cluster asks for none
    folder: str | None = None  # of Ray's files and the token; None: the cluster is not ours
    session: int = 0  # of all its processes
    began: float = 0.0  # when the first of them did
    booted: float = 0.0
    runs: tuple[str, ...] = ()

    @property
    def owned(self) -> bool:
        return self.folder is not None


def path() -> Path:
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "supple" / "cluster.json").expanduser()


def known() -> State | None:
    """The cluster that was started last, if it was not ended since."""
    if not path().is_file():
        return None
    found = files.read_json(path(), f"Remove it, once no process of Ray is left: rm {path()}.")
    return State(**{**found, "runs": tuple(found["runs"])})


def must_be_known() -> State:
    state = known()
    if state is None:
        raise ClusterError("no cluster was started here.", "Start one: supple cluster start RUN --nodes 4.")
    return state


def remember(state: State) -> State:
    files.write(path(), json.dumps(asdict(state), indent=1))
    return state


# --- started, and ended -----------------------------------------------------------------------------------------------


def start(timeout_s: float = START_S) -> State:
    """Starts Ray on loopback. Whatever goes wrong, also Ctrl-C, ends what was started."""
    must_be_none()
    psutil = _psutil()
    folder = Path(tempfile.mkdtemp(prefix="supple-", dir="/tmp" if Path("/tmp").is_dir() else None))  # sockets: short
    token = folder / "token"
    with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--node-ip-address=127.0.0.1", "--port=0"]
    words += ["--include-dashboard=false", "--disable-usage-stats", "--no-monitor", "--include-log-monitor=false"]
    words += [f"--ray-client-server-port={free_port()}", "--dashboard-agent-listen-port=0", f"--temp-dir={folder}"]
    words += [f"--object-store-memory={STORE_BYTES}"]
    log = folder / "start.log"
    state = State("", str(token), str(folder), booted=psutil.boot_time())
    try:
        with log.open("w") as out:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **guarded(str(token)), **LOOPBACK},
                start_new_session=True,
            )
        state = remember(replace(state, session=process.pid, began=psutil.Process(process.pid).create_time()))
        status = process.wait(timeout_s)
        if status:
            said = [line.strip() for line in log.read_text().splitlines() if line.strip()]
            raise ClusterError(f"Ray did not start: {' '.join(said[-2:])[:300]}", "See supple doctor.")
        address = (folder / "ray_current_cluster").read_text().strip()
        return remember(replace(state, address=address))
    except subprocess.TimeoutExpired:
        stop(state)
        raise ClusterError(f"Ray did not start within {timeout_s:g} s.", "Give it longer: --timeout-s 300.") from None
    except BaseException:
        stop(state)
        raise


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def must_be_none() -> None:
    """Refuses a second cluster; forgets one whose processes are gone."""
    state = known()
    if state is None:
        return
    if state.owned and not processes(state):
        stop(state)
        return
    raise ClusterError(
        f"a cluster is there already, at {state.address or 'its start'}.", "End it first: supple cluster stop."
    )


def stop(state: State, wait_s: float = END_S) -> int:
    """Ends the processes that were started, and no others; gives their number. Raises where one does not end."""
    began, told = time.monotonic(), set[int]()
    left: list[Any] = []  # looked for twice: one may be born while the others are counted
    while state.owned and (left := processes(state) or processes(state)):
        waited_s = time.monotonic() - began
        if waited_s > 2 * wait_s:
            break
        for process in left:
            if waited_s > wait_s:
                _signal(process, signal.SIGKILL)
            elif process.pid not in told:
                _signal(process, signal.SIGTERM)
                told.add(process.pid)
        time.sleep(0.1)
    if left:
        numbers = ", ".join(str(process.pid) for process in left)
        raise ClusterError(f"processes of Ray do not end: {numbers}.", "Call supple cluster stop again.")
    if state.folder is not None:
        shutil.rmtree(state.folder, ignore_errors=True)
    path().unlink(missing_ok=True)
    return len(told)


def processes(state: State) -> list[Any]:
    """Of the session that was started: all that are left. None, if its number is another program's by now."""
    psutil = _psutil()
    if not state.session or abs(psutil.boot_time() - state.booted) > 2:
        return []
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if process.pid == state.session and abs(process.create_time() - state.began) > 1:
                return []
            if os.getsid(process.pid) == state.session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _signal(process: Any, number: int) -> None:
    with suppress(_psutil().Error):  # psutil looks whether the number is still this process's
        process.send_signal(number)


# --- connected to -----------------------------------------------------------------------------------------------------


def guarded(token: str | None) -> dict[str, str]:
    """The environment of a process that bears the token, and in which Ray keeps quiet."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if token is None:
        return {**quiet, "RAY_AUTH_MODE": "disabled"}
    return {**quiet, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token}


@contextmanager
def connected(state: State, timeout_s: float = CONNECT_S) -> Iterator[Any]:
    """Ray, connected to a cluster. An address that does not answer and a wrong token are refused in this time."""
    must_answer(state.address, timeout_s)
    if state.token is not None and not Path(state.token).is_file():
        raise RecipeError(f"there is no file {state.token} with the token.", "Give it: --token-file FILE.")
    os.environ.update(guarded(state.token))
    ray = import_ray()
    raylet = import_module("ray._raylet")  # what it knows may be of an earlier connection, or of none
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    constants: Any = import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = not state.owned  # as LOOPBACK says
    constants.NUM_REDIS_GET_RETRIES = TRIES
    problem: list[BaseException] = []

    def connect() -> None:
        try:
            how = {"_node_ip_address": "127.0.0.1"} if state.owned else {}
            ray.init(state.address, namespace="supple", log_to_driver=False, logging_level="ERROR", **how)
        except BaseException as error:
            problem.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    with _silenced():
        thread.start()
        thread.join(timeout_s)
    cure = (
        "Is it this cluster's token? Give its file: --token-file FILE; or start anew: supple cluster stop, then start."
    )
    if thread.is_alive():
        raise ClusterError(f"Ray at {state.address} did not let us in within {timeout_s:g} s.", cure)
    if problem:
        raise ClusterError(f"Ray at {state.address} did not let us in: {one_line(problem[0])}", cure) from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _silenced() -> Iterator[None]:
    """What Ray's own libraries write to stderr meanwhile is dropped."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def must_answer(address: str, timeout_s: float) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise RecipeError(f'"{address}" is not an address.', "Give HOST:PORT, as ray start prints it.")
    try:
        socket.create_connection((host, int(port)), timeout_s).close()
    except OSError as error:
        cause = f"nothing answers at {address}: {error.strerror or error}."
        raise ClusterError(cause, "Start a cluster: supple cluster stop, then supple cluster start.") from None
