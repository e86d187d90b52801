from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supple.cli.common import Changes, Json, Points, Run, must_be_run, points_of, print_json
from supple.errors import RecipeError

if TYPE_CHECKING:
    from supple.ladder import Ladder


Draws = Annotated[int | None, typer.Option(help="Points drawn from each group, such as random orders; 5. 0: none.")]


Ensemble = Annotated[list[Path] | None, typer.Option(help="A further run: mean logits; may be given several times.")]


def evaluate(
    run: Run,
    changes: Changes = None,
    point: Points = None,
    draws: Draws = None,
    ensemble: Ensemble = None,
    json: Json = False,
) -> None:
    """All points in one pass over the data, which may be changed: data.root=...

    Then every group of points that the model has: mean and deviation over some that are drawn. The figures go into the
    run's ladder.json and report.html.
    """
    from supple import checkpoint, cost
    from supple.cli.common import model_of, splits_for
    from supple.evaluate import draw, evaluate_group
    from supple.evaluate import evaluate as score_points
    from supple.ladder import SHARES, Ladder
    from supple.progress import counting
    from supple.report import write_report
    from supple.text import macs, some

    if ensemble:
        for option, value in (("--point", point), ("--draws", draws)):
            if value is not None:
                raise RecipeError(f"{option} does not go with --ensemble.", "Leave one of them out.")
        _ensemble([run, *ensemble], changes, json)
        return
    model = model_of(must_be_run(run), changes)
    points = points_of(model, point)
    test = splits_for(run, model, changes).test
    draws = 5 if draws is None else draws
    if not 0 <= draws <= 1000:
        raise RecipeError(f"--draws is {draws}.", "Give a number from 0 to 1000.")
    groups = [] if point or not draws else list(model.groups.values())
    result = Ladder(cost.profile(model, points))
    with counting(len(test) * (1 + len(groups)), "evaluating", quiet=json) as on_progress:
        scores = score_points(model, test, points, on_progress=on_progress)
        for group in groups:
            scores.append(evaluate_group(model, test, group, draws, on_progress=on_progress))
            result.update(group.name, macs=cost.mean_macs(model, draw(model, group, draws, 0)))
    for score in scores:
        result.update(score.name, **score.facts())
        model.ladder.update(score.name, **score.facts())
    for row in result:
        model.ladder.update(row.point, **row.counts())
    checkpoint.save_ladder(run, model.ladder)
    write_report(run)
    mean = anytime(result) if any(point.exit for point in points) else None
    if json:
        print_json({**result.to_json(), **({"anytime": mean} if mean else {})})
        return
    print(f"{result}\n({some(len(test), f'test {test.preprocess.kind}')})")
    if mean:
        metric = scores[0].metric
        figure = f"{100 * mean['score']:.2f} %" if metric in SHARES else f"{metric} {mean['score']:.2f}"
        print(f"stopped at a random exit: {figure} at {macs(mean['macs'])} in the mean")


def _ensemble(runs: list[Path], changes: list[str] | None, json: bool) -> None:
    """Mean logits of several runs; nothing is written."""
    from supple.cli.common import accuracies, only_data, splits_for
    from supple.ensemble import score_ensemble
    from supple.progress import counting
    from supple.sources import must_see_alike, open_merge_inputs

    only_data(runs[0], changes)
    merge_inputs = open_merge_inputs(map(must_be_run, runs))
    must_see_alike(merge_inputs)
    models = [one.model for one in merge_inputs]
    if models[0].task != "classes":
        raise RecipeError("--ensemble is for classes; these runs tell other things.", "Leave --ensemble out.")
    test = splits_for(runs[0], models[0], changes).test
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
