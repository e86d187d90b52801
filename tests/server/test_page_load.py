"""The page under load, and for everybody: keyboard, names, contrast, narrow and dark screens."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browsing import PAGE, says, wait_until
from tiny_server import ROWS, Refused, Tiny, model

pytestmark = pytest.mark.system

Opened = Callable[..., Any]
CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()
CONTROLS = ("button", "checkbox", "combobox", "image", "link", "slider", "spinbutton", "textbox", "img")
OUTSIDE = """(all) => all.filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > 360.5)
    .map((one) => one.outerHTML)"""
FOCUSED = """() => {
    const [at, seen] = [document.activeElement, (node) => getComputedStyle(node).outlineStyle];
    const ring = at.classList.contains("unseen") ? at.nextElementSibling : at;
    return [at.id || at.dataset.sample || at.textContent, seen(ring)];
}"""


def to_load(page: Any, sample: str = "ship") -> None:
    page.click(f"[data-sample={sample}]")
    says(page, "#label", "ship")
    page.locator("#load-now").scroll_into_view_if_needed()
    says(page, "#load-now", "waiting")


def levels(page: Any) -> set[float]:
    """The rows of the chart that have bars, by where they stand."""
    ends = "(bars) => bars.map((bar) => Math.round(Number(bar.getAttribute('y')) + Number(bar.getAttribute('height'))))"
    return set(page.locator("#history .bar").evaluate_all(ends))


def after(page: Any, tiny: Tiny, ms: int) -> int:
    """How often the load is asked for while the page's clock goes on by so much; an answer takes a moment to come."""
    before = tiny.looks
    page.clock.run_for(ms)
    page.wait_for_timeout(300)
    return tiny.looks - before


# --- load ---


def test_a_burst_makes_points_cheaper_and_one_sees_them_recover(opened: Opened, tiny: Tiny):
    page = opened()
    to_load(page)
    page.fill("#count", "80")
    page.fill("#within", "500")
    page.click("#send")
    says(page, "#burst-result", "80 of 80 answered in")
    burst = next(asked for asked in tiny.asked if asked["inputs"] == 80)
    assert burst["kind"].startswith("multipart/form-data")
    assert float(burst["deadline_ms"]) == 500
    told = page.inner_text("#burst-result")
    assert "by exit=1" in told or "by exit=2" in told  # 80 times full would take five times as long
    full = page.locator("#history text", has_text="full").get_attribute("y")
    # Single ones go on, and have time again.
    wait_until(page, lambda: float(full) + 3 in (seen := levels(page)) and len(seen) >= 2)
    assert page.locator("#history .queue").count() == 1
    says(page, "#history-caption", "the tallest bar is")


def test_the_single_ones_beside_a_burst_can_be_left_out(opened: Opened, tiny: Tiny):
    page = opened()
    to_load(page)
    before = len(tiny.asked)
    page.uncheck("#steady")
    page.fill("#count", "3")
    page.click("#send")
    says(page, "#burst-result", "3 of 3 answered")
    page.wait_for_timeout(700)
    assert len(tiny.asked) == before + 1


def test_the_load_is_asked_four_times_a_second_and_only_while_it_is_seen(opened: Opened, tiny: Tiny):
    page = opened(own_clock=True)
    says(page, "#label", "Waiting")
    page.clock.pause_at(time.time() + 3600)
    page.clock.run_for(2000)
    assert tiny.looks == 0
    page.locator("#load-now").scroll_into_view_if_needed()
    wait_until(page, lambda: after(page, tiny, 250) == 1)  # as soon as the browser sees it
    says(page, "#load-now", "room for 256")
    for _ in range(4):
        assert after(page, tiny, 250) == 1
    page.evaluate("scrollTo(0, 0)")
    wait_until(page, lambda: after(page, tiny, 2000) == 0)


def test_what_a_burst_did_not_get_is_counted_by_reason(opened: Opened, tiny: Tiny):
    page = opened()
    to_load(page)
    tiny.broken = Refused(504, "late", "Late.")
    page.fill("#count", "10")
    page.click("#send")
    says(page, "#burst-result", "5 of 10 answered")
    says(page, "#burst-result", "5 late.")
    tiny.broken = Refused(503, "overloaded", "The queue is full.", 1)
    page.click("#send")
    says(page, "#burst-result", "5 refused (overloaded).")


def test_a_burst_that_is_refused_as_a_whole_says_when_to_send_it_again(opened: Opened, tiny: Tiny):
    page = opened()
    to_load(page)
    tiny.refusal = Refused(503, "overloaded", "The queue is full.", 3)
    page.click("#send")
    says(page, "#burst-result", "The queue is full. It can be sent again in 3 s.")
    assert page.locator("#send").is_enabled()


def test_a_large_picture_is_made_smaller_before_it_is_sent_many_times(opened: Opened, tiny: Tiny, tmp_path: Path):
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (700, 900, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    page = opened()
    page.set_input_files("#file", tmp_path / "noise.png")
    says(page, "#label", "ship")
    assert tiny.asked[-1]["bytes"] == (tmp_path / "noise.png").stat().st_size
    page.locator("#load-now").scroll_into_view_if_needed()
    page.click("#send")
    says(page, "#burst-result", "100 of 100 answered", seconds=30)
    burst = next(asked for asked in tiny.asked if asked["inputs"] == 100)
    assert burst["bytes"] < 20e6 < 100 * (tmp_path / "noise.png").stat().st_size


# --- everybody ---


def test_everything_can_be_done_with_the_keyboard(opened: Opened, tiny: Tiny):
    tiny.models.append(model("second"))
    page = opened()
    says(page, "#label", "Waiting")
    order = ["model", "file", "ship", "truck", "airplane", "cat", "seven", "deadline", "count", "within"]
    for name in order:
        page.keyboard.press("Tab")
        at, ring = page.evaluate(FOCUSED)
        assert at == name
        assert ring != "none"
        if name == "truck":
            page.keyboard.press("Enter")
            says(page, "#why", "full answered")
        if name == "deadline":
            before = page.inner_text("#deadline-text")
            for _ in range(60):
                page.keyboard.press("ArrowLeft")
            assert page.inner_text("#deadline-text") != before
            says(page, "#why", "exit=2 answered")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED)[0] == "send"
    page.keyboard.press("Enter")
    says(page, "#burst-result", "100 of 100 answered")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED)[0] == "steady"


@pytest.mark.parametrize("with_token", [False, True])
def test_every_control_has_a_name(opened: Opened, tiny: Tiny, with_token: bool):
    tiny.token = "of-this-server" if with_token else None
    tiny.models.append(model("second"))
    page = opened()
    says(page, "#token-form" if with_token else "#label", "token" if with_token else "Waiting")
    session = page.context.new_cdp_session(page)
    nodes = [node for node in session.send("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    controls = [(node["role"]["value"], node["name"]["value"]) for node in nodes if node["role"]["value"] in CONTROLS]
    assert {role for role, _ in controls} >= ({"textbox", "button"} if with_token else {"combobox", "slider", "link"})
    assert [role for role, name in controls if not name.strip()] == []


def test_answers_are_announced_politely_and_problems_at_once(opened: Opened):
    page = opened()
    for id in ("answer", "burst-result"):
        assert page.get_attribute(f"#{id}", "aria-live") == "polite"
    assert page.get_attribute("#notice", "role") == "alert"
    assert page.get_attribute("html", "lang") == "en"
    assert page.locator("h1").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_on_light_and_dark_screens(opened: Opened, tiny: Tiny, scheme: str):
    page = opened(color_scheme=scheme)
    says(page, "#label", "Waiting")
    found = page.evaluate(CONTRASTS)
    page.click("[data-sample=ship]")
    says(page, "#label", "ship")
    page.locator("#deadline").press("Home")
    for _ in range(110):
        page.locator("#deadline").press("ArrowRight")
    says(page, "#why", "exit=2 answered")
    page.wait_for_function("document.getAnimations().every((one) => one.playState === 'finished')")
    found += page.evaluate(CONTRASTS)
    tiny.stop()
    page.click("[data-sample=cat]")
    says(page, "#notice", "does not answer")
    found += page.evaluate(CONTRASTS)
    tiny.start()
    assert len(found) > 60
    assert [(text, round(ratio, 2)) for text, ratio in found if ratio < 4.5] == []
    ink = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ink == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)")


def test_nothing_moves_for_those_who_want_it_so(opened: Opened):
    duration = "getComputedStyle(document.querySelector('#drop')).transitionDuration"
    assert opened().evaluate(duration) != "0s"
    assert opened(reduced_motion="reduce").evaluate(duration) == "0s"


def test_a_telephone_shows_all_of_it(opened: Opened, tiny: Tiny):
    tiny.label = "a name of a class that is long and a wordofmorethanfortyletterswithoutanyspaceinit"
    rows = [(f"exit={place},width=0.25", 1e6 * place, 0.6 + 0.01 * place, 2.0 * place) for place in range(1, 13)]
    tiny.models = [model("a-model-whose-name-is-as-long-as-names-can-be-that-are-served-64", rows=rows), model()]
    page = opened(viewport={"width": 360, "height": 740}, has_touch=True)
    for name in (tiny.models[0]["name"], "pictures"):
        page.select_option("#model", name)
        page.click("[data-sample=ship]")
        says(page, "#exits .chosen", "answered")
        page.locator("#load-now").scroll_into_view_if_needed()
        says(page, "#load-now", "waiting")
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.locator("main *:not(.unseen):not(.unseen *)").evaluate_all(OUTSIDE) == []


def test_every_part_of_the_page_is_asked_from_this_server(opened: Opened, tiny: Tiny):
    page = opened()
    says(page, "#label", "Waiting")
    loaded = page.evaluate("performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname)")
    assert {path for path in loaded if path.startswith("/page/")} >= {
        f"/page/{path.relative_to(PAGE)}" for path in PAGE.rglob("*.*") if path.suffix in (".js", ".css", ".png")
    }
    assert all(path.startswith(("/page/", "/v1/")) for path in loaded)
    assert len(ROWS) == page.locator("#exits tr").count()
