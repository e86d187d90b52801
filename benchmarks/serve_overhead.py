"""What the server costs: a request against the bare predictor, and the cheapest point against a plain endpoint."""

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from serve_baselines import start
from serve_client import Pool
from serve_count import Row, quantiles
from serve_process import pinned
from serve_scenarios import Result
from serve_target import Picture, Settings, Target, pictures_in, points_of, started_supple, throughput

MOST_MS, LEAST_SHARE = 1.5, 0.9
WIDTH, ROUNDS = 16, 4  # clients; measurements of each server
Rounds = dict[str, list[float]]  # by server
BARE = """
import sys, time
import supple
one = supple.predictor(sys.argv[1], "onnxruntime", threads=1, precision="fp32")
print("ready", flush=True)
for line in sys.stdin:
    point, file = line.rstrip("\\n").split(" ", 1)
    data = open(file, "rb").read()
    start = time.perf_counter()
    one.predict(data, point=point)
    print(1000 * (time.perf_counter() - start), flush=True)
"""


class Bare:
    """The predictor alone, in a process on the server's core: from the bytes of a file to its answer."""

    def __init__(self, export: Path, core: int | None) -> None:
        command = pinned([sys.executable, "-c", BARE, str(export)], core)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        assert self._out.readline() == "ready\n"

    def took_ms(self, point: str, file: Path) -> float:
        self._in.write(f"{point} {file}\n")
        self._in.flush()
        return float(self._out.readline())

    def close(self) -> None:
        self._in.close()
        self._process.wait(30)


async def overhead(s: Settings) -> Result:
    """Figure 4: both parts, in turn."""
    server, target = await started_supple(s)
    pictures = pictures_in(s.pictures)
    try:
        points = await points_of(target)
        singly = {point: await one_by_one(s, target, pictures, point) for point in (points[0], points[-1])}
    finally:
        server.stop()
    rates, spent = await in_turn(s, pictures, points[0])
    rows = []
    for point, (bare, served) in singly.items():
        extra = statistics.median(served) - statistics.median(bare)
        both = f"{statistics.median(bare):.2f} and {statistics.median(served):.2f} ms"
        rows.append(Row(f"{point}, p50 of the bare predictor and of the server", both))
        rows.append(
            Row(f"{point}, overhead at batch 1", f"{extra:.2f} ms", f"at most {MOST_MS:g} ms", extra <= MOST_MS)
        )
    own, plain = (statistics.median(rates[name]) for name in ("supple", "fastapi"))
    share = own / plain
    rows.append(Row(f"{points[0]}, requests/s of {WIDTH} clients: supple, plain FastAPI", f"{own:.1f}, {plain:.1f}"))
    goal = f"at least {100 * LEAST_SHARE:g} %"
    rows.append(Row("throughput over that of plain FastAPI", f"{100 * share:.1f} %", goal, share >= LEAST_SHARE))
    cpu = ", ".join(f"{statistics.median(spent[name]):.2f}" for name in ("supple", "fastapi"))
    rows.append(Row("ms of the processor for each of these: supple, plain FastAPI", cpu))
    times = {point: {"bare": quantiles(b, 50, 99), "served": quantiles(v, 50, 99)} for point, (b, v) in singly.items()}
    return rows, {"singly": times, "rates": rates, "cpu_ms": spent}


async def one_by_one(
    s: Settings, target: Target, pictures: Sequence[Picture], point: str
) -> tuple[list[float], list[float]]:
    """ms of the bare predictor and of the server, a call of each in turn, for the same picture."""
    import tempfile

    bare_ms, served_ms = [], []
    pool, bare = Pool(target.port), Bare(s.export, s.server_core)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(s.count(400)):
                picture = pictures[turn % len(pictures)]
                file = Path(folder) / "picture"
                file.write_bytes(picture.file)
                bare_ms.append(await asyncio.to_thread(bare.took_ms, point, file))
                outcome = await pool.ask(target.request(picture, point=point))
                if outcome.status != 200:
                    raise SystemExit(f"The server answered {outcome.status}: {outcome.body[:200]!r}")
                served_ms.append(1000 * (outcome.ended - outcome.sent))
    finally:
        bare.close()
        await pool.close()
    warm = len(bare_ms) // 10
    return bare_ms[warm:], served_ms[warm:]


async def in_turn(s: Settings, pictures: Sequence[Picture], point: str) -> tuple[Rounds, Rounds]:
    """Answers per second, and ms of the processor per answer. Both servers stand, and are asked in turn."""
    own, own_target = await started_supple(s)
    plain, plain_target = start("fastapi", s.export, s.server_core, point=point)
    rates: Rounds = {"supple": [], "fastapi": []}
    spent: Rounds = {"supple": [], "fastapi": []}
    try:
        await plain.ready()
        for target in (own_target, plain_target):
            await throughput(target, pictures, WIDTH, s.seconds(2), point=point)
        for _ in range(ROUNDS):
            for server, target in ((own, own_target), (plain, plain_target)):
                before = server.cpu_s()
                rate, outcomes = await throughput(target, pictures, WIDTH, s.seconds(10), warm_s=0, point=point)
                rates[target.name].append(rate)
                spent[target.name].append(1000 * (server.cpu_s() - before) / len(outcomes))
    finally:
        own.stop()
        plain.stop()
    return rates, spent
