from supple.cli.common import Changes, Json, Points, Run, must_be_run, points_of, print_json


def evaluate(run: Run, changes: Changes = None, point: Points = None, json: Json = False) -> None:
    """All points in one pass; the figures go into the run's ladder.json. Changes such as data.root=... are taken."""
    from rich.console import Console
    from rich.progress import track

    from supple import checkpoint, cost
    from supple.assemble import load_data
    from supple.cli.common import model_of, recipe_of
    from supple.evaluate import evaluate as score_points

    must_be_run(run)
    model = model_of(run, changes)
    points = points_of(model, point)
    splits = load_data(recipe_of(run, changes))
    if splits.test.classes != model.classes:
        from supple.errors import DataError

        cure = f"The run knows: {', '.join(model.classes[:5])} ... ({len(model.classes)})."
        raise DataError("these data have other classes than the run was trained on.", cure)
    splits.test.preprocess = model.preprocess
    steps = iter(track(range(len(splits.test)), "evaluating", console=Console(stderr=True), disable=json))

    def watch(done: int) -> None:
        for _ in range(done):
            next(steps, None)

    scores = score_points(model, splits.test, points, watch=watch)
    next(steps, None)
    ladder = model.ladder
    for row in cost.profile(model, points):
        ladder.update(row.point, **{k: v for k, v in vars(row).items() if k.endswith(("macs", "params", "through"))})
    for score in scores:
        ladder.update(score.name, **score.facts())
    checkpoint.save_ladder(run, ladder)
    names = {score.name for score in scores}
    rows = [row for row in ladder if row.point in names]
    seen: set[str] = set()
    rows = [row for row in rows if not (row.point in seen or seen.add(row.point))]  # type: ignore[func-returns-value]
    if json:
        print_json({"points": [row.to_json() for row in rows]})
    else:
        print(f"{type(ladder)(rows)}\n({scores[0].n} test images)")
