"""Ray for as long as a command runs: a cluster of our own on loopback, or one that is there already."""

import os
import secrets
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
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        must_answer(address)
        try:
            ray.init(address, **quiet)
        except Exception as error:  # of many kinds; a wrong token is one
            cure = "Check the address, and the token: RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=FILE."
            raise RayError(f"the Ray cluster at {address} cannot be joined: {one_line(error)}", cure) from None
        try:
            yield ray
        finally:
            ray.shutdown()
        return
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as place:  # sockets: short
        token = Path(place) / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        guard = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        with _environment(**guard, RAY_USAGE_STATS_ENABLED="0", RAY_BACKEND_LOG_LEVEL="fatal"):
            try:
                alone: dict[str, Any] = {
                    "include_dashboard": False,
                    "_node_ip_address": "127.0.0.1",
                    "_temp_dir": place,
                }
                with _silent():
                    ray.init("local", num_cpus=cpus, **alone, **quiet)
                yield ray
            finally:
                ray.shutdown()


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
def _environment(**values: str) -> Iterator[None]:
    """These variables for a while, read by Ray and inherited by what it starts."""
    from ray import _raylet

    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        _raylet.Config.initialize("")  # type: ignore[attr-defined]  # reads them again, if Ray was imported before
        _raylet.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
