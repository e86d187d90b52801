from supple.cli.common import Changes, Json, Points, Target, model_of, points_of, print_json


def profile(target: Target, changes: Changes = None, point: Points = None, json: Json = False) -> None:
    """Counted from what a run executes, without weights or data: any network in seconds.

    macs: one run of that point alone. macs_through: what a policy pays that looked at every point on the way. params:
    what that run uses.
    """
    from supple import cost
    from supple.text import millions, quantity, table

    model = model_of(target, changes)
    rows = cost.profile(model, points_of(model, point))
    if json:
        print_json({"points": [row.to_json() for row in rows]})
        return
    header = ("point", "MMACs", "MMACs through", "params", "own branch")
    lines = [
        (r.point, millions(r.macs), millions(r.macs_through), quantity(r.params), quantity(r.branch_params))
        for r in rows
    ]
    print(table(header, lines))
