"""`supple serve` and `supple.serve`: what is served, checked before anything is opened. Without torch, and without the
packages of [serve] until all of them are known to be there.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from supple.errors import RecipeError
from supple.server.settings import MEGABYTE, Plan, Settings, must_be_guarded, named_sources

PACKAGES = ("fastapi", "uvicorn", "httptools", "python_multipart", "prometheus_client")  # the extra [serve]


def serve(
    *sources: str | Path,
    engine: str = "auto",
    precision: str | None = None,
    port: int = 8000,
    host: str = "127.0.0.1",
    workers: int = 1,
    decoders: int = 1,
    slots: int = 256,
    max_batch: int = 32,
    timeout_ms: float = 30_000,
    max_body_mb: float = 20,
    max_pixels: int | None = None,
    token: str | None = None,
    no_auth: bool = False,
    allow_reload: bool = False,
    drain_s: float = 30,
) -> None:
    """Answers over HTTP until SIGTERM or Ctrl-C: see docs/serve.md. sources: runs and exported folders, each served
    under the name of its folder, or `NAME=FOLDER`.

    workers: processes of one thread that compute. slots: inputs that are decoded or computed at the same time; what
    comes beyond them waits or is refused. timeout_ms: the longest deadline, and that of requests that name none.
    max_pixels: of a picture. drain_s: what requests that came before SIGTERM may take after it.
    """
    must_be_installed()
    must_be_guarded(host, token, no_auth)
    for name, value, low, high in (
        ("port", port, 0, 65_535),
        ("workers", workers, 1, 256),
        ("decoders", decoders, 1, 64),
        ("slots", slots, 1, 65_536),
        ("max-batch", max_batch, 1, 4096),
        ("timeout-ms", timeout_ms, 1, 3_600_000),
        ("max-body-mb", max_body_mb, 0.001, 1000),
        ("max-pixels", max_pixels or 1, 1, 10**10),
        ("drain-s", drain_s, 0, 3600),
    ):
        if isinstance(value, bool) or not low <= value <= high:
            raise RecipeError(f"--{name} is {value}.", f"Give a number from {low:,} to {high:,}.")
    settings = Settings(token, allow_reload, int(max_body_mb * MEGABYTE))
    asked: dict[str, Any] = {
        "engine": engine,
        "precision": precision,
        "workers": workers,
        "decoders": decoders,
        "slots": slots,
    }
    asked |= {"max_batch": max_batch, "timeout_ms": timeout_ms, "max_pixels": max_pixels}
    from supple.server.lifetime import run

    run(Plan(named_sources(str(source) for source in sources), settings, host, port, drain_s, asked))


def must_be_installed() -> None:
    """Before anything else: what is missing is named, and how to get it."""
    missing = [name.replace("_", "-") for name in PACKAGES if find_spec(name) is None]
    if missing:
        some = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed."
        raise RecipeError(f"supple serve: {some}", "pip install 'supple[serve]'")
