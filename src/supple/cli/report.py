from supple.cli.common import Json, Run, print_json


def report(run: Run, json: Json = False) -> None:
    """Writes report.html (no network, opens from a file) and curve.png into the run folder."""
    from supple import api

    path = api.report(run)
    if json:
        print_json({"report": str(path)})
    else:
        print(path)
