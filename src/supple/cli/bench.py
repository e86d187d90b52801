from pathlib import Path
from typing import Annotated

import typer

from supple.cli.common import Changes, Json, Points, Target, is_run, numbers, points_of, print_json


def bench(
    target: Target,
    changes: Changes = None,
    point: Points = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, such as 1,16.")] = "1",
    threads: Annotated[str | None, typer.Option(help="Numbers of threads, such as 1,2; default: torch's.")] = None,
    rounds: Annotated[int, typer.Option(help="Measured calls of each point, in turn.", min=5, max=10_000)] = 50,
    json: Json = False,
) -> None:
    """The points run in turn, round by round, so that their ratios hold on a noisy machine. ms are per batch.

    The figures of a run go into its ladder.json and report.html. A recipe is timed untrained.
    """
    import torch

    from supple import checkpoint, cost
    from supple.assemble import skeleton
    from supple.cli.common import model_of, recipe_of
    from supple.ladder import Ladder
    from supple.machine import machine
    from supple.report import write_report
    from supple.runtime.measure import time_into

    if is_run(target):
        model = model_of(target, changes)
    else:
        model = skeleton(recipe_of(target, changes), device="cpu").eval()
        model.ladder = Ladder()
    points = points_of(model, point)
    known = {row.point for row in model.ladder}
    for row in cost.profile(model, points):
        if row.point not in known:
            model.ladder.put(row)
    rows = []
    for count in numbers(threads, "--threads") if threads else [torch.get_num_threads()]:
        for size in numbers(batch, "--batch"):
            time_into(model.ladder, model, points, batch=size, threads=count, rounds=rounds)
            here = model.ladder.where(batch=size, threads=count, machine=machine())
            rows += [row for row in here if row.point in {str(p) for p in points}]
    if is_run(target):
        checkpoint.save_ladder(Path(target), model.ladder)
        write_report(Path(target))
    if json:
        print_json({"points": [row.to_json() for row in rows]})
    else:
        print(f"{Ladder(rows)}\n({machine()}; torch, fp32)")
