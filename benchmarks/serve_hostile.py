"""Clients and files that mean harm, against `supple serve` on loopback: figure by figure, what it answers and costs.

    python benchmarks/serve_model.py --weights deit_tiny_patch16_224.safetensors     # the model
    python benchmarks/serve_hostile.py runs/serve/export
    python benchmarks/serve_hostile.py runs/serve/export --scale 0.02 --cores none   # a small one, to see it work

The server runs on one core, its enemies on another. Prints Markdown, and writes benchmarks/results/serve/hostile.json.
Memory is the sum of the peaks of all its processes (VmHWM, reset before) over what they had: an upper bound.
"""

import argparse
import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from serve_client import Pool, Request
from serve_count import Row, quantiles, table
from serve_hostile_files import Case, cases, mutated, picture, saved, sounds
from serve_process import Started, pin_self, status, supple_serve
from supple.machine import machine, versions

RESULTS = Path(__file__).parent / "results" / "serve"
MIB = 2**20
BUFFERS = 16 * MIB  # what the system takes for a server that reads no more
FILE_STATUSES = (200, 413, 415, 422)
GROWTH_MIB, CLOSED_S, SLOWER = 300, 10.0, 0.20
GONE = "closed"  # without an answer
AT_ONCE = 4  # requests under way with files


@dataclass(frozen=True)
class Sizes:
    """Of a full run."""

    mutants: int = 5000
    slow: int = 500
    seconds: float = 20.0  # of slow clients
    spellings: int = 200
    brackets: int = 100_000
    headers: int = 1_000_000  # bytes
    body: int = 20_000_000  # the limit
    flood: int = 50_000_000  # bytes that are sent at most where there is no end
    seed: int = 0

    def scaled(self, scale: float) -> "Sizes":
        return replace(
            self,
            mutants=max(60, round(self.mutants * scale)),
            slow=max(20, round(self.slow * scale)),
            seconds=max(6.0, self.seconds * scale),
        )


@dataclass
class Found:
    """What a group of attacks got, and what was wrong with that."""

    what: str
    statuses: Counter[object] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def add(self, name: str, got: object, allowed: Iterable[object]) -> None:
        self.statuses[got] += 1
        if got not in allowed:
            self.wrong.append(f"{name}: {got}")

    def all_rows(self) -> list[Row]:
        seen = ", ".join(f"{count} x {got}" for got, count in sorted(self.statuses.items(), key=str))
        goal = "; ".join(self.wrong[:5]) if self.wrong else "as documented"
        return [*([Row(self.what, seen, goal, not self.wrong)] if self.statuses else []), *self.rows]


@dataclass(frozen=True)
class Target:
    """A server, and how to talk to it."""

    port: int
    model: str = "model"
    server: Started | None = None

    @property
    def path(self) -> str:
        return f"/v1/models/{self.model}/predict"

    def head(self, method: str = "POST", path: str | None = None, media: str = "application/octet-stream") -> bytes:
        line = f"{method} {self.path if path is None else path} HTTP/1.1\r\n"
        return f"{line}Host: 127.0.0.1:{self.port}\r\nContent-Type: {media}\r\n".encode()

    def good(self) -> Request:
        return Request(self.head(), saved(picture(224, 224), "JPEG"))


# --- files ------------------------------------------------------------------------------------------------------------


async def hostile_files(target: Target, sizes: Sizes) -> Found:
    """Mutated pictures, and those made by hand."""
    found = Found(f"{sizes.mutants:,} mutated pictures in six formats")
    async with memory(target, found):
        await post_all(
            target, found, ((f"mutant {i}", one) for i, one in enumerate(mutated(sizes.mutants, sizes.seed)))
        )
        made = cases()
        await post_all(target, found, ((name, file) for name, (file, _) in made.items()), made)
    return found


async def hostile_sounds(target: Target, sizes: Sizes) -> Found:
    found = Found("sounds of 0 samples, 8 hours, 64 channels, NaN and others")
    made = sounds()
    async with memory(target, found):
        await post_all(target, found, ((name, file) for name, (file, _) in made.items()), made)
    return found


async def post_all(
    target: Target, found: Found, files: Iterable[tuple[str, bytes]], made: Mapping[str, Case] | None = None
) -> None:
    pool, rest = Pool(target.port), iter(files)

    async def client() -> None:
        for name, file in rest:
            outcome = await pool.ask(Request(target.head(), file), patience_s=60)
            found.add(name, outcome.status or outcome.trouble, made[name][1] if made else FILE_STATUSES)
            if leaks(outcome.body):
                found.wrong.append(f"{name}: {outcome.body[:200]!r}")

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    await pool.close()


def leaks(body: bytes) -> bool:
    """Whether an answer tells how the server is made."""
    return any(word in body for word in (b"Traceback", b".py", b"site-packages", b"0x", b"/proc", b"/home", b"/usr"))


@asynccontextmanager
async def memory(target: Target, found: Found) -> AsyncIterator[None]:
    """The peak beyond what there was, of all processes of the server; successors of the dead included."""
    server = target.server
    if server is None:
        yield
        return
    forget_peaks(server)
    before, most, ended = server.rss(), 0, False

    async def watch() -> None:
        nonlocal most
        while not ended:
            most = max(most, sum(status(pid, "VmHWM") for pid in server.tree()))
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        ended = True
        await watching
    grown = (most - before) / MIB
    found.rows.append(
        Row("- their peak of memory", f"+{grown:,.0f} MiB", f"under +{GROWTH_MIB} MiB", grown < GROWTH_MIB)
    )


def forget_peaks(server: Started) -> None:
    """What was needed at the start is no peak of now."""
    for pid in server.tree():
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


# --- slow clients -----------------------------------------------------------------------------------------------------


async def slow_clients(target: Target, sizes: Sizes) -> Found:
    """Some trickle headers, some a body, some say nothing; ordinary requests go on beside them."""
    found = Found(f"{sizes.slow} slow clients at a time")
    alone = await ordinary(target, sizes.seconds)
    ended = time.monotonic() + sizes.seconds
    lasted: list[float] = []
    clients = [slow_client(target, KINDS[i % len(KINDS)], ended, found, lasted) for i in range(sizes.slow)]
    everybody = asyncio.gather(*clients)
    beside = await ordinary(target, sizes.seconds)
    await everybody
    longest = max(lasted)
    found.rows.append(Row("- the longest lasted", f"{longest:.1f} s", f"at most {CLOSED_S:g} s", longest <= CLOSED_S))
    (before,), (after,) = quantiles(alone, 99), quantiles(beside, 99)
    goal = f"at most {100 * SLOWER:g} % more than the {before:.1f} ms alone"
    found.rows.append(Row("- p99 of ordinary requests", f"{after:.1f} ms", goal, after <= (1 + SLOWER) * before))
    return found


async def ordinary(target: Target, seconds: float) -> list[float]:
    """Milliseconds of one request after the other."""
    pool, took, end = Pool(target.port), [], time.monotonic() + seconds
    while time.monotonic() < end:
        outcome = await pool.ask(target.good())
        if outcome.status != 200:
            raise SystemExit(f"An ordinary request got {outcome.status or outcome.trouble}.")
        took.append(outcome.took_ms)
        await asyncio.sleep(0.02)
    await pool.close()
    return took


KINDS = ("headers", "body", "chunks", "silence")


async def slow_client(target: Target, kind: str, end: float, found: Found, lasted: list[float]) -> None:
    """Comes again until the end; each time counts from when it was there until the server sent it away."""
    while time.monotonic() < end:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        began = time.monotonic()
        answer = asyncio.create_task(reader.read())
        if kind == "headers":
            writer.write(target.head())
        elif kind != "silence":
            length = b"Transfer-Encoding: chunked" if kind == "chunks" else b"Content-Length: 1000000"
            writer.write(target.head() + length + b"\r\n\r\n")
        drop = {"headers": b"x: y\r\n", "body": b"x", "chunks": b"1\r\nx\r\n", "silence": b""}[kind]
        while not answer.done() and time.monotonic() - began < 6 * CLOSED_S:
            writer.write(drop)
            await asyncio.wait({answer}, timeout=0.5)
        lasted.append(time.monotonic() - began)
        writer.close()
        answer.cancel()
        got = status_of(await answer) if not answer.cancelled() and answer.done() and not failed(answer) else GONE
        found.add(kind, got, (408, GONE))


def failed(answer: "asyncio.Task[bytes]") -> bool:
    return answer.exception() is not None


def status_of(answer: bytes) -> object:
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else GONE


# --- sizes ------------------------------------------------------------------------------------------------------------


async def sent_raw(target: Target, pieces: Iterable[bytes], patience_s: float = 30.0) -> tuple[object, int]:
    """The status, and how many bytes went out before it came, those that wait in the system's buffers included."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 262_144)
    answer, sent = asyncio.create_task(reader.readuntil(b"\r\n\r\n")), 0
    try:
        async with asyncio.timeout(patience_s):
            for piece in pieces:
                if answer.done():
                    break
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
                await asyncio.sleep(0)
            return status_of(await answer), sent
    except (OSError, asyncio.IncompleteReadError):
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            return status_of(answer.result()), sent
        return GONE, sent
    except TimeoutError:
        return f"nothing within {patience_s:g} s", sent
    finally:
        answer.cancel()
        writer.transport.abort()


def endless(piece: bytes, most: int) -> Iterable[bytes]:
    for _ in range(most // len(piece)):
        yield piece


async def large_requests(target: Target, sizes: Sizes) -> Found:
    """Each is refused, and most of it is never read."""
    found = Found("requests beyond a limit")
    chunked = target.head() + b"Transfer-Encoding: chunked\r\n\r\n"
    large, tiny = b"10000\r\n" + bytes(65_536) + b"\r\n", b"1\r\nx\r\n" * 10_000
    head, json_head = target.head(), target.head(media="application/json")
    brackets = b"[" * sizes.brackets
    announced = [head + b"Content-Length: %d\r\n\r\n" % (sizes.body + 1), *endless(bytes(65_536), sizes.body)]
    attacks: dict[str, tuple[Iterable[bytes], tuple[object, ...], int]] = {
        "a body of the limit + 1": (announced, (413,), sizes.body),
        "the same in chunks": ([chunked, *endless(large, sizes.body + 131_072)], (413,), sizes.body + MIB),
        "an endless body": ([chunked, *endless(large, sizes.flood)], (413,), sizes.body + BUFFERS),
        "an endless body of a GET": (
            [chunked.replace(b"POST", b"GET", 1), *endless(large, sizes.flood)],
            (405, 413),
            sizes.flood,
        ),
        "a flood of tiny chunks": ([chunked, *endless(tiny, sizes.flood)], (400,), BUFFERS),
        "extensions of chunks": ([chunked, *endless(b"1;" + b"e" * 9000 + b"\r\nx\r\n", sizes.flood)], (400,), BUFFERS),
        "headers of 1 MB": ([head, *endless(b"x: " + b"y" * 995 + b"\r\n", sizes.headers)], (431,), sizes.headers),
        "one header of 1 MB": ([head + b"x: ", *endless(b"y" * 1000, sizes.headers)], (431,), sizes.headers),
        "an address of 1 MB": ([b"GET /", *endless(b"y" * 1000, sizes.headers)], (431,), sizes.headers),
        "10,000 fields": ([head, *endless(b"x: y\r\n", 60_000)], (431,), sizes.headers),
        "brackets in brackets": (
            [json_head + b"Content-Length: %d\r\n\r\n" % len(brackets), brackets],
            (400, 422),
            len(brackets) + MIB,
        ),
    }
    async with memory(target, found):
        for name, (pieces, allowed, most) in attacks.items():
            got, sent = await sent_raw(target, pieces)
            found.add(name, got, allowed)
            if sent > most:
                found.wrong.append(f"{name}: {sent:,} bytes were taken")
    return found


# --- names ------------------------------------------------------------------------------------------------------------


def spellings(count: int) -> list[str]:
    """Ways to say "somewhere else" in the place of a model's name."""
    ups = ("..", "%2e%2e", "%2E.", "..%00", "%252e%252e", "%c0%ae%c0%ae", "..;", "．．", "%uff0e%uff0e", "....")
    slashes = ("/", "%2f", "%2F", "\\", "%5c", "%252f", "%c0%af", "//", "%2f%2f", "／")
    ends = ("etc%2fpasswd", "outside", "proc%2fself%2fenviron", "outside%00.png")
    found = [f"{up}{slash}{up}{slash}{end}" for end in ends for up in ups for slash in slashes]
    found += [
        "%2fetc%2fpasswd",
        "file:%2f%2f%2fetc%2fpasswd",
        "~",
        "~root",
        "%00",
        ".",
        "..",
        "%20",
        "model%00",
        "C:%5c",
    ]
    return [quote(one, safe="%/\\;:~.") for one in (found * (1 + count // len(found)))[-count:]]


async def strange_names(target: Target, sizes: Sizes) -> Found:
    """None of them is a model, and none is more than a name that is not in a table."""
    found, pool = Found(f"{sizes.spellings} spellings of paths as names of models"), Pool(target.port)
    file = saved(picture())
    for number, name in enumerate(spellings(sizes.spellings)):
        form = ("/v1/models/{}/predict", "/v1/models/{}", "/v2/models/{}/infer", "/v1/models/{}/reload")[number % 4]
        get = form == "/v1/models/{}"
        request = Request(target.head("GET" if get else "POST", form.format(name)), b"" if get else file)
        outcome = await pool.ask(request, patience_s=30)
        found.add(name, outcome.status or outcome.trouble, (404, 422, *((403,) if form.endswith("reload") else ())))
        if leaks(outcome.body):
            found.wrong.append(f"{name}: {outcome.body[:200]!r}")
    await pool.close()
    return found


# --- all of it --------------------------------------------------------------------------------------------------------

Attack = Callable[[Target, Sizes], Awaitable[Found]]
ATTACKS: dict[str, Attack] = {
    "files": hostile_files,
    "slow": slow_clients,
    "sizes": large_requests,
    "names": strange_names,
}


async def attacked(target: Target, sizes: Sizes, attacks: Mapping[str, Attack]) -> list[Found]:
    """One after the other; between them, ordinary requests are answered."""
    pool, found = Pool(target.port), []
    for attack in attacks.values():
        found.append(await attack(target, sizes))
        outcome = await pool.ask(Request(target.head("GET", "/live")), patience_s=30)
        if outcome.status != 200:
            found[-1].wrong.append(f"/live afterwards: {outcome.status or outcome.trouble}")
    await pool.close()
    return found


async def main(given: argparse.Namespace) -> None:
    both = (None, None) if given.cores == "none" else tuple(map(int, given.cores.split(",")))
    sizes = Sizes(seed=given.seed).scaled(given.scale)
    pin_self(both[1])
    found: list[Found] = []
    plans = [(given.export, {name: ATTACKS[name] for name in given.only or ATTACKS})]
    if given.sound is not None:
        plans.append((given.sound, {"sounds": hostile_sounds}))
    for export, attacks in plans:
        server = supple_serve(export, both[0], engine=given.engine)
        try:
            await server.ready()
            found += await attacked(Target(server.port, server=server), sizes, attacks)
        finally:
            code = server.stop()
        found[-1].rows.append(Row("- exit of the server", str(code), "0", code == 0))
    print(table([row for one in found for row in one.all_rows()], "attack"))
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = [asdict(row) for one in found for row in one.all_rows()]
    facts = {"sizes": asdict(sizes), "rows": rows, "machine": machine(), "versions": versions()}
    (RESULTS / "hostile.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--sound", type=Path, help="an export or run that takes sounds")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--cores", default="0,1", help="of the server and its enemies, or none")
    parser.add_argument("--only", nargs="*", choices=ATTACKS)
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(main(parser.parse_args()))
