"""The page of `supple serve` itself: a trained run, real processes, a real browser."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import says, slide, wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def served(exits_run: Path) -> Iterator[str]:
    """The address of a server of `exits_run`."""
    words = [sys.executable, "-m", "supple", "serve", f"tiny={exits_run}", "--port", "0", "--engine", "torch"]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, **how) as process:
        said = []
        for text in process.stdout:
            said.append(text)
            if found := re.search(r"serving tiny at (http://127\.0\.0\.1:\d+)", text):
                break
        else:
            raise AssertionError("".join(said))
        yield f"{found[1]}/"
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_sample_is_answered_by_every_exit_and_a_burst_is_counted(chromium: Any, served: str):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Security Policy" in said.text else None)
    page.goto(served)
    says(page, "#model-name", "tiny")
    assert re.fullmatch(r"\d+ classes, 3 points, torch fp32", page.inner_text("#facts"))
    slide(page, 200)
    page.click("[data-sample=seven]")
    says(page, "#exits .chosen", "answered")
    says(page, "#why", re.compile(r"answered after [\d.,]+ ms"))
    assert page.locator("#curve .dot").count() == 3
    page.locator("#load-now").scroll_into_view_if_needed()
    says(page, "#load-now", "room for 256")
    page.fill("#count", "40")
    page.fill("#within", "20000")
    page.click("#send")
    says(page, "#burst-result", "40 of 40 answered")
    wait_until(page, lambda: page.locator("#history .bar").count() > 0)
    assert wrong == []
    page.close()
