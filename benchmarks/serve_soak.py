"""Half an hour of ordinary load, with requests mixed in that deserve no answer: figure 7."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence

from serve_client import Outcome, Pool, Request, clock, open_loop
from serve_count import Figures, Row, arrivals, figures, grown, percent, read, trouble
from serve_process import Started
from serve_scenarios import MIXED, Result, mixed
from serve_target import Picture, Settings, Target, Yardstick, measure, pictures_in, started_supple

BAD_SHARE = 0.05
GROWTH_BYTES = 10 * 2**20  # from a third of the time on
FILES = 5  # descriptors by which the count may differ
EVERY_S = 10.0

Statuses = tuple[int, ...]


def bad_requests(target: Target, picture: Picture) -> dict[str, tuple[Request, Statuses]]:
    """What is wrong with them, and which statuses they may have."""
    host = f"Host: 127.0.0.1:{target.port}\r\n"

    def post(path: str, body: bytes, media: str = "image/png", extra: str = "") -> Request:
        head = f"POST {path} HTTP/1.1\r\n{host}Content-Type: {media}\r\n{extra}"
        return Request(head.encode(), body, kind="bad")

    ask = target.path
    return {
        "empty": (post(ask, b""), (400, 422)),
        "text": (post(ask, b"this is not a picture"), (415, 422)),
        "half a picture": (post(ask, picture.file[: len(picture.file) // 2]), (415, 422)),
        "damaged": (post(ask, damaged(picture.file)), (200, 415, 422)),  # a decoder may read over it
        "unknown model": (post("/v1/models/nobody/predict", picture.file), (404,)),
        "path": (post("/v1/models/..%2f..%2fetc/predict", picture.file), (404, 422)),
        "unknown option": (post(f"{ask}?depth=3", picture.file), (422,)),
        "two options": (post(f"{ask}?point=full&policy=true", picture.file), (422,)),
        "negative deadline": (post(f"{ask}?deadline_ms=-1", picture.file), (422,)),
        "unknown point": (post(f"{ask}?point=exit%3D99", picture.file), (422,)),
        "broken JSON": (post(ask, b'{"inputs": [', "application/json"), (400,)),
        "brackets": (post(ask, b"[" * 100_000, "application/json"), (400,)),
        "other media": (post(ask, picture.file, "video/mp4"), (415,)),
        "other encoding": (post(ask, picture.file, extra="Content-Encoding: zstd\r\n"), (415,)),
        "headers": (post(ask, picture.file, extra=f"X-Long: {'a' * 100_000}\r\n"), (431,)),
        "other method": (Request(f"DELETE {ask} HTTP/1.1\r\n{host}".encode(), kind="bad"), (405,)),
        "no route": (Request(f"GET /nothing/here HTTP/1.1\r\n{host}".encode(), kind="bad"), (404,)),
    }


def damaged(file: bytes) -> bytes:
    dice, found = random.Random(0), bytearray(file)
    for _ in range(20):
        found[dice.randrange(8, len(found))] ^= 1 << dice.randrange(8)
    return bytes(found)


async def soak(s: Settings) -> Result:
    """0.8 times the capacity, deadlines of 2 to 40 times the full latency; every twentieth request is a bad one."""
    server, target = await started_supple(s)
    pictures = pictures_in(s.pictures)
    try:
        yard = await measure(target, pictures, s.seconds(10))
        seconds = 60 * s.minutes * s.scale
        requests, allowed, due = plan(s, target, pictures, yard, seconds)
        pool = Pool(target.port)
        await pool.prepare(16)
        ended = asyncio.Event()
        sampling = asyncio.create_task(samples(server, pool, ended, min(EVERY_S, seconds / 15)))
        outcomes = await open_loop(pool, requests, due)
        ended.set()
        sampled = await sampling
        await pool.close()
    finally:
        server.stop()
    good = figures([one for one in outcomes if one.request.kind == "good"])
    strange = unexplained(outcomes, allowed)
    return rows_of(yard, good, outcomes, strange, sampled), {
        "yardstick": yard.to_json(),
        "figures": good.to_json(),
        "unexplained": strange,
        "samples": sampled,
    }


def plan(
    s: Settings, target: Target, pictures: Sequence[Picture], yard: Yardstick, seconds: float
) -> tuple[list[Request], list[Statuses], list[float]]:
    due = arrivals(0.8 * yard.capacity, math.ceil(1.6 * yard.capacity * seconds + 50), seconds, s.seed)
    deadlines = mixed(len(due), *MIXED, s.seed) * yard.full_ms
    requests = target.requests(pictures, map(float, deadlines))
    allowed: list[Statuses] = [(200, 503, 504)] * len(requests)
    bad, dice = list(bad_requests(target, pictures[0]).values()), random.Random(s.seed)
    for place in range(len(requests)):
        if dice.random() < BAD_SHARE:
            requests[place], allowed[place] = bad[dice.randrange(len(bad))]
    return requests, allowed, due


async def samples(server: Started, pool: Pool, ended: asyncio.Event, every_s: float) -> list[dict[str, float]]:
    """Memory and descriptors over time; connections of the load itself are taken out of these."""
    found, start = [], clock()
    while not ended.is_set():
        found.append(
            {
                "seconds": clock() - start,
                "rss": server.rss(),
                "private": server.private(),
                "descriptors": server.descriptors() - len(pool.open),
            }
        )
        await asyncio.sleep(every_s)
    return found


def unexplained(outcomes: Sequence[Outcome], allowed: Sequence[Statuses]) -> dict[str, int]:
    """Statuses that a request may not have, and requests without any."""
    wrong: Counter[str] = Counter()
    for one, statuses in zip(outcomes, allowed, strict=True):
        busy = one.request.kind == "bad" and one.status == 503  # it may be refused before it is looked at
        if one.status not in statuses and not busy:
            wrong[f"{one.request.kind}: {trouble(one, read(one))}, allowed {statuses}"] += 1
    return dict(wrong)


def rows_of(
    yard: Yardstick,
    good: Figures,
    outcomes: Sequence[Outcome],
    strange: dict[str, int],
    sampled: list[dict[str, float]],
) -> list[Row]:
    late_part = sampled[len(sampled) // 3 :]
    growth = grown([one["rss"] for one in late_part])
    files = [one["descriptors"] for one in late_part]
    spread = grown(files)
    bad = [one for one in outcomes if one.request.kind == "bad"]
    minutes = sampled[-1]["seconds"] / 60
    return [
        Row("time, requests, of these bad", f"{minutes:.1f} min, {len(outcomes)}, {len(bad)}"),
        Row("load", f"{0.8 * yard.capacity:.1f} requests/s"),
        Row("unexplained errors", str(sum(strange.values())), "0", not strange),
        Row("good requests in time, rejected, lost", f"{percent(good.share)}, {good.rejected}, {good.lost}"),
        Row(
            "growth of memory in the last two thirds",
            f"{growth / 2**20:.1f} MiB",
            "under 10 MiB",
            growth < GROWTH_BYTES,
        ),
        Row(
            "descriptors beside connections: smallest, largest, growth",
            f"{min(files):.0f}, {max(files):.0f}, {spread:+.0f}",
            f"flat: growth under {FILES}",
            abs(spread) < FILES,
        ),
        Row("sends late by, p99", f"{good.lag_ms:.2f} ms", "under 5 ms", good.lag_ms < 5),
    ]
