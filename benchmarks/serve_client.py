"""A light HTTP/1.1 client for measurements: connections that are kept, nothing but loopback, answers read afterwards.

Open loop: requests are sent when they are due, whatever has been answered. Closed loop: so many at the same time.
Times count from when a request was due: what the generator itself was late is held against the answer.
"""

import asyncio
import gc
import ipaddress
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

MOST_REQUESTS, MOST_SECONDS = 200_000, 3600.0  # of one run
PATIENCE_S = 300.0  # after which an answer counts as lost
IDLE_S = 2.0  # a connection that rested for longer is not used again: the server may be about to close it

clock = time.monotonic


@dataclass(frozen=True)
class Request:
    """What is sent, and what is known of its answer."""

    head: bytes  # everything before the Content-Length
    body: bytes = b""
    truth: str | None = None  # the label that is right
    deadline_ms: float | None = None
    kind: str = "good"  # bad requests say what is wrong with them

    def content(self) -> bytes:
        return b"%bContent-Length: %d\r\n\r\n%b" % (self.head, len(self.body), self.body)


@dataclass
class Outcome:
    """What became of a request. Without a status there was no answer: `trouble` says why."""

    request: Request
    due: float
    sent: float = 0.0
    ended: float = 0.0
    status: int | None = None
    body: bytes = field(default=b"", repr=False)
    trouble: str = ""

    @property
    def took_ms(self) -> float:
        return 1000 * (self.ended - self.due)

    @property
    def lag_ms(self) -> float:
        return 1000 * (self.sent - self.due)


class Broken(Exception):
    """There will be no answer."""


class Reader:
    """One answer after the other from the bytes of a connection; whole, or None as long as something is missing."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.closes = False  # whether the server ends the connection behind the latest answer

    def feed(self, data: bytes) -> None:
        self._data += data

    def answer(self) -> tuple[int, bytes] | None:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return None
        lines = bytes(self._data[:end]).split(b"\r\n")
        words = lines[0].split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise Broken(f"not an answer of HTTP: {lines[0][:40]!r}")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        self.closes = headers.get(b"connection", b"").lower() == b"close"
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            found = unchunked(self._data, end + 4)
        else:
            length = int(headers.get(b"content-length", b"0"))
            whole = len(self._data) >= end + 4 + length
            found = (bytes(self._data[end + 4 : end + 4 + length]), end + 4 + length) if whole else None
        if found is None:
            return None
        body, used = found
        del self._data[:used]
        return int(words[1]), body


def unchunked(data: bytearray, start: int) -> tuple[bytes, int] | None:
    """The chunks from `start` on, and where they end; None: not all are there."""
    parts = []
    while True:
        line = data.find(b"\r\n", start)
        if line < 0:
            return None
        size = int(bytes(data[start:line]).split(b";")[0], 16)
        following = line + 2 + size + 2
        if len(data) < following:
            return None
        if size == 0:
            return b"".join(parts), following
        parts.append(bytes(data[line + 2 : line + 2 + size]))
        start = following


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, pool: "Pool") -> None:
        self._pool, self._reader = pool, Reader()
        self._transport: asyncio.Transport | None = None
        self._outcome: Outcome | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.usable, self.rested_since = False, clock()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.usable = transport, True

    def data_received(self, data: bytes) -> None:
        now = clock()
        self._reader.feed(data)
        try:
            found = self._reader.answer()
        except (Broken, ValueError) as error:
            self._end(str(error))
            self.close()
            return
        if found is None or self._outcome is None:
            return
        self._outcome.status, self._outcome.body = found
        self._end("", now)
        if self._reader.closes:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._pool.forget(self)
        self._end("the connection was closed" if exc is None else f"{type(exc).__name__}: {exc}")

    def begin(self, outcome: Outcome, content: bytes) -> asyncio.Future[None]:
        assert self._transport is not None
        self._outcome, self._waiter = outcome, asyncio.get_running_loop().create_future()
        outcome.sent = clock()
        self._transport.write(content)
        return self._waiter

    def close(self) -> None:
        """Whoever still waits has given up."""
        self.usable, self._outcome = False, None
        if self._transport is not None:
            self._transport.abort()

    def _end(self, trouble: str, now: float | None = None) -> None:
        outcome, waiter, self._outcome, self._waiter = self._outcome, self._waiter, None, None
        if outcome is not None:
            outcome.ended, outcome.trouble = clock() if now is None else now, trouble
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Pool:
    """Connections to one port of this machine."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        must_be_loopback(host)
        self.host, self.port = host, port
        self._idle: list[Connection] = []
        self.open: set[Connection] = set()

    async def connect(self) -> Connection:
        _, made = await asyncio.get_running_loop().create_connection(lambda: Connection(self), self.host, self.port)
        self.open.add(made)
        return made

    def forget(self, one: Connection) -> None:
        self.open.discard(one)

    async def prepare(self, count: int) -> None:
        """So many connections that need not be opened when the first requests are due."""
        for _ in range(count - len(self._idle)):
            self.put_back(await self.connect())

    def rested(self) -> Connection | None:
        """The one that was used last, as it is the least likely to be closed by the server."""
        while self._idle:
            one = self._idle.pop()
            if one.usable and clock() - one.rested_since < IDLE_S:
                return one
            one.close()
        return None

    def put_back(self, one: Connection) -> None:
        one.rested_since = clock()
        self._idle.append(one)

    async def ask(self, request: Request, due: float | None = None, patience_s: float = PATIENCE_S) -> Outcome:
        """Cancelling it closes the connection: the server sees that nobody waits any more."""
        outcome = Outcome(request, clock() if due is None else due)
        outcome.sent = outcome.ended = clock()
        one = None
        try:
            async with asyncio.timeout(patience_s):
                one = self.rested() or await self.connect()
                await one.begin(outcome, request.content())
        except TimeoutError:  # an OSError as well
            outcome.ended, outcome.trouble = clock(), f"no answer within {patience_s:g} s"
            if one is not None:
                one.close()
        except OSError as error:
            outcome.ended, outcome.trouble = clock(), f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            if one is not None:
                one.close()
            raise
        else:
            if one.usable:
                self.put_back(one)
        return outcome

    async def close(self) -> None:
        for one in list(self.open):
            one.close()
        self._idle.clear()
        await asyncio.sleep(0)


def must_be_loopback(host: str) -> None:
    """A load generator is a weapon elsewhere."""
    try:
        safe = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        safe = False
    if not safe:
        raise SystemExit(f"{host} is not this machine. Load is sent to 127.0.0.1 only.")


def must_be_bounded(count: int, seconds: float) -> None:
    if not 1 <= count <= MOST_REQUESTS or not 0 < seconds <= MOST_SECONDS:
        raise SystemExit(
            f"{count:,} requests in {seconds:,.0f} s. At most {MOST_REQUESTS:,} in {MOST_SECONDS:,.0f} s are sent."
        )


async def open_loop(
    pool: Pool, requests: Sequence[Request], due_s: Sequence[float], patience_s: float = PATIENCE_S
) -> list[Outcome]:
    """Sends each request when it is due, in seconds from now, and waits for all answers."""
    must_be_bounded(len(requests), due_s[-1] + 1e-9)
    tasks: list[asyncio.Task[Outcome]] = []
    gc.collect()
    gc.disable()  # a collection in between would delay requests by milliseconds
    try:
        start = clock()
        for request, after in zip(requests, due_s, strict=True):
            due = start + after
            while (left := due - clock()) > 0:
                await asyncio.sleep(left)
            tasks.append(asyncio.create_task(pool.ask(request, due, patience_s)))
            await asyncio.sleep(0)  # let it be sent
        return list(await asyncio.gather(*tasks))
    finally:
        gc.enable()


async def closed_loop(
    pool: Pool, request_of: Callable[[int], Request], width: int, seconds: float
) -> tuple[list[Outcome], float]:
    """`width` clients, each with one request after the other; what was answered, and how long it took in seconds."""
    must_be_bounded(1, seconds)
    start, outcomes = clock(), []
    count = 0

    async def client() -> None:
        nonlocal count
        while clock() - start < seconds and count < MOST_REQUESTS:
            count += 1
            outcome = await pool.ask(request_of(count - 1))
            outcomes.append(outcome)
            if outcome.status is None:
                raise SystemExit(f"The server on port {pool.port} gives no answer: {outcome.trouble}.")

    await asyncio.gather(*(client() for _ in range(width)))
    return outcomes, clock() - start


async def until(done: Callable[[], Awaitable[bool]], seconds: float, what: str, every_s: float = 0.1) -> None:
    """Waits until something is the case."""
    end = clock() + seconds
    while not await done():
        if clock() > end:
            raise SystemExit(f"{what}: not within {seconds:g} s.")
        await asyncio.sleep(every_s)
