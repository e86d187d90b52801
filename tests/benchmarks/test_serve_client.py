"""The client that measures: what it reads, when it sends, what it calls lost, and that it stays on this machine."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serve_client import Broken, Outcome, Pool, Reader, Request, closed_loop, must_be_bounded, open_loop

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ASK = Request(b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"picture", "cat", 1000.0)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def answers(data: bytes, step: int) -> list[tuple[int, bytes]]:
    """What a reader finds in bytes that arrive in pieces."""
    reader, found = Reader(), []
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
        while (answer := reader.answer()) is not None:
            found.append(answer)
    return found


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_answers_are_read_however_they_are_cut(step: int) -> None:
    chunked = b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n"
    assert answers(OK + chunked + OK, step) == [(200, b"{}"), (503, b"abc0123456789"), (200, b"{}")]


def test_what_is_not_http_is_broken() -> None:
    with pytest.raises(Broken):
        answers(b"SSH-2.0-OpenSSH\r\n\r\n", 100)


def test_a_server_that_wants_to_close_is_understood() -> None:
    reader = Reader()
    reader.feed(b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n")
    assert reader.answer() == (200, b"")
    assert reader.closes


@pytest.mark.parametrize("host", ["10.0.0.1", "8.8.8.8", "0.0.0.0", "example.org", "127.0.0.1.example.org", "::"])
def test_other_machines_are_refused(host: str) -> None:
    with pytest.raises(SystemExit, match="not this machine"):
        Pool(80, host)


@pytest.mark.parametrize(("count", "seconds"), [(0, 1), (10**6, 1), (10, 10_000), (10, float("nan"))])
def test_a_run_is_bounded_in_count_and_time(count: int, seconds: float) -> None:
    with pytest.raises(SystemExit, match="At most"):
        must_be_bounded(count, seconds)


def against(serve: Serve, use: Callable[[Pool], Awaitable[list[Outcome]]]) -> list[Outcome]:
    """What a pool gets from a server of a few lines."""

    async def run() -> list[Outcome]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        pool = Pool(server.sockets[0].getsockname()[1])
        try:
            return await use(pool)
        finally:
            await pool.close()
            await asyncio.sleep(0.01)
            server.close()
            await server.wait_closed()

    return asyncio.run(run())


async def one_request(reader: asyncio.StreamReader) -> bool:
    """Reads one; False at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return True


def test_connections_are_kept_and_used_again() -> None:
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while await one_request(reader):
            writer.write(OK)
        writer.close()

    async def use(pool: Pool) -> list[Outcome]:
        return (await closed_loop(pool, lambda _: ASK, 2, 0.1))[0]

    outcomes = against(serve, use)
    assert len(outcomes) > 2
    assert len(connections) == 2
    assert all((one.status, one.body) == (200, b"{}") for one in outcomes)


def test_whatever_has_not_been_answered_does_not_hold_up_the_next_request() -> None:
    arrived: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await one_request(reader):
            arrived.append(asyncio.get_running_loop().time())
            if len(arrived) == 3:
                everybody.set()
            await everybody.wait()  # nobody is answered before all have asked
            writer.write(OK)
        writer.close()

    async def use(pool: Pool) -> list[Outcome]:
        global everybody
        everybody = asyncio.Event()
        return await open_loop(pool, [ASK] * 3, [0.0, 0.01, 0.02])

    outcomes = against(serve, use)
    assert [one.status for one in outcomes] == [200] * 3
    assert all(one.sent >= one.due for one in outcomes)
    assert outcomes[0].ended >= outcomes[2].sent


everybody: asyncio.Event


def test_a_connection_that_breaks_is_a_lost_request() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await one_request(reader)
        writer.write(OK[:10])
        writer.close()

    async def use(pool: Pool) -> list[Outcome]:
        return [await pool.ask(ASK)]

    (outcome,) = against(serve, use)
    assert outcome.status is None
    assert outcome.trouble == "the connection was closed"


def test_patience_ends_and_frees_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await one_request(reader):
            pass
        writer.close()

    async def use(pool: Pool) -> list[Outcome]:
        outcome = await pool.ask(ASK, patience_s=0.05)
        await asyncio.sleep(0.01)
        assert not pool.open
        return [outcome]

    (outcome,) = against(serve, use)
    assert (outcome.status, outcome.trouble) == (None, "no answer within 0.05 s")


def test_whoever_is_cancelled_leaves_and_the_server_sees_it() -> None:
    gone = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await one_request(reader)
        gone.append(not await one_request(reader))
        writer.close()

    async def use(pool: Pool) -> list[Outcome]:
        task = asyncio.create_task(pool.ask(ASK))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.05)
        return []

    against(serve, use)
    assert gone == [True]


def test_nobody_there_is_a_lost_request_with_its_reason() -> None:
    async def use() -> Outcome:
        return await Pool(1).ask(ASK)

    outcome = asyncio.run(use())
    assert outcome.status is None
    assert "ConnectionRefusedError" in outcome.trouble
