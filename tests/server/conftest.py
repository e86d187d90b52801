"""A browser, a server with canned answers, and the page opened in it."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tiny_server import Tiny

CHROMIUM = shutil.which("chromium")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in a browser run in processes of their own: playwright keeps a loop of asyncio running in its thread."""
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def tiny() -> Iterator[Tiny]:
    server = Tiny().start()
    yield server
    server.stop()


@pytest.fixture
def opened(chromium: Any, tiny: Tiny) -> Iterator[Callable[..., Any]]:
    """Opens the page; at the end, nothing was asked from elsewhere, no script failed and no rule was broken."""
    contexts, wrong = [], []

    def open_page(own_clock: bool = False, **how: Any) -> Any:
        contexts.append(chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **how}))
        page = contexts[-1].new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Security Policy" in said.text else None)
        local = (tiny.address, "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(local) else wrong.append(asked.url))
        if own_clock:
            page.clock.install()
        page.goto(tiny.address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
