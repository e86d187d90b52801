from pathlib import Path
from typing import Annotated

import typer

from supple.cli.common import Json, print_json
from supple.errors import RecipeError
from supple.text import say


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments of recipes/claims, or files.")] = None,
    claims: Annotated[str | None, typer.Option(help="Only these claims: C16-C21,C26.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All experiments.")] = False,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each a process.", min=1, max=256)] = 1,
    runs: Annotated[Path | None, typer.Option(help="Where runs live; $SUPPLE_RUNS, ~/.cache/supple/runs.")] = None,
    results: Annotated[Path | None, typer.Option(help="Where results live; benchmarks/results.")] = None,
    page: Annotated[Path | None, typer.Option(help="The page to write rows into; docs/claims.md.")] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="Only read the results that are there.")] = False,
    seeds: Annotated[str | None, typer.Option(help="Other seeds than the declared ones, as many: 10,11,12.")] = None,
    one: Annotated[str | None, typer.Option(help="Only this run, in this process: shuffle-0.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Fail if the page differs from the results.")] = False,
    json: Json = False,
) -> None:
    """Runs what is missing, resumably, evaluates it on all test images, and judges: holds, fails, undecided."""
    from supple.experiments import reproduction
    from supple.experiments.declared import parse_seeds

    numbers = None if seeds is None else parse_seeds(seeds)
    if check:
        told = reproduction.check_page(page, results)
        print_json({"page": str(told), "same": True}) if json else say(f"{told} says what the results give.")
        return
    if one is not None:
        if len(names or ()) != 1 or claims or everything:
            raise RecipeError("--one goes with one experiment.", "Give its name: supple reproduce NAME --one ARM-SEED.")
        path = reproduction.run_here((names or [""])[0], one, runs, results, json, numbers)
        print_json({"result": str(path)}) if json else say(str(path))
        return
    found = reproduction.reproduce(
        names or [],
        claims=claims,
        everything=everything,
        jobs=jobs,
        runs=runs,
        results=results,
        page=page,
        run=not no_run,
        progress=not json,
        seeds=numbers,
    )
    if json:
        print_json(found.to_json())
    else:
        print(found)
        if found.page is not None:
            say(f"rows written: {found.page}")
    if found.stopped:
        raise typer.Exit(1)
