"""A static server of one queue, with a sleeping model, as the load sees it."""

import asyncio

import pytest

from serve_baselines import READY, start
from serve_client import Pool, open_loop
from serve_count import Figures, arrivals, figures
from serve_target import Picture

FULL_MS = 20.0


@pytest.mark.system
def test_at_twice_its_capacity_a_static_server_is_late_and_loses_nothing() -> None:
    async def run() -> tuple[Figures, int]:
        server, target = start("fastapi", None, None, sleep_ms=FULL_MS)
        try:
            await server.ready(READY["fastapi"])
            pool = Pool(server.port)
            requests = target.requests([Picture(b"picture", "nothing")], [4 * FULL_MS] * 150)
            found = figures(await open_loop(pool, requests, arrivals(2000 / FULL_MS, 150, 60, seed=0)))
            await pool.close()
        finally:
            server.stop()
        return found, len(server.tree()) - 1

    found, children = asyncio.run(run())
    assert (found.lost, found.rejected, found.accuracy) == (0, 0, 1.0)
    assert found.share < 0.5  # its queue only grows
    assert found.answer_ms is not None
    assert found.answer_ms[1] > 10 * FULL_MS
    assert children == 0
