from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Changes, Device, Json, Points, Run, loss_unit, print_json
from supple.errors import RecipeError

if TYPE_CHECKING:
    from supple.ladder import Ladder

Draws = Annotated[int | None, typer.Option(help="Points sampled from each group, such as random orders; 5.")]
Ensemble = Annotated[list[Path] | None, typer.Option(help="Average the logits with this run's; repeatable.")]


def evaluate(
    run: Run,
    changes: Changes = None,
    point: Points = None,
    draws: Draws = None,
    ensemble: Ensemble = None,
    precision: Annotated[str, typer.Option(help="fp32; or bf16 as well, on processors that support it.")] = "fp32",
    device: Device = None,
    json: Json = False,
) -> None:
    """All points in one pass over the data, which may be changed: data.root=...

    Then every group of points that the model has: mean and deviation over some that are drawn. The figures go into the
    run's ladder.json and report.html, unless they are of other data. With --precision bf16, what PyTorch loses in bf16:
    --engine auto then takes it where it is the fastest and no point clearly loses more than one percentage point.
    """
    from supple import api
    from supple.point import Point
    from supple.tasks import get_metric
    from supple.text import macs, some

    given = {"--point": point, "--draws": draws, "--ensemble": ensemble}
    refused = {"--ensemble": ("--point", "--draws")} if ensemble else {}
    refused |= {"--precision bf16": ("--draws", "--ensemble")} if precision == "bf16" else {}
    for option, other in ((option, other) for option, others in refused.items() for other in others):
        if given[other] is not None:
            raise RecipeError(f"{other} does not go with {option}.", "Leave one of them out.")
    if ensemble:
        _ensemble([run, *ensemble], changes or [], device, json)
        return
    how: dict[str, Any] = {"draws": 5 if draws is None else draws, "precision": precision, "device": device}
    result = api.evaluate(run, None, point or None, changes=changes or (), progress=not json, **how)
    exits = any(Point.parse(row.point).exit is not None for row in result if not row.is_group)
    mean = anytime(result) if precision == "fp32" and exits else None
    if json:
        print_json({**result.to_json(), **({"anytime": mean} if mean else {})})
        return
    row = next(row for row in result if row.score is not None)
    whose = "" if result.data is None else f" of {result.data}; the run keeps its own figures"
    print(f"{result}\n({some(row.n or 0, 'test sample')}{whose})")
    if mean:
        metric = get_metric(row.metric)
        figure = f"{metric.called} {metric.scale * mean['score']:.2f} {metric.unit}".rstrip()
        print(f"stopped at a random exit: {figure} at {macs(mean['macs'])} on average")
    if precision == "bf16":
        print(_lost(result))


def _lost(result: "Ladder") -> str:
    """Which point loses most in bf16, and what follows."""
    from supple.inference.engines import MAX_DROP

    rows = [row for row in result if row.lost is not None]
    most = max(rows, key=lambda row: row.lost or 0.0)
    clear = max((row.lost or 0.0) - (row.lost_error or 0.0) for row in rows)
    figure = f"{100 * (most.lost or 0.0):.1f} ± {100 * (most.lost_error or 0.0):.1f} {loss_unit(most.metric)}"
    verdict = "may take it" if clear <= MAX_DROP else "does not take it"
    return f"\nlargest loss in bf16: {figure} at {most.point}; engine auto {verdict} ({most.machine})"


def _ensemble(runs: list[Path], changes: list[str], device: str | None, json: bool) -> None:
    """Mean logits of several runs; nothing is written."""
    from supple.cli.common import accuracies
    from supple.device import device_here
    from supple.opening import must_be_run, open_source
    from supple.progress import counting
    from supple.surgery.ensemble import score_ensemble
    from supple.surgery.merge import must_see_alike, open_merge_inputs
    from supple.tasks import get_task

    where, opened = device_here(device), open_source(runs[0], changes)
    merge_inputs = open_merge_inputs(map(must_be_run, runs))
    must_see_alike(merge_inputs)
    models = [one.model.to(where) for one in merge_inputs]
    task = get_task(models[0].task)
    if not task.mean_logits:
        raise RecipeError(f"the mean logits of several runs answer nothing for {task.name}.", "Leave --ensemble out.")
    test = opened.splits().test
    with counting(len(test), "evaluating", quiet=json) as on_progress:
        found = score_ensemble(models, test, on_progress=on_progress)
    if json:
        print_json({"runs": [one.name for one in merge_inputs], "points": [each.to_json() for each in found]})
        return
    print(accuracies(found))
    print(f"(ensemble of {len(models)} runs; {len(test)} test images)")


def anytime(ladder: "Ladder") -> dict[str, float]:
    """Table 13 of SL-ViT: the time is up at an exit that chance chooses, all alike; mean accuracy and MACs."""
    rows = [row for row in ladder if row.score is not None and row.macs is not None]
    count = len(rows)
    return {"score": sum(row.score or 0 for row in rows) / count, "macs": sum(row.macs or 0 for row in rows) / count}
