from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Changes, Device, Json, RayAddress, Run, print_json

if TYPE_CHECKING:
    from supple.searching.search import SearchResult


def search(
    run: Run,
    changes: Changes = None,
    budget_ms: Annotated[str | None, typer.Option(help="For one sample: 5, 2,5,10, or 0.5x of full.")] = None,
    budget_macs: Annotated[str | None, typer.Option(help="MACs instead: 2e6, or 0.5x of full.")] = None,
    engine: Annotated[str, typer.Option(help="torch, onnxruntime or openvino.")] = "torch",
    scored: Annotated[int, typer.Option(help="Points; more are guessed at.", min=2)] = 60,
    pictures: Annotated[int, typer.Option(help="Of the validation data.", min=1)] = 2000,
    threads: Annotated[int | None, typer.Option(help="Default: all cores.", min=1, max=256)] = None,
    seed: Annotated[int, typer.Option(help="Another one looks elsewhere.", min=0)] = 0,
    device: Device = None,
    ray: Annotated[bool, typer.Option("--ray", help="Score points over Ray, on every CPU.")] = False,
    ray_address: RayAddress = None,
    json: Json = False,
) -> None:
    """About a dozen of them become the points of the run; those of methods other than elastic are only measured.

    What was measured is kept in search.json: an interrupted search goes on.
    """
    from supple import api

    how: dict[str, Any] = {"engine": engine, "scored": scored, "pictures": pictures, "threads": threads, "seed": seed}
    how |= {"budget_ms": budget_ms, "budget_macs": budget_macs, "device": device, "changes": changes or ()}
    how |= {"ray": ray, "ray_address": ray_address}
    result = api.search(run, **how, progress=not json)
    print_json(result.to_json()) if json else print(_told(result, run))


def _told(result: "SearchResult", run: object) -> str:
    """The chosen points for people, the best within each budget, and what is to be done."""
    from supple.tasks import get_metric
    from supple.text import macs, millions, some, table

    best: dict[str, list[str]] = {}
    for one in result.best:
        best.setdefault(one.row.point, []).append(f"{one.budget:.3g} ms" if result.unit == "ms" else macs(one.budget))
    metric, full = get_metric(result.rows[-1].metric), result.rows[-1]
    lines = [
        (
            row.point,
            millions(row.macs),
            "-" if row.p50_ms is None else f"{row.p50_ms:.3g} / {row.p95_ms:.3g}",
            "-" if row.score is None else f"{metric.scale * row.score:.1f}",
            f"best within {', '.join(best[row.point])}" if row.point in best else "",
        )
        for row in result.rows
    ]
    where = "" if full.p50_ms is None else f"; {full.engine}, {some(full.threads or 0, 'thread')}, {full.machine}"
    timed = sum(row.p50_ms is not None for row in result.ladder)
    count = f"{some(len(result.ladder), 'point')}{' (all there are)' if result.exhaustive else ''} scored"
    done = f"{run} now has these points." if result.published else "The points of this method stay as they are."
    text = table(("point", "MMACs", "ms p50 / p95", metric.title, ""), lines, left=(0, 4))
    return "\n".join((text, f"({result.ladder.data}{where})", f"\n{count}, {timed} timed. {done}", *result.remarks))
