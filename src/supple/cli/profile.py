from enum import StrEnum
from typing import Annotated

import typer

from supple.cli.common import Changes, Json, Points, Target, print_json


class Count(StrEnum):
    plain = "plain"
    paper = "paper"


def profile(
    target: Target,
    changes: Changes = None,
    point: Points = None,
    count: Annotated[
        Count, typer.Option(help="paper: also as SL-ViT and SiDT count, to compare with their tables.")
    ] = Count.plain,
    json: Json = False,
) -> None:
    """Counted from what a run executes, without weights or data: any network in seconds.

    macs: one run of that point alone. macs_through: what a policy pays that looked at every point on the way. params:
    what that run uses.
    """
    from supple import cost
    from supple.opening import open_any
    from supple.text import millions, quantity, say, table

    opened = open_any(target, changes or ())
    points = opened.points(point or None)
    rows = cost.profile(opened.model, points)
    published = []
    if count is Count.paper:
        from supple.paper_count import published_costs

        published = published_costs(opened.model, points, opened.recipe)
    if json:
        extra = [{"paper_flops": p.flops, "acceleration": p.acceleration} for p in published] or [{} for _ in rows]
        print_json({"points": [{**row.to_json(), **more} for row, more in zip(rows, extra)]})
        return
    header = ["point", "MMACs", "params"]
    lines = [[row.point, millions(row.macs), quantity(row.params)] for row in rows]
    if any(row.branch_params for row in rows):
        header += ["own branch", "MMACs incl. earlier exits"]
        lines = [[*ln, quantity(r.branch_params), millions(r.macs_through)] for ln, r in zip(lines, rows)]
    if published:
        header += ["paper FLOPs (B)"]
        lines = [[*line, f"{p.flops / 1e9:.4f}"] for line, p in zip(lines, published)]
        if all(p.acceleration is not None for p in published):
            header += ["acceleration"]
            lines = [[*line, f"{p.acceleration:.3f}"] for line, p in zip(lines, published)]
    print(table(header, lines))
    for warning in cost.costly_points(rows):
        say(warning)
