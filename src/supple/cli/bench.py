import json as json_text
import subprocess
import sys
from typing import Annotated, Any

import typer

from supple.cli.common import Changes, Device, Json, Points, Target, numbers, print_json
from supple.errors import IMPORTED, SuppleError


def bench(
    target: Target,
    changes: Changes = None,
    point: Points = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, such as 1,16.")] = "1",
    threads: Annotated[str | None, typer.Option(help="Numbers of threads, such as 1,2; default: all cores.")] = None,
    rounds: Annotated[int, typer.Option(help="Timed calls per point.", min=5, max=10_000)] = 50,
    engine: Annotated[str | None, typer.Option(help="torch,onnxruntime,openvino, or all: a column each.")] = None,
    against: Annotated[str | None, typer.Option(help="Also time this timm network.")] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """The points alternate, round by round, so that ratios are reliable on a noisy machine. ms are per batch.

    The figures go into ladder.json and report.html; those of engines into the exported folders. A recipe is timed
    untrained. Each number of threads is measured in a process of its own. bf16 and int8 appear where they were exported
    or, of PyTorch, scored: supple evaluate RUN --precision bf16.
    """
    from supple import api
    from supple.inference.bundle import is_bundle
    from supple.ladder import Ladder

    counts: list[int | None] = [*numbers(threads, "--threads")] if threads else [None]
    sizes = numbers(batch, "--batch")
    if len(counts) > 1:
        words = [target, *(changes or ()), *(f"--point={one}" for one in point or ())]
        words += [f"--batch={batch}", f"--rounds={rounds}"]
        words += [f"--engine={engine}"] if engine else []
        words += [f"--against={against}"] if against else []
        words += [f"--device={device}"] if device else []
        rows = [row for count in counts for row in _elsewhere([*words, f"--threads={count}"])]
    else:
        how: dict[str, Any] = {"threads": counts[0], "engine": engine, "against": against, "rounds": rounds}
        how |= {"device": device, "changes": changes or (), "progress": not json}
        found = api.bench(target, point or None, batch=sizes, **how)
        rows = sorted(found.to_json()["points"], key=lambda row: sizes.index(row["batch"]))
    if json:
        print_json({"points": rows})
    elif engine or against or is_bundle(target):
        print(f"{_side_by_side(rows)}\n({rows[0]['machine']}; ms p50 / p95)")
    else:
        print(f"{Ladder.from_json({'points': rows})}\n({rows[0]['machine']}; torch, fp32)")


def _elsewhere(words: list[str]) -> list[dict[str, Any]]:
    """The rows that another process measures: a runtime's threads cannot be changed once they are there."""
    modules = [word for module in IMPORTED for word in ("--import", module)]
    command = [sys.executable, "-m", "supple", *modules, "bench", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        cause, *cure = done.stderr.strip().splitlines() or ["bench failed."]
        raise SuppleError(cause.removeprefix("error: "), " ".join(cure))
    rows: list[dict[str, Any]] = json_text.loads(done.stdout)["points"]
    return rows


def _side_by_side(rows: list[dict[str, Any]]) -> str:
    """A row for each point, a column for each engine."""
    from supple.text import table

    def label(row: dict[str, Any]) -> str:
        return f"{row['engine']} {row['precision']}" + (f" ({row['folder']})" if row["folder"] else "")

    def cell(row: dict[str, Any] | None) -> str:
        return "-" if row is None else f"{row['p50_ms']:.3g} / {row['p95_ms']:.3g}"

    columns = list(dict.fromkeys(map(label, rows)))
    places = dict.fromkeys((row["point"], row["batch"], row["threads"]) for row in rows)
    found = {(row["point"], row["batch"], row["threads"], label(row)): row for row in rows}
    lines = [[*map(str, place), *(cell(found.get((*place, column))) for column in columns)] for place in places]
    return table(["point", "batch", "threads", *columns], lines, left=(0,))
