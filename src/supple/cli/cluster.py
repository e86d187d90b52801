from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supple.cli.common import Json, Run, print_json
from supple.errors import RecipeError

if TYPE_CHECKING:
    from supple.cluster.members import Facts

cluster = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)
Timeout = Annotated[float, typer.Option(help="For nodes to start.", min=1, max=3600)]


@cluster.command()
def start(
    run: Run,
    nodes: Annotated[int, typer.Option(help="Processes that hold layers.", min=1)] = 4,
    replicas: Annotated[int, typer.Option(help="Copies of every layer.", min=1)] = 1,
    sibling: Annotated[list[Path] | None, typer.Option(help="A run whose layers may stand in.")] = None,
    address: Annotated[str | None, typer.Option(help="HOST:PORT of a Ray that is there; default: a new one.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="With --address: the file with its token.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also a run not trained for it.")] = False,
    timeout_s: Timeout = 120,
    json: Json = False,
) -> None:
    """Starts nodes, and Ray for them on loopback, with a token of its own."""
    from supple.cluster import manage
    from supple.text import say

    if token_file is not None and address is None:
        raise RecipeError(
            "--token-file is given without --address.", "A new Ray gets a token of its own: leave it out."
        )
    how: dict[str, Any] = {"address": address, "token": token_file, "force": force, "timeout_s": timeout_s}
    started = manage.start(run, nodes, replicas, sibling or (), **how)
    if started.warning is not None:
        say(started.warning)
    if json:
        print_json({"address": started.address, "nodes": [_row(one.name, one) for one in started.nodes]})
    else:
        print(_table({one.name: one for one in started.nodes}))
        print(f"\nRay is at {started.address}. Next: supple cluster run {run} FILE; at the end: supple cluster stop")


@cluster.command()
def add(
    layers: Annotated[str | None, typer.Option(help="Such as 1-3,7; default: those with the fewest copies.")] = None,
    fault: Annotated[str | None, typer.Option(help="For experiments: delay_ms=200,loss=0.05", hidden=True)] = None,
    timeout_s: Timeout = 120,
    json: Json = False,
) -> None:
    """Starts one more node."""
    from supple.cluster import manage
    from supple.cluster.node import Fault

    facts = manage.add(layers, None if fault is None else Fault.parse(fault), timeout_s)
    if json:
        print_json({"node": _row(facts.name, facts)})
    else:
        print(_table({facts.name: facts}))


@cluster.command("run")
def run_(
    run: Run,
    files: Annotated[list[str], typer.Argument(help="Files, folders, patterns; - is stdin.")],
    deadline_ms: Annotated[
        float | None, typer.Option(help="Layers that would take longer are dropped.", min=0.1)
    ] = None,
    hop_ms: Annotated[float, typer.Option(help="A node that takes longer (and 3x as expected) is left.", min=1)] = 200,
    batch: Annotated[int, typer.Option(help="Files that go together.", min=1, max=4096)] = 1,
    in_flight: Annotated[int, typer.Option(help="Batches on their way at once.", min=1, max=64)] = 4,
    json: Json = False,
) -> None:
    """Answers for files; each says which layers ran, where, and why not others."""
    from supple.cluster.session import session as opened
    from supple.inference.inputs import must_read_files
    from supple.inference.request import Refusal, gather
    from supple.text import say, table

    answers, failures = [], []
    with opened(run, hop_deadline_ms=hop_ms) as session:
        must_read_files(session.model.preprocess)
        _warn_unheld(session)
        preprocess = session.model.preprocess
        for found in session.predict(gather(files, preprocess.endings, preprocess.kind), deadline_ms, batch, in_flight):
            if isinstance(found, Refusal):
                failures.append(found)
                say(f"error: {found.cause}\n{found.cure}")
            else:
                answers.append(found)
    if json:
        print_json({"predictions": answers, "errors": [vars(failure) for failure in failures]})
    elif answers:
        rows = [
            (
                a["file"],
                a["label"],
                _list(a["layers"]),
                " ".join(_visited(a["nodes"])),
                a["reason"],
                f"{a['elapsed_ms']:.1f}",
            )
            for a in answers
        ]
        print(table(("file", "label", "layers", "nodes", "reason", "ms"), rows, left=(0, 1, 2, 3, 4)))
    if failures:
        raise typer.Exit(2)


@cluster.command()
def status(json: Json = False) -> None:
    """The nodes, the layers that they hold, and how busy they are."""
    from supple.cluster import remote

    state, found = remote.status()
    if json:
        rows = [_row(name, one) for name, one in found.items()]
        print_json({"address": state.address, "runs": state.runs, "nodes": rows})
    else:
        print(f"{', '.join(state.runs)} at {state.address}\n\n{_table(found)}")


@cluster.command()
def chaos(
    run: Annotated[Path | None, typer.Argument(help="A run folder; default: that of the cluster.")] = None,
    kill_every: Annotated[str, typer.Option(help="Time between kills: 10s.")] = "10s",
    last: Annotated[str, typer.Option("--for", help="How long: 60s.")] = "60s",
    rate: Annotated[float, typer.Option(help="Requests per second.", min=0.1, max=1000)] = 4,
    deadline_ms: Annotated[float | None, typer.Option(min=0.1)] = None,
    seed: Annotated[int, typer.Option(help="Of pictures and victims.")] = 0,
    json: Json = False,
) -> None:
    """Kills random nodes while test pictures are answered; They are started again. A line for every five seconds."""
    from supple.cluster.chaos import Tally, lines
    from supple.cluster.session import session as opened
    from supple.text import say

    every_s, for_s = _seconds(kill_every, "--kill-every"), _seconds(last, "--for")
    with opened(run) as session:
        _warn_unheld(session)
        tally = Tally()
        how: dict[str, Any] = {"rate": rate, "kill_every_s": every_s, "deadline_ms": deadline_ms, "seed": seed}
        for line in lines(session, tally, for_s, **how):
            if not json:
                print(line, flush=True)
    if json:
        print_json(tally.to_json())
    elif tally.failed:
        say(f"the last error: {tally.problem}")


@cluster.command()
def stop(json: Json = False) -> None:
    """Ends what start started: all of its processes, and no others."""
    from supple.cluster import remote

    ended = remote.stop()
    if json:
        print_json({"processes": ended})
    else:
        print("the nodes are ended." if ended is None else f"{ended} process{'es are' if ended != 1 else ' is'} ended.")


@cluster.command()
def simulate(
    run: Annotated[Path | None, typer.Argument(help="A run: its layers, and its scores by number of layers.")] = None,
    nodes: Annotated[str, typer.Option(help="One or more: 4,16,64.")] = "4",
    replicas: Annotated[int, typer.Option(min=1)] = 1,
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 50,
    requests: Annotated[int, typer.Option(min=1, max=1_000_000)] = 2000,
    block_ms: Annotated[float | None, typer.Option(help="Of one layer; default: asked of the cluster.")] = None,
    hop_ms: Annotated[float, typer.Option(help="Of a hop, beside its layers.")] = 2,
    ends_ms: Annotated[float, typer.Option(help="Of stem and head.")] = 2,
    link_ms: Annotated[float, typer.Option(help="Of a link, one way.")] = 0,
    fails_every: Annotated[str, typer.Option(help="Mean time between failures of a node; 0s: none.")] = "0s",
    repair: Annotated[str, typer.Option(help="Until a node is back.")] = "5s",
    deadline_ms: Annotated[float | None, typer.Option(min=0.1)] = None,
    layers: Annotated[int, typer.Option(help="Without a run.", min=1)] = 12,
    cores: Annotated[int | None, typer.Option(help="That all share; default: each has its own.", min=1)] = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Simulates a cluster with measured times: throughput, latency, layers, accuracy. Nothing is started."""
    from dataclasses import asdict

    from supple.cli.common import numbers
    from supple.cluster.simulate import Setting, accuracy_table
    from supple.cluster.simulate import simulate as simulated
    from supple.text import table

    table_of_scores: dict[int, float] = {}
    if run is not None:
        from supple import checkpoint
        from supple.cluster.parts import as_layered
        from supple.opening import must_be_run

        model = checkpoint.load(must_be_run(run))
        layers = as_layered(model, str(run)).count
        scores = {row.point: row.score for row in model.ladder if row.score is not None}
        table_of_scores = accuracy_table(scores, layers)
    base: dict[str, Any] = {"replicas": replicas, "rate": rate, "requests": requests, "layers": layers, "cores": cores}
    base |= {"hop_ms": hop_ms, "ends_ms": ends_ms, "link_ms": link_ms, "deadline_ms": deadline_ms, "seed": seed}
    base |= {"fails_every_s": _seconds(fails_every, "--fails-every"), "repair_s": _seconds(repair, "--repair")}
    base["block_ms"] = _measured_ms() if block_ms is None else block_ms
    found = []
    for count in numbers(nodes, "--nodes"):
        setting = Setting(nodes=count, **base)
        found.append({"setting": asdict(setting), **asdict(simulated(setting, table_of_scores))})
    if json:
        print_json({"simulated": found})
        return
    header = ("nodes", "per s", "ms p50", "p95", "p99", "layers", "all layers %", "replays", "busy %", "score")
    rows = [
        (
            *(str(one["setting"]["nodes"]), f"{one['per_s']:.1f}"),
            *(f"{one[name]:.1f}" for name in ("p50_ms", "p95_ms", "p99_ms")),
            *(
                f"{one['mean_layers']:.2f}",
                f"{100 * one['whole']:.1f}",
                str(one["replays"]),
                f"{100 * one['busy']:.1f}",
            ),
            "-" if one["accuracy"] is None else f"{one['accuracy']:.3f}",
        )
        for one in found
    ]
    print(table(header, rows))


def _measured_ms() -> float:
    """The time of a block, as the nodes that there are measured it."""
    from statistics import fmean

    from supple.cluster import local, remote

    times = [] if local.known() is None else [one.block_ms for one in remote.status()[1].values() if one is not None]
    if not times:
        raise RecipeError(
            "--block-ms is missing, and there is no cluster that has measured it.", "Give it: --block-ms 2."
        )
    return fmean(times)


def _seconds(text: str, option: str) -> float:
    """`10s`, `500ms`, `2min` or `10`."""
    units = {"ms": 0.001, "min": 60.0, "h": 3600.0, "s": 1.0}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    try:
        found = float(text.removesuffix(unit)) * units.get(unit, 1.0)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e6:
        raise RecipeError(f'{option} is "{text}".', "Give a time such as 10s, 500ms or 2min.")
    return found


def _warn_unheld(session: Any) -> None:
    from supple.cluster.session import unheld
    from supple.text import say

    everybody = session.members.everybody().values()
    missing = unheld(session.walker.ends.layers, [member.facts for member in everybody])
    if missing and everybody:
        say(f"layers {_list(missing)} are held by no node now: answers leave them out (supple cluster add)")


def _row(name: str, facts: "Facts | None") -> dict[str, Any]:
    if facts is None:
        return {"name": name, "answers": False}
    own = sorted(block.layer for block in facts.holds if not block.model)
    others = sorted((block.model, block.layer) for block in facts.holds if block.model)
    about = {"pid": facts.pid, "host": facts.host, "layers": own, "siblings": others, "block_ms": facts.block_ms}
    return {"name": name, "answers": True, **about, "hops": facts.hops, "blocks": facts.blocks, "load": facts.busy}


def _table(found: "dict[str, Facts | None]") -> str:
    from supple.text import table

    rows = []
    for name, facts in found.items():
        row = _row(name, facts)
        if not row["answers"]:
            rows.append((name, "does not answer", "-", "-", "-", "-", "-"))
            continue
        others = sorted({layer for _, layer in row["siblings"]})
        layers = _list(row["layers"]) + (f" (siblings {_list(others)})" if others else "")
        numbers = (str(row["hops"]), str(row["blocks"]), f"{100 * row['load']:.0f}", f"{row['block_ms']:.2f}")
        rows.append((name, layers, str(row["pid"]), *numbers))
    header = ("node", "layers", "pid", "hops", "layers run", "load %", "ms per layer")
    return table(header, rows, left=(0, 1))


def _list(layers: Any) -> str:
    """1, 2, 3, 7 as `1-3,7`, in their order."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts) or "-"


def _visited(nodes: Any) -> list[str]:
    return [str(name).removeprefix("node-") for name in nodes]
