"""A picture of the page of a server that runs, with an answer and a burst in it; needs playwright and chromium.

supple serve pictures=runs/cifar10/export/onnx-fp32 &
python benchmarks/serve_picture.py docs/img/serve.png --deadline-ms 3
"""

import argparse
import math
import shutil
import sys

from playwright.sync_api import Page, expect, sync_playwright

SLIDE = "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input')); }"


def try_out(page: Page, given: argparse.Namespace) -> None:
    """A sample, a deadline, then a burst; afterwards the chart has seen points shrink and recover."""
    page.goto(f"http://127.0.0.1:{given.port}/")
    expect(page.locator("#exits tr").first).to_be_visible()
    slide_to(page, given.deadline_ms)
    page.click(f"[data-sample={given.sample}]")
    expect(page.locator("#exits .chosen")).to_be_visible(timeout=30_000)
    page.locator("#load-now").scroll_into_view_if_needed()
    for deadline in given.burst_ms:
        page.wait_for_timeout(3000)
        page.fill("#count", str(given.count))
        page.fill("#within", f"{deadline:g}")
        page.click("#send")
        expect(page.locator("#send")).to_be_enabled(timeout=120_000)
        print(page.inner_text("#burst-result"))
    page.wait_for_timeout(6000)
    print(page.inner_text("#deadline-text"), page.inner_text("#answer").replace("\n", " "), sep=": ")


def slide_to(page: Page, deadline_ms: float) -> None:
    """The place of the slider whose text comes nearest."""
    found = {}
    for place in range(201):
        page.locator("#deadline").evaluate(SLIDE, place)
        text = page.inner_text("#deadline-text")
        found[place] = abs(math.log(float(text.removesuffix(" ms").replace(",", "")) / deadline_ms))
    page.locator("#deadline").evaluate(SLIDE, min(found, key=found.__getitem__))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--sample", default="ship")
    parser.add_argument("--deadline-ms", type=float, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--burst-ms", type=float, nargs="+", default=[1000.0])
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    given = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("There is no chromium. Install it: apt-get install chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=given.scheme)
        try_out(page, given)
        page.screenshot(path=given.path, full_page=True)
        browser.close()
