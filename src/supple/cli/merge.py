from pathlib import Path
from typing import Annotated

import typer

from supple.cli.common import Json, accuracies, print_json
from supple.errors import MergeError


def merge(
    runs: Annotated[list[str], typer.Argument(help="Run folders; also changes such as data.test_limit=500.")],
    out: Annotated[Path | None, typer.Option(help="A new run folder for one merged model.")] = None,
    count: Annotated[
        int | None, typer.Option(help="Instead of --out: average over this many random merges.", min=1, max=100_000)
    ] = None,
    plan: Annotated[str | None, typer.Option(help="For every layer its run, from 1: 3-1-2. Default: random.")] = None,
    ends: Annotated[str, typer.Option(help="Which run's stem, norm and head to use: its number, or mean.")] = "1",
    seed: Annotated[int, typer.Option(help="Of random plans and orders.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Layer i comes from another run than layer j, or as the plan says (LayerShuffle, section 4.4).

    Random merges take no run twice; runs of method shuffle are also scored with layers in arbitrary order.
    """
    from supple.checkpoint import check_out, read_manifest
    from supple.opening import must_be_run, open_source
    from supple.progress import counting
    from supple.surgery.merge import doubt, merge_to, plan_merge, score_merges
    from supple.text import say

    if (out is None) == (count is None):
        given = "neither" if out is None else "both"
        raise MergeError(f"{given} of --out and --count given.", "Give --out RUN to write a merge, or --count 100.")
    if count is not None and plan is not None:
        raise MergeError("--plan does not go with --count, whose plans are random.", "Leave one of them out.")
    if out is not None:
        check_out(out)
    changes = [word for word in runs if "=" in word and not Path(word).exists()]
    folders = [must_be_run(word) for word in runs if word not in changes]
    if not folders:
        raise MergeError("no run is given.", "Give run folders: supple merge runs/a runs/b --out runs/merged.")
    opened = open_source(folders[0], changes)
    planned = plan_merge(folders, plan, ends, seed)
    test = opened.splits().test
    if warning := doubt(planned.inputs):
        say(warning)
    names = [one.name for one in planned.inputs]
    if out is not None:
        with counting(len(test), "scoring", quiet=json) as on_progress:
            ladder = merge_to(out, planned, test, on_progress).ladder
        if json:
            print_json({"run": str(out), "merged": read_manifest(out)["merged"], **ladder.to_json()})
            return
        for layer, run in enumerate(planned.plan, 1):
            print(f"layer {layer:<3}from {names[run - 1]}")
        print(f"the rest from {'the mean of all' if planned.owner is None else names[planned.owner - 1]}")
        print(f"\n{ladder}\n\n{out / 'report.html'}")
        return
    assert count is not None
    with counting(count * len(test), "merging", quiet=json) as on_progress:
        found = score_merges(planned.models, test, count, owner=planned.owner, seed=seed, on_progress=on_progress)
    if json:
        facts = {"merges": count, "seed": seed, "ends": ends, "runs": names}
        print_json({**facts, "points": [accuracy.to_json() for accuracy in found]})
        return
    print(accuracies(found))
    print(f"({count} merges of {len(names)} runs; {len(test)} test images)")
