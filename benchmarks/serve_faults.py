"""Servers that are stopped, left, reloaded, killed, crowded, and told another time of day: figure 5, fault by fault."""

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from serve_client import Outcome, Pool, Request, clock, open_loop, until
from serve_count import Figures, Row, arrivals, at_least, figures, percent, quantiles
from serve_process import cpu_s, left
from serve_scenarios import DEADLINE, Result
from serve_target import Settings, Target, Yardstick, measure, pictures_in, started_supple

LIVE_MS, SAVED, GROWTH = 100.0, 0.45, 0.05
HOUR = 3600.0
# Put in front of everything that a started server imports: its wall clock jumps when a file says so.
CLOCK = """
import os, time
_file, _real, _real_ns = os.environ["SERVE_WALL_CLOCK"], time.time, time.time_ns
def _jump():
    try:
        with open(_file) as found:
            return float(found.read() or 0)
    except OSError:
        return 0.0
time.time = lambda: _real() + _jump()
time.time_ns = lambda: _real_ns() + int(1e9 * _jump())
"""


async def faults(s: Settings) -> Result:
    """All of them, or those that were asked for."""
    rows: list[Row] = []
    facts: dict[str, object] = {}
    for name, fault in FAULTS.items():
        if not s.only or name in s.only:
            some, found = await fault(s)
            rows += some
            facts[name] = found
            print(f"{name}: {found}", flush=True)
    return rows, facts


async def sigterm(s: Settings) -> Result:
    """50 requests in flight, then SIGTERM."""
    server, target = await started_supple(s)
    family = server.tree()
    try:
        pool, pictures = Pool(target.port), pictures_in(s.pictures, 50)
        await pool.prepare(50)
        requests = [target.request(pictures[i % len(pictures)], point="full") for i in range(50)]
        waiting = [asyncio.create_task(pool.ask(request)) for request in requests]
        await in_service(target, 40)
        server.process.send_signal(signal.SIGTERM)
        found = figures(await asyncio.gather(*waiting))
        code = await asyncio.to_thread(server.process.wait, 60)
        orphans = left(family)
    finally:
        server.stop(5)
    rows = [
        Row("50 in flight at SIGTERM: answered", f"{found.answered} of 50", "50", found.answered == 50),
        Row("exit status", str(code), "0", code == 0),
        Row("children left", str(len(orphans)), "0", not orphans),
    ]
    return rows, {"figures": found.to_json(), "exit": code, "left": len(orphans)}


async def in_service(target: Target, count: int, seconds: float = 30.0) -> None:
    """Waits until so many inputs wait or run."""
    pool = Pool(target.port)

    async def enough() -> bool:
        found = await load_of(pool, target)
        return found["waiting"] + found["running"] >= count

    await until(enough, seconds, f"{count} inputs in service", every_s=0.002)
    await pool.close()


async def load_of(pool: Pool, target: Target) -> dict[str, int]:
    import json

    outcome = await pool.ask(target.get("/v1/load"))
    if outcome.status != 200:
        raise SystemExit(f"/v1/load answered {outcome.status}: {outcome.body[:200]!r}")
    found: dict[str, int] = json.loads(outcome.body)
    return found


async def disconnects(s: Settings) -> Result:
    """Twice the same burst for the full point: everybody waits, and half of them leave."""
    server, target = await started_supple(s)
    count = s.count(200, 40)
    try:
        (worker,) = server.workers()
        pictures = pictures_in(s.pictures, count)
        requests = [target.request(pictures[i % len(pictures)], point="full") for i in range(count)]
        spent, answered = {}, {}
        for name, leaving in (("warm", 0), ("stay", 0), ("leave", count // 2)):
            before = cpu_s(worker)
            answered[name] = await burst(target, requests, leaving)
            spent[name] = cpu_s(worker) - before
    finally:
        server.stop()
    saved = 1 - spent["leave"] / spent["stay"]
    rows = [
        at_least(f"half of {count} queued clients leave: compute saved", saved, SAVED),
        Row(
            "those that stayed and were answered",
            f"{answered['leave']} of {count - count // 2}",
            "all",
            answered["leave"] == count - count // 2,
        ),
    ]
    return rows, {"worker_cpu_s": spent, "answered": answered}


async def burst(target: Target, requests: list[Request], leaving: int) -> int:
    """Everybody asks at once; the last ones leave as soon as they are queued. How many of the others were answered."""
    pool = Pool(target.port)
    await pool.prepare(len(requests))
    tasks = [asyncio.create_task(pool.ask(request)) for request in requests]
    if leaving:
        await in_service(target, int(0.9 * len(requests)))
        for task in tasks[len(tasks) - leaving :]:
            task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    await settled(target)
    await pool.close()
    staying = outcomes[: len(tasks) - leaving]  # of the others some may have been answered before they left
    return sum(isinstance(one, Outcome) and one.status == 200 for one in staying)


async def settled(target: Target) -> None:
    """Nothing waits or runs any more."""
    pool = Pool(target.port)

    async def empty() -> bool:
        found = await load_of(pool, target)
        return found["waiting"] + found["running"] == 0

    await until(empty, 60, "nothing in service")
    await pool.close()


async def reloads(s: Settings) -> Result:
    """200 reloads, one after the other, at half load."""
    server, target = await started_supple(s, "--allow-reload")
    count, usual = s.count(200, 5), len(server.tree())
    try:
        yard = await measure(target, pictures_in(s.pictures), s.seconds(5))
        pool, codes, sizes = Pool(target.port), [], [server.rss()]

        async def old_gone() -> bool:
            return len(server.tree()) <= usual

        async def reload_all() -> None:
            path = "/v1/models/model/reload"
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\n".encode()
            for _ in range(count):
                outcome = await pool.ask(Request(head, kind="reload"))
                codes.append(outcome.status)
                await until(old_gone, 30, "the old model is gone")
                sizes.append(server.rss())

        found = await under_load(s, target, yard, 0.5, reload_all)
        await pool.close()
    finally:
        server.stop()
    settled_at = sizes[max(1, count // 20)]
    growth, whole = sizes[-1] / settled_at - 1, sizes[-1] / sizes[0] - 1
    bad = sum(code != 200 for code in codes)
    rows = [
        Row(f"{count} reloads under load: refused or failed", str(bad), "0", bad == 0),
        Row(
            "requests meanwhile: lost, late, rejected",
            f"{found.lost}, {found.late}, {found.rejected} of {found.sent}",
            "0 lost",
            found.lost == 0,
        ),
        Row(
            f"memory growth from reload {max(1, count // 20)} to the last (from before the first)",
            f"{percent(growth)} ({percent(whole)})",
            "at most 5 %",
            growth <= GROWTH,
        ),
    ]
    return rows, {"rss": sizes, "figures": found.to_json()}


async def under_load(
    s: Settings, target: Target, yard: Yardstick, times: float, work: Callable[[], Awaitable[None]]
) -> Figures:
    """Requests at a multiple of the capacity, as long as the work takes."""
    pictures, ended = pictures_in(s.pictures), asyncio.Event()
    pool, outcomes, seed = Pool(target.port), [], s.seed
    await pool.prepare(16)

    async def load() -> None:
        nonlocal seed
        while not ended.is_set():  # a stretch of seconds after the other
            seed += 1
            due = arrivals(times * yard.capacity, 10_000, 2.0, seed) or [1.0]
            deadlines = [DEADLINE * yard.full_ms] * len(due)
            outcomes.extend(await open_loop(pool, target.requests(pictures, deadlines), due))

    loading = asyncio.create_task(load())
    try:
        await work()
    finally:
        ended.set()
        await loading
        await pool.close()
    return figures(outcomes)


async def kills(s: Settings) -> Result:
    """One of two workers is killed, again and again, at half load."""
    server, target = await started_supple(s, "--workers", "2")
    count, dice = s.count(30, 3), random.Random(s.seed)
    try:
        yard = await measure(target, pictures_in(s.pictures), s.seconds(5))

        probes = Pool(target.port)

        async def two_stand() -> bool:
            return (await load_of(probes, target))["workers"] == 2

        async def kill_some() -> None:
            for _ in range(count):
                await until(two_stand, 120, "two workers")
                await asyncio.sleep(dice.uniform(0.2, 1.0))
                os.kill(dice.choice(server.workers()), signal.SIGKILL)
                await asyncio.sleep(0.2)
            await until(two_stand, 120, "two workers at the end")

        found = await under_load(s, target, yard, 0.5, kill_some)
        await probes.close()
    finally:
        server.stop()
    codes = {code: n for code, n in found.codes.items() if not code.startswith(("503 overloaded", "504"))}
    rows = [
        Row(f"one of two workers killed {count} times: lost", str(found.lost), "0", found.lost == 0),
        Row(
            "of all requests: in time, late, rejected",
            f"{found.in_time}, {found.late}, {found.rejected} of {found.sent}",
        ),
        Row("refused for other reasons than load", str(codes or 0), "0", not codes),
    ]
    return rows, {"figures": found.to_json()}


async def live(s: Settings) -> Result:
    """Whether the server says that it lives, while five times its capacity is asked of it."""
    server, target = await started_supple(s)
    try:
        yard = await measure(target, pictures_in(s.pictures), s.seconds(5))
        pool, outcomes = Pool(target.port), []

        async def probe() -> None:
            end = clock() + s.seconds(30, 3)
            while clock() < end:
                outcomes.append(await pool.ask(target.get("/live")))
                await asyncio.sleep(0.05)

        found = await under_load(s, target, yard, 5, probe)
        await pool.close()
    finally:
        server.stop()
    took = [one.took_ms for one in outcomes]
    good = all(one.status == 200 for one in outcomes)
    figure = "{:.1f}, {:.1f}, {:.1f} ms".format(*quantiles(took, 50, 99), max(took))
    row = Row("/live at 5 x: p50, p99, largest", figure, f"200, within {LIVE_MS:g} ms", good and max(took) <= LIVE_MS)
    return [row, Row("lag of the load, p99", f"{found.lag_ms:.2f} ms")], {"live_ms": took, "figures": found.to_json()}


async def wall_clock(s: Settings) -> Result:
    """The time of day jumps by an hour, forth and back, in all processes of the server."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jump"
        (Path(folder) / "sitecustomize.py").write_text(CLOCK)
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        server, target = await started_supple(s, extra={"PYTHONPATH": path, "SERVE_WALL_CLOCK": str(file)})
        try:
            jumped = all(holds(pid, str(file)) for pid in server.tree())
            yard = await measure(target, pictures_in(s.pictures), s.seconds(5))

            async def jump() -> None:
                for hours in (0, 1, -1, 0):
                    file.write_text(str(hours * HOUR))
                    await asyncio.sleep(s.seconds(10, 2))

            found = await under_load(s, target, yard, 0.5, jump)
        finally:
            server.stop()
    wrong = found.late + found.rejected + found.lost
    rows = [
        Row("wall clock moved by an hour: late, rejected or lost", f"{wrong} of {found.sent}", "0", wrong == 0),
        Row("all its processes had that clock", str(jumped), "True", jumped),
    ]
    return rows, {"figures": found.to_json()}


def holds(pid: int, word: str) -> bool:
    """Whether a process was started with a word in its environment."""
    return word.encode() in Path(f"/proc/{pid}/environ").read_bytes()


FAULTS: dict[str, Callable[[Settings], Awaitable[Result]]] = {
    "sigterm": sigterm,
    "disconnects": disconnects,
    "reloads": reloads,
    "kills": kills,
    "live": live,
    "wall_clock": wall_clock,
}
