"""What tests of the page do in a browser."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supple.server.app import FOLDERS

PAGE = FOLDERS["page"]
SHIP = PAGE / "samples" / "ship.png"
# A file as the browser hands it over when it is dropped or pasted.
CARRY = """([bytes, name, type]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([new Uint8Array(bytes)], name, { type }));
    return carried;
}"""
PASTE = "(carried) => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: carried, bubbles: true }))"
SLIDE = "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input')); }"


def says(page: Any, where: str, text: str | re.Pattern[str], seconds: float = 15) -> None:
    from playwright.sync_api import expect

    expect(page.locator(where)).to_contain_text(text, timeout=1000 * seconds)


def slide(page: Any, to: int) -> None:
    page.locator("#deadline").evaluate(SLIDE, to)


def carried(page: Any, file: Path, kind: str) -> Any:
    return page.evaluate_handle(CARRY, [list(file.read_bytes()), file.name, kind])


def wait_until(page: Any, holds: Callable[[], bool], seconds: float = 15) -> None:
    for _ in range(round(20 * seconds)):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not come true")
