from typing import TYPE_CHECKING, Annotated

import typer

from supple.cli.common import Changes, Json, Points, Run, must_be_run, points_of, print_json
from supple.errors import DataError, RecipeError

if TYPE_CHECKING:
    from supple.ladder import Ladder


Draws = Annotated[int, typer.Option(help="Points drawn from each group, such as random orders of layers; 0: none.")]


def evaluate(run: Run, changes: Changes = None, point: Points = None, draws: Draws = 5, json: Json = False) -> None:
    """All points in one pass over the data, which may be changed: data.root=...

    Then every group of points that the model has: mean and deviation over some that are drawn. The figures go into the
    run's ladder.json and report.html.
    """
    from supple import checkpoint, cost
    from supple.assemble import load_data
    from supple.cli.common import model_of, recipe_of
    from supple.evaluate import draw, evaluate_group
    from supple.evaluate import evaluate as score_points
    from supple.ladder import Ladder
    from supple.progress import counting
    from supple.report import write_report
    from supple.text import macs

    model = model_of(must_be_run(run), changes)
    points = points_of(model, point)
    test = load_data(recipe_of(run, changes)).test
    if test.classes != model.classes:
        cure = f"The run knows {len(model.classes)}: {', '.join(model.classes[:5])}, ..."
        raise DataError(f"these data have other classes than the run: {', '.join(test.classes[:5])}, ...", cure)
    if not 0 <= draws <= 1000:
        raise RecipeError(f"--draws is {draws}.", "Give a number from 0 to 1000.")
    groups = [] if point or not draws else list(model.groups.values())
    result = Ladder(cost.profile(model, points))
    with counting(len(test) * (1 + len(groups)), "evaluating", quiet=json) as watch:
        scores = score_points(model, test, points, watch=watch)
        for group in groups:
            scores.append(evaluate_group(model, test, group, draws, watch=watch))
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
    print(f"{result}\n({len(test)} test images)")
    if mean:
        print(f"stopped at a random exit: {100 * mean['score']:.2f} % at {macs(mean['macs'])} in the mean")


def anytime(ladder: "Ladder") -> dict[str, float]:
    """Table 13 of SL-ViT: the time is up at an exit that chance chooses, all alike; mean accuracy and MACs."""
    rows = [row for row in ladder if row.score is not None and row.macs is not None]
    count = len(rows)
    return {"score": sum(row.score or 0 for row in rows) / count, "macs": sum(row.macs or 0 for row in rows) / count}
