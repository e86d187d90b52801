"""Every limit of a connection, on a clock that jumps to the next thing to happen: nothing here waits."""

import asyncio
import json
import selectors
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from supple.server.limits import Limits, Pace, wire_allowed
from supple.server.protocol import protocol_class
from supple.server.requests import Refusal

SMALL = Limits(body_bytes=200_000, all_bodies_bytes=500_000, connections=4)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while there is something to do, and then jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__(_Impatient(self))
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class _Impatient(selectors.SelectSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout:
            self.loop.now += timeout
        return found


class Wire(asyncio.Transport):
    """The server's end of a connection, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.eof = self.closed = self.aborted = self.paused = False
        self.unread = 0  # bytes that the client has not taken yet

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 9), "sockname": ("127.0.0.1", 8)}.get(name, default)

    def write(self, data: Any) -> None:
        assert not self.eof
        assert not self.closed
        self.sent += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.unread


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the path and the length of the body."""
    count, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        count, more = count + len(message["body"]), message["more_body"]
    body = f"{scope['path']} {count}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Front:
    """A server of these limits, to which connections are made by hand."""

    def __init__(self, limits: Limits = SMALL, answer: Any = app) -> None:
        self.refused: list[Refusal] = []
        self.state = ServerState()
        self.kind = protocol_class(limits, self.refused.append)
        self.config = Config(answer, http=self.kind, ws="none", lifespan="off", log_config=None)
        self.config.load()
        self.began = asyncio.get_running_loop().time()

    def connect(self) -> tuple[Any, Wire]:
        protocol: Any = self.kind(self.config, self.state, {})  # type: ignore[call-arg]
        wire = Wire()
        protocol.connection_made(wire)
        return protocol, wire

    @property
    def elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self.began


@contextmanager
def jumping() -> Iterator[JumpingLoop]:
    loop = JumpingLoop()
    try:
        yield loop
    finally:
        loop.close()


def on_the_jumping_clock(scene: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        with jumping() as loop:
            loop.run_until_complete(scene())

    run.__name__, run.__doc__ = scene.__name__, scene.__doc__
    return run


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def was_refused(wire: Wire, status: int, code: str) -> str:
    """Checks the one answer on the wire, and that it is the last."""
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    assert head.split()[1] == b"%d" % status, wire.sent
    assert b"connection: close" in head
    assert b"content-type: application/json" in head
    assert body.count(b"\n") == 1
    assert int(head.split(b"content-length: ")[1].split()[0]) == len(body)
    told = json.loads(body)["error"]
    assert told["code"] == code
    assert wire.eof or wire.closed
    return str(told["message"])


def post(body: bytes = b"", **fields: object) -> bytes:
    lines = b"".join(f"{name.replace('_', '-')}: {value}\r\n".encode() for name, value in fields.items())
    return b"POST /x HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n" + body


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


# --- what is allowed ------------------------------------------------------------------------------------------------


@on_the_jumping_clock
async def test_a_request_is_answered_and_the_next_on_the_same_connection():
    protocol, wire = Front().connect()
    protocol.data_received(post(b"abc", Content_Length=3))
    await settled()
    assert wire.sent.startswith(b"HTTP/1.1 200")
    assert wire.sent.endswith(b"/x 3")
    protocol.data_received(post(chunk(b"abcd") + b"0\r\n\r\n", Transfer_Encoding="chunked"))
    await settled()
    assert wire.sent.endswith(b"/x 4")
    assert not wire.closed


@on_the_jumping_clock
async def test_requests_sent_ahead_are_answered_in_order():
    protocol, wire = Front().connect()
    protocol.data_received(b"".join(GET.replace(b"/ ", b"/%d " % i) for i in range(10)))
    await settled()
    assert [part.split()[0] for part in wire.sent.split(b"\r\n\r\n")[1:]] == [
        *(b"/%d" % i for i in range(10)),
    ]
    assert protocol.shared.bodies == 0


@on_the_jumping_clock
async def test_a_body_of_exactly_the_limit_is_taken_whole_and_in_pieces():
    most = SMALL.body_bytes
    for head, parts in (
        (post(Content_Length=most), [b"x" * most]),
        (post(Transfer_Encoding="chunked"), [chunk(b"x" * (most // 8))] * 8 + [b"0\r\n\r\n"]),
    ):
        protocol, wire = Front().connect()
        protocol.data_received(head)
        for part in parts:
            protocol.data_received(part)
            await settled()
        assert wire.sent.endswith(b"/x %d" % most)
        assert protocol.shared.bodies == 0


@on_the_jumping_clock
async def test_headers_just_within_the_limits_are_taken_byte_by_byte():
    limits = SMALL
    lines = b"".join(b"a%d: b\r\n" % i for i in range(limits.head_fields - 1))
    rest = limits.head_bytes - len(b"GET / HTTP/1.1\r\n\r\n") - len(lines) - len(b"long: \r\n")
    head = b"GET / HTTP/1.1\r\n" + lines + b"long: " + b"x" * rest + b"\r\n\r\n"
    assert len(head) == limits.head_bytes
    protocol, wire = Front().connect()
    for place in range(0, len(head), 100):
        protocol.data_received(head[place : place + 100])
    await settled()
    assert wire.sent.startswith(b"HTTP/1.1 200")


@on_the_jumping_clock
async def test_large_requests_sent_ahead_are_not_taken_for_one_large_head():
    """16 heads of 4 kB arrive at once, the last of them cut in two: each is within the limit of 32 kB."""
    protocol, wire = Front().connect()
    one = b"GET / HTTP/1.1\r\nlong: " + b"x" * 4000 + b"\r\n\r\n"
    flood = one * 16
    protocol.data_received(flood[:-100])
    protocol.data_received(flood[-100:])
    await settled()
    assert wire.sent.count(b"HTTP/1.1 200") == 16


@on_the_jumping_clock
async def test_while_nothing_is_read_the_clients_clock_stands_still():
    """The application is busy for a minute before it asks for the rest of the body."""

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(60)
        await app(scope, receive, send)

    protocol, wire = Front(answer=late).connect()
    protocol.data_received(post(b"x" * 100_000, Content_Length=150_000))
    assert wire.paused
    await asyncio.sleep(60.5)
    assert not wire.paused
    protocol.data_received(b"x" * 50_000)
    await settled()
    assert wire.sent.endswith(b"/x 150000")
    protocol, wire = Front(answer=late).connect()
    protocol.data_received(post(b"x" * 100_000, Content_Length=150_000))
    await asyncio.sleep(62)
    assert not wire.sent
    await asyncio.sleep(5)  # and then it goes on
    was_refused(wire, 408, "too_slow")


# --- time -----------------------------------------------------------------------------------------------------------


@on_the_jumping_clock
async def test_headers_that_trickle_in_are_refused_after_five_seconds():
    front = Front()
    protocol, wire = front.connect()
    protocol.data_received(b"GET / HTTP/1.1\r\n")
    while not wire.sent and front.elapsed < 60:
        protocol.data_received(b"x: y\r\n")
        await asyncio.sleep(0.5)
    assert 4.9 <= front.elapsed <= 5.6
    assert "5 s" in was_refused(wire, 408, "too_slow")
    assert [refusal.code for refusal in front.refused] == ["too_slow"]


@on_the_jumping_clock
async def test_the_next_headers_on_a_connection_have_five_seconds_too():
    front = Front()
    protocol, wire = front.connect()
    protocol.data_received(GET)
    await asyncio.sleep(10)
    wire.sent = b""
    protocol.data_received(GET[:5])
    await asyncio.sleep(4.9)
    assert not wire.sent
    await asyncio.sleep(0.2)
    was_refused(wire, 408, "too_slow")


@on_the_jumping_clock
async def test_empty_lines_are_no_way_to_keep_a_connection():
    front = Front()
    protocol, wire = front.connect()
    protocol.data_received(GET)
    await asyncio.sleep(1)
    while not wire.eof and not wire.closed and front.elapsed < 60:
        protocol.data_received(b"\r\n")
        await asyncio.sleep(0.5)
    assert front.elapsed < 7


@on_the_jumping_clock
async def test_a_connection_without_a_word_is_closed_without_one():
    _, wire = Front().connect()
    await asyncio.sleep(5.1)
    assert wire.closed
    assert wire.sent == b""


@on_the_jumping_clock
async def test_a_connection_that_was_answered_is_closed_when_idle():
    protocol, wire = Front().connect()
    protocol.data_received(GET)
    await asyncio.sleep(14.9)
    assert not wire.closed
    await asyncio.sleep(0.2)
    assert wire.closed


@pytest.mark.parametrize("head", [post(Content_Length=100_000), post(Transfer_Encoding="chunked")])
def test_a_body_that_trickles_in_is_refused_in_little_more_than_the_grace(head: bytes) -> None:
    async def scene() -> None:
        front = Front()
        protocol, wire = front.connect()
        protocol.data_received(head)
        while not wire.sent and front.elapsed < 60:
            protocol.data_received(chunk(b"y") if b"chunked" in head else b"y")
            await asyncio.sleep(0.05)
        assert 1.0 <= front.elapsed <= 1.1
        assert "64 kB/s" in was_refused(wire, 408, "too_slow")

    on_the_jumping_clock(scene)()


@pytest.mark.parametrize(("rate", "taken"), [(60_000, False), (66_000, True)])
def test_the_rate_of_a_body_is_held_to_the_limit(rate: int, taken: bool) -> None:
    async def scene() -> None:
        limits = Limits(grace_s=0.01)
        front = Front(limits)
        protocol, wire = front.connect()
        size = 10 * rate
        protocol.data_received(post(Content_Length=size))
        for _ in range(1000):
            if not wire.sent:
                protocol.data_received(b"x" * (rate // 100))
                await asyncio.sleep(0.01)
        assert wire.sent.startswith(b"HTTP/1.1 200") == taken
        if not taken:
            was_refused(wire, 408, "too_slow")

    on_the_jumping_clock(scene)()


@on_the_jumping_clock
async def test_what_came_early_does_not_pay_for_a_long_pause():
    """20 MB at once would pay for five minutes."""
    front = Front(Limits())
    protocol, wire = front.connect()
    protocol.data_received(post(Content_Length=20_000_000))
    for _ in range(300):
        protocol.data_received(b"x" * 65_000)
        await settled()
    await asyncio.sleep(4.9)
    assert not wire.sent
    await asyncio.sleep(0.2)
    was_refused(wire, 408, "too_slow")
    assert protocol.shared.bodies == 0


@on_the_jumping_clock
async def test_a_body_that_stops_coming_after_an_early_answer_is_not_waited_for():
    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    front = Front(answer=hasty)
    protocol, wire = front.connect()
    protocol.data_received(post(b"x" * 10, Content_Length=1000))
    await settled()
    assert wire.sent.startswith(b"HTTP/1.1 401")
    while not wire.eof and front.elapsed < 60:
        protocol.data_received(b"x")
        await asyncio.sleep(0.1)
    assert front.elapsed < 1.2
    assert wire.sent.count(b"HTTP/1.1") == 1  # nobody would know what a second answer belongs to


@on_the_jumping_clock
async def test_an_answer_that_nobody_reads_is_given_up():
    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            await asyncio.sleep(0.5)

    protocol, wire = Front(answer=endless).connect()
    protocol.data_received(GET)
    await asyncio.sleep(1)
    wire.unread = 64_000
    protocol.pause_writing()
    await asyncio.sleep(3)
    protocol.resume_writing()
    await asyncio.sleep(60)
    assert not wire.closed  # it was only slow
    protocol.pause_writing()
    await asyncio.sleep(5.9)
    assert not wire.closed
    await asyncio.sleep(0.2)
    assert wire.aborted
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@on_the_jumping_clock
async def test_an_idle_connection_whose_answer_was_not_read_does_not_stay_for_ever():
    protocol, wire = Front().connect()
    protocol.data_received(GET)
    await settled()
    wire.unread = 1000
    await asyncio.sleep(15.1)
    assert wire.closed
    assert not wire.aborted
    await asyncio.sleep(5.1)
    assert wire.aborted


# --- sizes ----------------------------------------------------------------------------------------------------------


@on_the_jumping_clock
async def test_an_endless_header_is_refused_at_the_limit_and_no_more_of_it_is_read():
    protocol, wire = Front().connect()
    protocol.data_received(b"GET / HTTP/1.1\r\nlong: ")
    fed = []
    parser = protocol.parser

    class Counting:
        def feed_data(self, data: bytes) -> None:
            fed.append(len(data))
            parser.feed_data(data)

    protocol.parser = Counting()
    protocol.data_received(b"x" * 1_000_000)
    assert "32,768 bytes" in was_refused(wire, 431, "headers_too_large")
    assert sum(fed) <= SMALL.head_bytes + 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x" * 40_000 + b": y\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 101 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"x: " + b"y" * 1000 + b"\r\n" for _ in range(40)) + b"\r\n",
    ],
    ids=["address", "name", "fields", "together"],
)
@pytest.mark.parametrize("step", [1_000_000, 1000])
def test_headers_that_are_too_large_are_refused(head: bytes, step: int) -> None:
    async def scene() -> None:
        protocol, wire = Front().connect()
        for place in range(0, len(head), step):
            protocol.data_received(head[place : place + step])
        was_refused(wire, 431, "headers_too_large")

    on_the_jumping_clock(scene)()


@on_the_jumping_clock
async def test_headers_behind_a_body_are_held_to_the_same_limit():
    protocol, wire = Front().connect()
    protocol.data_received(post(b"abc", Content_Length=3) + b"GET / HTTP/1.1\r\nlong: " + b"x" * 40_000)
    await settled()
    for _ in range(10):
        protocol.data_received(b"x" * 10_000)
    await settled()
    assert wire.sent.startswith(b"HTTP/1.1 200")
    assert wire.eof or wire.closed


@pytest.mark.parametrize("trailer", [b"x: y\r\n" * 101, b"x: " + b"y" * 40_000 + b"\r\n"])
def test_trailers_count_as_headers(trailer: bytes) -> None:
    async def scene() -> None:
        protocol, wire = Front().connect()
        protocol.data_received(post(chunk(b"abc") + b"0\r\n" + trailer + b"\r\n", Transfer_Encoding="chunked"))
        was_refused(wire, 431, "headers_too_large")

    on_the_jumping_clock(scene)()


@on_the_jumping_clock
async def test_an_endless_trailer_is_refused():
    protocol, wire = Front().connect()
    protocol.data_received(post(b"0\r\nx: ", Transfer_Encoding="chunked"))
    for _ in range(8):
        if not wire.sent:
            protocol.data_received(b"y" * 10_000)
    was_refused(wire, 400, "malformed")


@on_the_jumping_clock
async def test_a_body_that_is_announced_too_large_is_refused_before_it_comes():
    called = []

    async def never(scope: Any, receive: Any, send: Any) -> None:
        called.append(scope)

    protocol, wire = Front(answer=never).connect()
    protocol.data_received(post(Content_Length=SMALL.body_bytes + 1, Expect="100-continue"))
    await settled()
    assert "200,000 bytes" in was_refused(wire, 413, "too_large")
    assert not called


@pytest.mark.parametrize("method", [b"POST", b"GET"])
def test_a_chunked_body_is_refused_at_the_limit(method: bytes) -> None:
    async def scene() -> None:
        seen = []

        async def reading(scope: Any, receive: Any, send: Any) -> None:
            while (message := await receive())["type"] == "http.request":
                seen.append(len(message["body"]))
            seen.append(message["type"])

        protocol, wire = Front(answer=reading).connect()
        protocol.data_received(post(Transfer_Encoding="chunked").replace(b"POST", method))
        while not wire.sent and len(seen) < 1000:
            protocol.data_received(chunk(b"x" * 10_000))
            await settled()
        was_refused(wire, 413, "too_large")
        assert seen[-1] == "http.disconnect"
        assert sum(seen[:-1]) <= SMALL.body_bytes
        assert protocol.shared.bodies == 0

    on_the_jumping_clock(scene)()


@pytest.mark.parametrize("one", [chunk(b"x"), b"1;" + b"e" * 200 + b"\r\nx\r\n"], ids=["tiny", "extensions"])
def test_a_flood_of_chunks_that_hold_nothing_is_refused_early(one: bytes) -> None:
    async def scene() -> None:
        protocol, wire = Front(Limits()).connect()
        protocol.data_received(post(Transfer_Encoding="chunked"))
        sent = 0
        while not wire.sent and sent < 2_000_000:
            protocol.data_received(one * 100)
            sent += 100 * len(one)
            await settled()
        was_refused(wire, 400, "malformed")
        assert sent < 120_000

    on_the_jumping_clock(scene)()


@on_the_jumping_clock
async def test_a_request_half_answered_is_cut_off_when_its_body_grows_too_large():
    async def early(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] == "http.request":
            pass

    protocol, wire = Front(answer=early).connect()
    protocol.data_received(post(Transfer_Encoding="chunked"))
    await settled()
    for _ in range(30):
        if not wire.closed:
            protocol.data_received(chunk(b"x" * 10_000))
            await settled()
    assert wire.aborted
    assert b"413" not in wire.sent


# --- malformed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET / HTTP/3.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\x00\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
        b"CONNECT a.b:443 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nabcde",
    ],
)
def test_what_is_not_http_is_refused_with_one_sentence(data: bytes) -> None:
    async def scene() -> None:
        front = Front()
        protocol, wire = front.connect()
        protocol.data_received(data)
        await settled()
        message = was_refused(wire, 400, "malformed")
        assert message.endswith(".")
        assert len(front.refused) == 1

    on_the_jumping_clock(scene)()


@on_the_jumping_clock
async def test_who_asks_for_a_websocket_is_answered_as_if_he_had_not():
    protocol, wire = Front().connect()
    protocol.data_received(b"GET /ws HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05hello")
    await settled()
    assert wire.sent.startswith(b"HTTP/1.1 200")
    assert wire.sent.endswith(b"/ws 0")
    assert wire.closed


@on_the_jumping_clock
async def test_nonsense_behind_a_good_request_does_not_cost_its_answer():
    protocol, wire = Front().connect()
    protocol.data_received(GET + b"nonsense\r\n\r\n")
    await settled()
    assert wire.sent.startswith(b"HTTP/1.1 200")
    assert wire.sent.count(b"HTTP/1.1") == 1
    assert wire.closed


@on_the_jumping_clock
async def test_a_flood_of_requests_sent_ahead_is_cut_off():
    started = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        started.append(scope)
        await asyncio.sleep(1)
        await app(scope, receive, send)

    protocol, wire = Front(answer=slow).connect()
    protocol.data_received(GET * 5000)
    assert len(protocol.pipeline) <= SMALL.pipelined
    await asyncio.sleep(30)
    assert len(started) == 1
    assert wire.sent.startswith(b"HTTP/1.1 200")
    assert wire.closed


# --- all connections together ---------------------------------------------------------------------------------------


@on_the_jumping_clock
async def test_one_connection_too_many_is_told_so_at_once():
    front = Front()
    taken = [front.connect() for _ in range(SMALL.connections)]
    assert not any(wire.closed or wire.sent for _, wire in taken)
    _, wire = front.connect()
    was_refused(wire, 503, "overloaded")
    assert b"retry-after: 1" in wire.sent
    taken[0][0].connection_lost(None)
    front.connect()[0].data_received(GET)
    await settled()


@on_the_jumping_clock
async def test_far_too_many_connections_are_not_even_told():
    front = Front()
    wires = [front.connect()[1] for _ in range(50)]
    assert sum(wire.aborted for wire in wires) == 50 - (SMALL.connections + SMALL.connections // 4 + 8)


@on_the_jumping_clock
async def test_the_largest_unfinished_body_makes_room_for_the_others():
    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    front = Front(answer=waiting)
    large = [front.connect() for _ in range(3)]
    for place, (protocol, _) in enumerate(large):
        protocol.data_received(post(Content_Length=200_000))
        for _ in range(15 + place):
            protocol.data_received(b"x" * 10_000)
            await settled()
    assert large[0][0].shared.bodies == 480_000
    small, wire = front.connect()
    small.data_received(post(b"x" * 30_000, Content_Length=30_000))
    await settled()
    assert wire.sent.endswith(b"/x 30000")
    was_refused(large[2][1], 503, "overloaded")
    assert not large[0][1].sent
    assert not large[1][1].sent
    assert small.shared.bodies == 310_000
    for protocol, _ in large:
        protocol.connection_lost(None)
    await settled()
    assert small.shared.bodies == 0


@on_the_jumping_clock
async def test_bodies_are_forgotten_when_their_clients_leave_before_the_answer():
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1)
        await app(scope, receive, send)

    protocol, _ = Front(answer=slow).connect()
    one = post(b"x" * 1000, Content_Length=1000)
    protocol.data_received(one * 5)
    assert protocol.shared.bodies == 5000
    await asyncio.sleep(1.1)
    assert protocol.shared.bodies == 4000
    protocol.connection_lost(None)
    assert protocol.shared.bodies == 0
    await asyncio.sleep(10)


# --- endings --------------------------------------------------------------------------------------------------------


@on_the_jumping_clock
async def test_who_was_refused_may_read_that_and_is_then_cut_off():
    protocol, wire = Front().connect()
    protocol.data_received(post(Content_Length=SMALL.body_bytes + 1))
    assert wire.eof
    for _ in range(15):
        protocol.data_received(b"x" * 60_000)  # thrown away
        await asyncio.sleep(0.1)
    assert not wire.closed  # a reset would take the answer away from it
    await asyncio.sleep(0.6)
    assert wire.aborted


@on_the_jumping_clock
async def test_no_timer_is_left_behind():
    protocol, _ = Front().connect()
    protocol.data_received(GET)
    await settled()
    protocol.data_received(GET[:10])
    protocol.connection_lost(None)
    loop: Any = asyncio.get_running_loop()
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []


# --- the decisions by themselves --------------------------------------------------------------------------------------


def test_pace_by_hand():
    limits = Limits(body_rate=100, grace_s=1, stall_s=5)
    pace = Pace(limits, 10.0)
    assert pace.due == 11.0
    pace.received(200, 10.5)
    assert pace.due == 13.0
    pace.received(10_000, 11.0)
    assert pace.due == 16.0  # not 113
    pace.pause(12.0)
    assert pace.paused
    pace.pause(13.0)  # still the same pause
    pace.resume(15.0)
    assert pace.due == 19.0
    pace.resume(18.0)
    assert pace.due == 19.0


def test_wire_allowed_by_hand():
    limits = Limits(spare_wire_bytes=100)
    assert wire_allowed(limits, 0) == 100
    assert wire_allowed(limits, 800) == 1000
