from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supple.cli.common import Changes, Json, Points, Run, must_be_run, points_of, print_json
from supple.errors import RecipeError

if TYPE_CHECKING:
    from supple.data.parts import Dataset
    from supple.ladder import Ladder
    from supple.model import FlexibleModel
    from supple.point import Point


Draws = Annotated[int | None, typer.Option(help="Points drawn from each group, such as random orders; 5. 0: none.")]


Ensemble = Annotated[list[Path] | None, typer.Option(help="A further run: mean logits; may be given several times.")]


def evaluate(
    run: Run,
    changes: Changes = None,
    point: Points = None,
    draws: Draws = None,
    ensemble: Ensemble = None,
    precision: Annotated[str, typer.Option(help="fp32; or bf16, where the processor has it, beside fp32.")] = "fp32",
    json: Json = False,
) -> None:
    """All points in one pass over the data, which may be changed: data.root=...

    Then every group of points that the model has: mean and deviation over some that are drawn. The figures go into the
    run's ladder.json and report.html. With --precision bf16, what PyTorch loses in bf16: --engine auto then takes it
    where it is the fastest and no point loses more than one percentage point.
    """
    from supple import checkpoint, cost
    from supple.cli.common import model_of, splits_for
    from supple.ladder import Ladder
    from supple.progress import counting
    from supple.reporting import write_report
    from supple.scoring import draw, evaluate_group
    from supple.scoring import evaluate as score_points
    from supple.tasks import get_metric
    from supple.text import macs, some

    _check_options(point, draws, ensemble, precision)
    if ensemble:
        _ensemble([run, *ensemble], changes, json)
        return
    model = model_of(must_be_run(run), changes)
    points = points_of(model, point)
    test = splits_for(run, model, changes).test
    if precision == "bf16":
        _in_bf16(run, model, test, points, json)
        return
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
        metric = get_metric(scores[0].metric)
        figure = f"{metric.called} {metric.scale * mean['score']:.2f} {metric.unit}".rstrip()
        print(f"stopped at a random exit: {figure} at {macs(mean['macs'])} in the mean")


def _check_options(point: list[str] | None, draws: int | None, ensemble: list[Path] | None, precision: str) -> None:
    from supple.inference.engines import must_have_bf16

    if precision not in ("fp32", "bf16"):
        raise RecipeError(
            f'--precision is "{precision}".', "Possible: fp32, bf16. int8 is exported: supple export --int8."
        )
    if precision == "bf16":
        must_have_bf16("--precision bf16")
    given = {"--point": point, "--draws": draws, "--ensemble": ensemble}
    refused = {"--ensemble": ("--point", "--draws")} if ensemble else {}
    refused |= {"--precision bf16": ("--draws", "--ensemble")} if precision == "bf16" else {}
    for option, others in refused.items():
        for other in others:
            if given[other] is not None:
                raise RecipeError(f"{other} does not go with {option}.", "Leave one of them out.")


def _in_bf16(run: Path, model: "FlexibleModel", test: "Dataset", points: "list[Point]", json: bool) -> None:
    """Scores in fp32 and bf16 on the same samples, into the run's ladder."""
    from supple import checkpoint, cost
    from supple.exporting.check import scores_in_bf16
    from supple.inference.engines import MAX_DROP
    from supple.ladder import Ladder
    from supple.machine import machine
    from supple.progress import counting
    from supple.reporting import write_report
    from supple.tasks import get_metric, get_task

    if not get_task(model.task).exportable:
        raise RecipeError(f"no engine runs the task {model.task} in bf16.", "Leave --precision out.")
    result = Ladder(cost.profile(model, points))
    counts = {row.point: row.counts() for row in result}
    with counting(1, "evaluating in fp32 and bf16", quiet=json) as watch:
        found = scores_in_bf16(model, test, points)
        watch(1)
    for score, in_bf16, lost in found:
        facts = counts[score.name] | score.facts() | {"extra_metrics": None, "score": in_bf16, "lost": lost}
        for ladder in (result, model.ladder):
            ladder.update(score.name, **counts[score.name] | score.facts())
            ladder.update(score.name, "torch", "bf16", machine(), **facts)
    checkpoint.save_ladder(run, model.ladder)
    write_report(run)
    if json:
        print_json(result.to_json())
        return
    score, _, lost = max(found, key=lambda one: one[2])
    most = f"{100 * lost:.1f} points" if get_metric(score.metric).unit == "%" else f"{lost:.3g}"
    verdict = "may take it" if lost <= MAX_DROP else "does not take it"
    print(f"{result}\n\nin bf16 {score.name} loses most, {most}: engine auto {verdict} ({machine()})")


def _ensemble(runs: list[Path], changes: list[str] | None, json: bool) -> None:
    """Mean logits of several runs; nothing is written."""
    from supple.cli.common import accuracies, only_data, splits_for
    from supple.progress import counting
    from supple.surgery.ensemble import score_ensemble
    from supple.surgery.merge import must_see_alike, open_merge_inputs
    from supple.tasks import get_task

    only_data(runs[0], changes)
    merge_inputs = open_merge_inputs(map(must_be_run, runs))
    must_see_alike(merge_inputs)
    models = [one.model for one in merge_inputs]
    task = get_task(models[0].task)
    if not task.mean_logits:
        raise RecipeError(f"the mean logits of several runs answer nothing for {task.name}.", "Leave --ensemble out.")
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
