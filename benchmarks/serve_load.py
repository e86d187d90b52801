"""Load and faults for `supple serve`, on one machine: the server on one core, the load on another.

    python benchmarks/serve_model.py --weights deit_tiny_patch16_224.safetensors     # the model and its pictures
    python benchmarks/serve_load.py overload --against fastapi,litserve,ray
    python benchmarks/serve_load.py pinned | mixed | contended | overhead | faults | soak [--minutes 30]
    python benchmarks/serve_load.py overload --scale 0.01 --cores none               # a small one, to see it work
    python benchmarks/serve_load.py send --port 8000 --model NAME --rate 50 --count 500 --deadline-ms 300

Capacity is the measured closed-loop throughput of the full point, batching included; load is a multiple of it. Arrivals
are a Poisson process from a seed; a run counts only if sends are late by less than 5 ms at the 99th percentile. Answers
are in time if they were complete within the deadline after the request was due, by the client's clock. The last form
sends to a server that stands already. Prints Markdown, and writes benchmarks/results/serve/SCENARIO.json.
"""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from serve_baselines import SERVERS
from serve_client import Pool, must_be_bounded, open_loop
from serve_count import Row, about, arrivals, figures, table
from serve_faults import FAULTS, faults
from serve_overhead import overhead
from serve_process import pin_self
from serve_scenarios import Result, contended, mixed_deadlines, overload, pinned
from serve_soak import soak
from serve_target import Settings, Target, pictures_in
from supple.machine import machine, versions

RESULTS = Path(__file__).parent / "results" / "serve"
RUN = Path("runs/serve")
SCENARIOS: dict[str, Callable[[Settings], Awaitable[Result]]] = {
    "overload": overload,
    "pinned": pinned,
    "mixed": mixed_deadlines,
    "contended": contended,
    "overhead": overhead,
    "faults": faults,
    "soak": soak,
}


async def send(given: argparse.Namespace) -> Result:
    """A run against a server that stands already."""
    must_be_bounded(given.count, given.count / given.rate)
    target = Target(given.model, given.port, f"/v1/models/{given.model}/predict", takes_options=True)
    requests = target.requests(pictures_in(given.pictures), [given.deadline_ms] * given.count)
    pool = Pool(given.port)
    await pool.prepare(16)
    found = figures(await open_loop(pool, requests, arrivals(given.rate, given.count, math.inf, given.seed)))
    await pool.close()
    return about(found), {"send": found.to_json()}


def cores(text: str) -> tuple[int | None, int | None]:
    """`0,1`: of the server and of the load; `none`: wherever there is room."""
    if text == "none":
        return None, None
    server, _, load = text.partition(",")
    if not (server.isdecimal() and load.isdecimal()):
        raise SystemExit(f'--cores is "{text}". Give two numbers, such as 0,1, or none.')
    return int(server), int(load)


def names(text: str, known: object, what: str) -> tuple[str, ...]:
    found = tuple(filter(None, text.split(",")))
    allowed = tuple(known)  # type: ignore[call-overload]
    if wrong := [name for name in found if name not in allowed]:
        raise SystemExit(f"{what} has no {wrong[0]}: there are {', '.join(allowed)}.")
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=[*SCENARIOS, "send"])
    parser.add_argument("--export", type=Path, default=RUN / "export" / "onnx-fp32")
    parser.add_argument("--pictures", type=Path, default=RUN / "pictures", help="a folder for each class")
    parser.add_argument("--cores", default="0,1", help="of the server and of the load, or none")
    parser.add_argument("--scale", type=float, default=1.0, help="of counts and times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0, help="of the soak")
    parser.add_argument("--against", default="", help=f"overload: {','.join(SERVERS)}")
    parser.add_argument("--only", default="", help=f"faults: {','.join(FAULTS)}")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--port", type=int, default=8000, help="send: of a server that stands")
    parser.add_argument("--model", default="model", help="send: the name that it is served under")
    parser.add_argument("--rate", type=float, default=10.0, help="send: requests per second")
    parser.add_argument("--count", type=int, default=100, help="send: requests")
    parser.add_argument("--deadline-ms", type=float, default=None, help="send")
    return parser.parse_args()


def main() -> None:
    given = parsed()
    server_core, load_core = cores(given.cores)
    pin_self(load_core)
    settings = Settings(
        given.export,
        given.pictures,
        server_core,
        load_core,
        given.scale,
        given.seed,
        given.minutes,
        names(given.against, SERVERS, "--against"),
        names(given.only, FAULTS, "--only"),
    )
    if given.scenario == "send":
        rows, facts = asyncio.run(send(given))
    else:
        rows, facts = asyncio.run(SCENARIOS[given.scenario](settings))
    print(f"{machine()}, server on core {server_core}, load on core {load_core}, scale {given.scale:g}\n")
    print(table(rows, given.scenario))
    keep(given.out / f"{given.scenario}.json", given, rows, facts)


def keep(path: Path, given: argparse.Namespace, rows: list[Row], facts: dict[str, object]) -> None:
    """With what is needed to judge it later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about_run = {
        "machine": machine(),
        "versions": versions(),
        "scale": given.scale,
        "seed": given.seed,
        "cores": given.cores,
    }
    document = {**about_run, "command": " ".join(sys.argv[1:]), "rows": [vars(row) for row in rows], "facts": facts}
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{path}", file=sys.stderr)


if __name__ == "__main__":
    main()
