from typing import Annotated

import typer


def serve(
    models: Annotated[list[str], typer.Argument(help="Runs, exported folders, or NAME=FOLDER.")],
    engine: Annotated[str, typer.Option(help="auto (the fastest), torch, onnxruntime or openvino.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or int8; default: see docs/engines.md.")] = None,
    port: Annotated[int, typer.Option(help="0: any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="Any but loopback needs --token or --no-auth.")] = "127.0.0.1",
    workers: Annotated[int, typer.Option(help="Processes of one thread that compute.")] = 1,
    decoders: Annotated[int, typer.Option(help="Processes that open files.", hidden=True)] = 1,
    slots: Annotated[int, typer.Option(help="Inputs that are inside at once.")] = 256,
    max_batch: Annotated[int, typer.Option(help="Inputs that are computed together.")] = 32,
    timeout_ms: Annotated[float, typer.Option(help="The longest deadline.", hidden=True)] = 30_000,
    max_body_mb: Annotated[float, typer.Option(help="Of one request, unpacked.")] = 20,
    max_pixels: Annotated[int | None, typer.Option(help="Of a picture.", hidden=True)] = None,
    token: Annotated[str | None, typer.Option(envvar="SUPPLE_TOKEN", help="That requests must bear.")] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Any host, and no token.")] = False,
    allow_reload: Annotated[bool, typer.Option("--allow-reload", help="POST .../reload opens a model again.")] = False,
    drain_s: Annotated[float, typer.Option(help="For answers under way after SIGTERM.")] = 30,
) -> None:
    """The page is at /, the API at /docs; Triton's clients work, too; stdout is the log. SIGTERM and Ctrl-C end it when
    all is answered."""
    from supple.server import running

    running.serve(
        *models,
        engine=engine,
        precision=precision,
        port=port,
        host=host,
        workers=workers,
        decoders=decoders,
        slots=slots,
        max_batch=max_batch,
        timeout_ms=timeout_ms,
        max_body_mb=max_body_mb,
        max_pixels=max_pixels,
        token=token,
        no_auth=no_auth,
        allow_reload=allow_reload,
        drain_s=drain_s,
    )
