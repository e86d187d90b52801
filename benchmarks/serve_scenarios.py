"""A server under load: twice and five times what the full model can carry, pinned to it, with deadlines of all kinds,
and beside another busy process.
"""

import asyncio
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from serve_client import Outcome, Pool, clock, open_loop
from serve_count import (
    Figures,
    Phase,
    Row,
    about,
    arrivals,
    at_least,
    between,
    figures,
    percent,
    phased,
)
from serve_process import Started, busy, cpu_s
from serve_target import (
    Picture,
    Settings,
    Target,
    Yardstick,
    accuracies,
    measure,
    pictures_in,
    points_of,
    started_supple,
    throughput,
)

Result = tuple[list[Row], dict[str, Any]]
DEADLINE = 10  # times the latency of the full model
REFUSED_MS = 50.0
MIXED = (2.0, 40.0)  # times the latency of the full model
AGAIN_S = 2.0  # after which things are as they were
AS_BEFORE = 1.25  # times the median latency from before


async def overload(s: Settings) -> Result:
    """Figure 1: 10,000 requests at twice the capacity; then five times for a minute."""
    server, target = await started_supple(s)
    pictures = pictures_in(s.pictures)
    try:
        yard, allowed, facts = await known(s, target, pictures)
        before = server.rss()
        count = s.count(10_000)
        found = figures(await at_rate(s, target, pictures, yard, 2, count))
        mb = (server.rss() - before) / 1e6
        rows = [*load_rows(yard, 2), *figure_one(found, allowed, facts["accuracy"][allowed])]
        rows.append(Row("memory of the server before and after", f"{before / 1e6:.0f}, {before / 1e6 + mb:.0f} MB"))
        more, burst = await five_times(s, target, pictures, yard)
    finally:
        server.stop()
    facts |= {"yardstick": yard.to_json(), "twice": found.to_json(), "rss_before": before, **burst}
    from serve_baselines import beside

    beside_rows, others = await beside(s, pictures, yard, count, found)
    return [*rows, *more, *beside_rows], {**facts, "baselines": others}


async def known(s: Settings, target: Target, pictures: Sequence[Picture]) -> tuple[Yardstick, str, dict[str, Any]]:
    """Capacity and accuracy of each point; the deepest that can carry twice the capacity of the full model."""
    yard = await measure(target, pictures, s.seconds(10))
    carries = {}
    for point in await points_of(target):
        carries[point], _ = await throughput(target, pictures, yard.width, s.seconds(5), point=point)
    accuracy = await asyncio.to_thread(accuracies, s.export, pictures[: s.count(1000)])
    able = [point for point, rate in carries.items() if rate >= 2 * yard.capacity]
    allowed = able[-1] if able else next(iter(carries))
    return yard, allowed, {"carries": carries, "accuracy": accuracy, "allowed_at_twice": allowed}


async def at_rate(
    s: Settings,
    target: Target,
    pictures: Sequence[Picture],
    yard: Yardstick,
    times: float,
    count: int,
    **options: object,
) -> list[Outcome]:
    """So many requests at a multiple of the capacity, all with the usual deadline."""
    due = arrivals(times * yard.capacity, count, math.inf, s.seed)
    pool = Pool(target.port)
    try:
        await pool.prepare(16)
        requests = target.requests(pictures, [DEADLINE * yard.full_ms] * count, **options)
        return await open_loop(pool, requests, due)
    finally:
        await pool.close()


def load_rows(yard: Yardstick, times: float) -> list[Row]:
    return [
        Row("full point alone, p50", f"{yard.full_ms:.1f} ms"),
        Row("capacity of the full point", f"{yard.capacity:.1f} requests/s, {yard.width} clients"),
        Row("load", f"{times:g} x: {times * yard.capacity:.1f} requests/s"),
    ]


def figure_one(found: Figures, allowed: str, accuracy: float) -> list[Row]:
    slowest = found.refusal_ms[2] if found.refusal_ms else 0.0
    others = found.sent - found.in_time - found.rejected
    return [
        Row("lost", str(found.lost), "0", found.lost == 0),
        at_least("answered in time", found.share, 0.95),
        Row("neither in time nor 503", str(others), "0", others == 0),
        Row("slowest refusal", f"{slowest:.1f} ms", f"under {REFUSED_MS:g} ms", slowest < REFUSED_MS),
        Row(
            "accuracy of the answers given",
            percent(found.accuracy),
            f"at least that of {allowed}, which the capacity allows: {percent(accuracy)}",
            found.accuracy >= accuracy,
        ),
        *about(found),
    ]


async def five_times(s: Settings, target: Target, pictures: Sequence[Picture], yard: Yardstick) -> Result:
    """Half the capacity, five times for a minute, half again."""
    calm = s.seconds(15, 4 + AGAIN_S)
    phases = [Phase("calm", 0.5, calm), Phase("five times", 5, s.seconds(60, 3)), Phase("after", 0.5, calm)]
    outcomes, begins = await in_phases(s, target, pictures, yard, phases, [DEADLINE])
    first, burst, after = by_phase(outcomes, begins)
    found = figures(burst)
    rows = [
        Row("5 x: lost", str(found.lost), "0", found.lost == 0),
        Row("5 x: answered in time, rejected", f"{percent(found.share)}, {found.rejected} of {found.sent}"),
        Row("5 x: points", ", ".join(f"{name} {count}" for name, count in found.points.items())),
        *recovered("5 x", first, after),
    ]
    return rows, {"five_times": {"calm": first.to_json(), "burst": found.to_json(), "after": after.to_json()}}


async def in_phases(
    s: Settings,
    target: Target,
    pictures: Sequence[Picture],
    yard: Yardstick,
    phases: Sequence[Phase],
    times: Sequence[float],
) -> tuple[tuple[list[Outcome], float], list[float]]:
    """Rates as multiples of the capacity; deadlines as multiples of the full latency: one, or a range drawn from."""
    absolute = [Phase(one.name, one.rate * yard.capacity, one.seconds) for one in phases]
    due, begins = phased(absolute, s.seed)
    deadlines = mixed(len(due), times[0], times[-1], s.seed) * yard.full_ms
    pool = Pool(target.port)
    try:
        await pool.prepare(16)
        requests = target.requests(pictures, map(float, deadlines))
        outcomes = await open_loop(pool, requests, due)
    finally:
        await pool.close()
    return (outcomes, outcomes[0].due - due[0]), begins


def mixed(count: int, low: float, high: float, seed: int) -> np.ndarray[Any, Any]:
    """Evenly on a logarithmic scale: as many from 2 to 4 as from 20 to 40."""
    return np.exp(np.random.default_rng(seed).uniform(math.log(low), math.log(high), count))


def by_phase(ran: tuple[list[Outcome], float], begins: Sequence[float]) -> tuple[Figures, list[Outcome], Figures]:
    """Of three phases: the first, the middle one, and the last from a moment after its begin."""
    outcomes, start = ran
    first = figures(between(outcomes, start, begins[0], begins[1]))
    after = figures(between(outcomes, start, begins[2] + AGAIN_S, begins[3]))
    return first, between(outcomes, start, begins[1], begins[2]), after


def recovered(what: str, first: Figures, after: Figures) -> list[Row]:
    was, now = (one.answer_ms[0] if one.answer_ms else math.inf for one in (first, after))
    return [
        Row(
            f"{what}: p50 before, and from {AGAIN_S:g} s after its end on",
            f"{was:.1f}, {now:.1f} ms",
            f"at most {AS_BEFORE} times",
            now <= AS_BEFORE * was,
        ),
        at_least(f"{what}: in time from {AGAIN_S:g} s after its end on", after.share, 0.99),
    ]


async def pinned(s: Settings) -> Result:
    """Figure 2: every request asks for the full point, at twice its capacity."""
    server, target = await started_supple(s)
    pictures = pictures_in(s.pictures)
    try:
        yard = await measure(target, pictures, s.seconds(10))
        found = figures(await at_rate(s, target, pictures, yard, 2, s.count(5000), point="full"))
    finally:
        server.stop()
    rows = [
        *load_rows(yard, 2),
        at_least("answered in time", found.share, 0.45),
        at_least("answers with 200 that were in time", found.in_time / max(1, found.answered), 0.99),
        Row("lost", str(found.lost), "0", found.lost == 0),
    ]
    return [*rows, *about(found)], {"yardstick": yard.to_json(), "pinned": found.to_json()}


async def mixed_deadlines(s: Settings) -> Result:
    """Figure 3, first half: 0.8 times the capacity."""
    server, target = await started_supple(s)
    pictures = pictures_in(s.pictures)
    try:
        yard = await measure(target, pictures, s.seconds(10))
        (outcomes, _), _ = await in_phases(s, target, pictures, yard, [Phase("all", 0.8, s.seconds(120))], MIXED)
    finally:
        server.stop()
    found = figures(outcomes)
    rows = [
        *load_rows(yard, 0.8),
        at_least("answered in time, deadlines of 2 to 40 times the full latency", found.share, 0.99),
        *(Row(f"in time of deadlines {name}", percent(share)) for name, share in by_deadline(outcomes, yard).items()),
    ]
    return [*rows, *about(found)], {"yardstick": yard.to_json(), "mixed": found.to_json()}


def by_deadline(outcomes: Sequence[Outcome], yard: Yardstick) -> dict[str, float]:
    edges = (2.0, 4.0, 10.0, 41.0)
    shares = {}
    for low, high in pairwise(edges):
        those = [one for one in outcomes if low <= (one.request.deadline_ms or 0) / yard.full_ms < high]
        shares[f"{low:g} to {min(high, MIXED[1]):g} x"] = figures(those).share
    return shares


async def contended(s: Settings) -> Result:
    """Figure 3, second half: half the capacity, another process on the server's core for some of the time."""
    server, target = await started_supple(s)
    pictures = pictures_in(s.pictures)
    try:
        yard = await measure(target, pictures, s.seconds(10))
        calm, crowded = s.seconds(20, 4 + AGAIN_S), s.seconds(60, 4)
        phases = [Phase("alone", 0.5, calm), Phase("beside", 0.5, crowded), Phase("after", 0.5, calm)]
        neighbour = asyncio.create_task(beside_for(s, server, calm, crowded))
        ran, begins = await in_phases(s, target, pictures, yard, phases, MIXED)
        its_share, server_share = await neighbour
    finally:
        server.stop()
    first, middle, after = by_phase(ran, begins)
    found = figures(middle)
    rows = [
        *load_rows(yard, 0.5),
        Row(
            "share of the core of the other process, and of the server",
            f"{percent(its_share)}, {percent(server_share)}",
        ),
        at_least("answered in time beside it", found.share, 0.95),
        *recovered("neighbour", first, after),
        *about(found),
    ]
    parts = {"alone": first.to_json(), "beside": found.to_json(), "after": after.to_json()}
    return rows, {"yardstick": yard.to_json(), "share": its_share, "server_share": server_share, **parts}


async def beside_for(s: Settings, server: Started, after: float, seconds: float) -> tuple[float, float]:
    """Starts a busy process after some seconds, and ends it; the shares of the core that it and the server had."""
    await asyncio.sleep(after)
    other, start = busy(s.server_core), clock()
    try:
        own, servers = cpu_s(other.pid), server.cpu_s()
        await asyncio.sleep(seconds)
        took = clock() - start
        return (cpu_s(other.pid) - own) / took, (server.cpu_s() - servers) / took
    finally:
        other.process.kill()
        other.stop()
