"""What the HTTP part of the server is told when it starts. Without torch."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supple.errors import RecipeError
from supple.networks import located

MEGABYTE = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Settings:
    token: str | None = None  # None: nobody is asked for one
    allow_reload: bool = False
    max_body: int = 20 * MEGABYTE  # bytes of one request, decompressed
    max_inputs: int = 1000  # of one request: they need not fit into the slots at once


@dataclass(frozen=True)
class Plan:
    """What is served, where and how."""

    sources: Mapping[str, Path]
    settings: Settings
    host: str
    port: int  # 0: any that is free
    drain_s: float  # that answers may take after SIGTERM
    service: Mapping[str, Any] = field(default_factory=dict)  # keywords of `Service`


def must_be_guarded(host: str, token: str | None, no_auth: bool) -> None:
    """An address that other machines reach needs a token, or somebody who says that it needs none."""
    if token is not None and (len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token):
        cure = "Give 8 or more letters and digits: python -c 'import secrets; print(secrets.token_urlsafe())'"
        raise RecipeError("--token is not a usable token.", cure)
    if token is not None and no_auth:
        raise RecipeError("--token and --no-auth are both given.", "Give one of them.")
    if token is None and not no_auth and not is_loopback(host):
        cause = f"--host {host} can be reached from other machines, and no token is asked for."
        raise RecipeError(cause, "Add --token (or set SUPPLE_TOKEN); or --no-auth, if anybody may ask.")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def named_sources(given: Iterable[str]) -> dict[str, Path]:
    """`FOLDER`, served under the name of the folder, or `NAME=FOLDER`; a network that ships by its name."""
    sources: dict[str, Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or Path(text).exists() or not _NAME.fullmatch(name):
            name, folder = "", text
        path = Path(located(folder))
        name = name or path.resolve().name
        if not _NAME.fullmatch(name):
            cure = f"Give it another one, of letters, digits, dots and dashes: NAME={folder}."
            raise RecipeError(f'a model cannot be served under the name "{name}".', cure)
        if name in sources:
            cure = f"Give one of them another name: NAME={folder}."
            raise RecipeError(f"{sources[name]} and {path} would both be served as {name}.", cure)
        sources[name] = path
    if not sources:
        raise RecipeError("there is nothing to serve.", "Give a run or an exported folder: supple serve runs/demo.")
    return sources
