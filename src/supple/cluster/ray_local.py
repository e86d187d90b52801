"""Ray for as long as a command runs: a cluster of our own on loopback, or one that is there already."""

import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from supple.errors import RecipeError, SuppleError
from supple.text import one_line

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": else Ray replaces 127.0.0.1 by an address that others reach
PATIENCE_S = 5.0  # for a first answer of an address


class RayError(SuppleError):
    """Ray cannot be reached, or has given up."""

    status = 1


@contextmanager
def connect(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at HOST:PORT, or to one of this machine, of so many CPUs, that ends
    with the block. Its processes listen on loopback only, and to nobody without the token of a file that only this
    user can read. Ray that is connected already is taken as it is.
    """
    try:
        import ray
    except ImportError:
        raise RecipeError("Ray is not installed.", "pip install 'supple[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    place = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # only this user looks into it; short: it holds sockets
    values = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    if address is None:
        token = place / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        values |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    else:
        must_answer(address)
    if address is None or address.startswith("127."):
        values[LOOPBACK] = "0"
    try:
        with _environment(values):
            _init(ray, address, cpus, place / "r")
            yield ray
    finally:
        ray.shutdown()
        shutil.rmtree(place, ignore_errors=True)


def _init(ray: Any, address: str | None, cpus: int | None, place: Path) -> None:
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if LOOPBACK in os.environ:
        how["_node_ip_address"] = "127.0.0.1"
    if address is None:
        how |= {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": str(place)}
    try:
        with _silent():
            ray.init(address or "local", **how)
    except Exception as error:  # of many kinds; a wrong token is one
        if address is None:
            raise RayError(f"Ray does not start here: {one_line(error)}", "See why: --debug.") from error
        cure = "Check the address, and the token: RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=FILE."
        raise RayError(f"the Ray cluster at {address} cannot be joined: {one_line(error)}", cure) from error


def must_answer(address: str) -> None:
    """Refuses an address that nothing listens at, which Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE_S).close()
    except (OSError, ValueError) as error:
        cure = "Give HOST:PORT of a cluster that runs: ray start --head prints it."
        raise RayError(f"no Ray cluster answers at {address}: {one_line(error)}.", cure) from None


def import_modules(names: Sequence[str]) -> None:
    """As --import does, in a process of Ray's."""
    if names:
        sys.path.insert(0, os.getcwd())
    for name in names:
        import_module(name)


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing on stderr, where Ray's C++ tells how much it will tell. What fails is raised."""
    sys.stderr.flush()
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """These variables for a while, read by Ray and inherited by what it starts."""
    from ray import _raylet
    from ray._private import ray_constants, worker

    before = {name: os.environ.get(name) for name in values}
    remote, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, LOOPBACK not in values
    worker._worker_logs_enabled = False  # else what happens to its processes is printed, among answers, on stdout
    os.environ.update(values)
    try:
        _raylet.Config.initialize("")  # type: ignore[attr-defined]  # reads them again, if Ray was imported before
        _raylet.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = remote
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
