from supple.cli.common import Json, Run, must_be_run, print_json


def report(run: Run, json: Json = False) -> None:
    """Writes report.html (no network, opens from a file) and curve.png into the run folder."""
    from supple.reporting import write_report

    path = write_report(must_be_run(run))
    if json:
        print_json({"report": str(path)})
    else:
        print(path)
