"""The page in a real browser, against a server with canned answers."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browsing import PAGE, PASTE, SHIP, carried, says, slide, wait_until
from tiny_server import ROWS, Refused, Tiny, model

ROOT = Path(__file__).parents[2]
system = pytest.mark.system


# --- files ---


def test_the_page_is_small_and_has_nothing_inline():
    files = [path for path in PAGE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 150_000
    text = (PAGE / "index.html").read_text()
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:|https?:", text) == []
    assert re.findall(r"<script[^>]*>", text) == ['<script type="module" src="page/app.js">']
    for address in re.findall(r'(?:src|href)="page/([^"]+)"', text):
        assert (PAGE / address).is_file()


def test_no_text_of_the_server_becomes_html():
    script = (PAGE / "app.js").read_text()
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(", script) == []


def test_samples_are_what_the_script_draws():
    path = ROOT / "benchmarks" / "sample_pictures.py"
    spec = importlib.util.spec_from_file_location("sample_pictures", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert {path.stem for path in (PAGE / "samples").iterdir()} == set(script.PICTURES)
    for name in script.PICTURES:
        with Image.open(PAGE / "samples" / f"{name}.png") as saved:
            assert saved.convert("RGB").tobytes() == script.drawn(name).convert("RGB").tobytes()


# --- giving a picture ---


@system
@pytest.mark.parametrize("way", ["drop", "paste", "pick", "sample"])
def test_a_picture_is_given_in_any_way_and_every_exit_answers(opened: Any, tiny: Tiny, way: str):
    page = opened()
    says(page, "#label", "Waiting for a picture")
    if way == "drop":
        page.dispatch_event("#drop", "drop", {"dataTransfer": carried(page, SHIP, "image/png")})
    elif way == "paste":
        page.evaluate(PASTE, carried(page, SHIP, "image/png"))
    elif way == "pick":
        page.set_input_files("#file", SHIP)
    else:
        page.click("[data-sample=ship]")
    says(page, "#label", "ship")
    says(page, "#sure", "95 %")
    says(
        page, "#why", "full answered after 31 ms, 0.4 of them decoding and waiting. There was time for the whole model."
    )
    says(page, "#others", "Less likely: truck 4 %")
    assert [text.split("\n")[0] for text in page.locator("#exits th").all_inner_texts()] == [row[0] for row in ROWS]
    assert page.locator("#exits td:last-child").all_inner_texts() == ["2.4 ms", "6.9 ms", "14 ms", "31 ms\nanswered"]
    assert not page.locator("#notice, #token-form, #model").filter(visible=True).count()
    assert page.locator("#preview").evaluate("(picture) => picture.naturalWidth") == 224
    assert tiny.asked[-1]["kind"] == "image/png"
    assert tiny.asked[-1]["bytes"] == SHIP.stat().st_size


@system
def test_exits_are_shown_as_they_come(opened: Any, tiny: Tiny):
    tiny.held_from = 1
    page = opened()
    page.click("[data-sample=ship]")
    says(page, "#exits tr:first-child", "2.4 ms")
    assert page.locator("#exits .passed").count() == 1
    assert page.locator("#exits .chosen").count() == 0
    tiny.held_from = None
    says(page, "#exits tr:last-child", "answered")
    assert page.locator("#exits .passed").count() == 3


@system
def test_text_of_the_server_is_shown_as_it_is(opened: Any, tiny: Tiny):
    tiny.label = '<img src=x onerror="document.title=1">'
    tiny.models = [model(name="a <b>c", rows=[(f"<i>{point}", *rest) for point, *rest in ROWS])]
    page = opened()
    page.click("[data-sample=ship]")
    says(page, "#label", tiny.label)
    says(page, "#why", "<i>full answered")
    assert page.locator("#answer img, #exits img, main b, #curve i").count() == 0
    assert page.title() == "a <b>c · supple"
    assert page.locator("#curve text.chosen").text_content() == "<i>full"


# --- the deadline ---


@system
def test_the_slider_goes_from_a_tenth_of_the_cheapest_to_five_times_full(opened: Any, tiny: Tiny):
    page = opened()
    page.click("[data-sample=ship]")
    says(page, "#deadline-text", "61 ms")  # at first about twice what full takes
    for place, text in ((0, "0.2 ms"), (100, "5.6 ms"), (200, "155 ms")):
        slide(page, place)
        says(page, "#deadline-text", text)
        assert page.get_attribute("#deadline", "aria-valuetext") == text
    wait_until(page, lambda: float(tiny.asked[-1]["deadline_ms"]) == pytest.approx(155))


@system
def test_sliding_moves_the_answer_along_the_curve(opened: Any):
    page = opened()
    page.click("[data-sample=ship]")
    places = []
    for place, point in ((80, "exit=1"), (110, "exit=2"), (140, "exit=3"), (190, "full")):
        slide(page, place)
        says(page, "#why", f"{point} answered")
        says(page, "#exits .chosen", point)
        assert page.locator("#curve .dot.chosen").count() == 1
        assert page.locator("#curve text.chosen").text_content() == point
        places.append(page.locator("#curve .dot.chosen").bounding_box())
        slider, line = page.locator("#deadline").bounding_box(), page.locator("#curve .limit").bounding_box()
        thumb = slider["x"] + 10 + place / 200 * (slider["width"] - 20)
        assert line["x"] == pytest.approx(thumb, abs=1.5)  # the middle of the thumb stands below the line
    assert [box["x"] for box in places] == sorted(box["x"] for box in places)
    assert [box["y"] for box in places] == sorted((box["y"] for box in places), reverse=True)


@system
@pytest.mark.parametrize(
    ("reason", "text"),
    [("load", "Others were waiting"), ("confident", "sure enough"), ("cancelled", "Reason: cancelled.")],
)
def test_the_reason_is_told_in_words(opened: Any, tiny: Tiny, reason: str, text: str):
    tiny.reason = reason
    page = opened()
    page.click("[data-sample=ship]")
    says(page, "#why", text)


@system
def test_what_is_not_known_is_said(opened: Any, tiny: Tiny):
    unscored = model("unscored", rows=[(point, macs, None, time) for point, macs, _, time in ROWS])
    untimed = model("untimed", rows=[(point, macs, score, None) for point, macs, score, _ in ROWS])
    tiny.models = [unscored, untimed]
    page = opened()
    says(page, "#curve-caption", "no scores yet")
    assert page.locator("#curve .dot").count() == 4
    page.select_option("#model", "untimed")
    says(page, "#curve-caption", "No point has been timed here")
    says(page, "#exits", "65.4 % top-1")
    page.click("[data-sample=cat]")
    says(page, "#why", "full answered")


@system
def test_errors_are_drawn_with_their_own_unit_and_direction(opened: Any, tiny: Tiny):
    tiny.models = [model(rows=[("exit=1", 1e6, 12.3, 2.0), ("full", 2e6, 8.4, 5.0)])]
    for row in tiny.models[0]["ladder"]:
        row.update(metric="mae", metric_label="MAE", unit="", higher_is_better=False)
    page = opened()
    says(page, "#curve-caption", "MAE, lower is better")
    says(page, "#exits", "12.3 MAE, about 2 ms")


# --- several models, other models ---


@system
def test_another_model_is_chosen_from_the_list(opened: Any, tiny: Tiny):
    tiny.models.append(model("small.er", rows=ROWS[:2]))
    page = opened()
    page.click("[data-sample=ship]")
    says(page, "#why", "full answered")
    page.select_option("#model", "small.er")
    says(page, "#why", "exit=2 answered")
    assert page.locator("#exits tr").count() == 2
    assert tiny.asked[-1]["model"] == "small.er"


@system
def test_a_model_of_sounds_takes_sounds(opened: Any, tiny: Tiny, tmp_path: Path):
    tiny.models = [model(accepts={"kind": "sound", "endings": [".wav", ".flac"]})]
    page = opened()
    says(page, "#drop-text", "Drop a sound here")
    says(page, "#give-note", ".wav .flac")
    assert page.get_attribute("#file", "accept") == "audio/*,.wav,.flac"
    assert page.get_attribute("#file", "aria-label") == "Choose a sound"
    assert not page.locator("#samples").is_visible()
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    page.set_input_files("#file", tmp_path / "a.wav")
    says(page, "#label", "ship")
    says(page, "#drop-text", "a.wav")
    assert tiny.asked[-1]["kind"].startswith("audio/")


@system
def test_a_model_without_preprocessing_takes_no_files(opened: Any, tiny: Tiny):
    tiny.models = [model(accepts=None)]
    page = opened()
    says(page, "#why", "saved without preprocessing")
    assert page.locator("#file").is_disabled()
    assert page.locator("#send").is_disabled()
    page.dispatch_event("#drop", "drop", {"dataTransfer": carried(page, SHIP, "image/png")})
    page.wait_for_timeout(300)
    assert tiny.asked == []


@system
def test_without_a_model_the_page_says_how_to_serve_one(opened: Any, tiny: Tiny):
    tiny.models = []
    page = opened()
    says(page, "#notice", "No model is served. Start one: supple serve RUN")


@system
def test_while_models_are_opened_the_page_waits(opened: Any, tiny: Tiny):
    tiny.models, tiny.starting = [], Refused(503, "starting", "The models are being opened and measured.", 0.2)
    page = opened()
    says(page, "#notice", "being opened")
    tiny.models, tiny.starting = [model()], None
    says(page, "#label", "Waiting for a picture")
    assert not page.locator("#notice").is_visible()


# --- what goes wrong ---


@system
@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (413, "too_large", "The body is larger than 20 MB."),
        (415, "unsupported_media_type", "This is not a picture in a format that is known."),
        (422, "unusable_input", "The file ends too early."),
        (504, "late", "It was admitted, and late all the same."),
        (503, "draining", "The server is stopping."),
    ],
)
def test_a_refusal_is_told_where_the_answer_would_be(opened: Any, tiny: Tiny, status: int, code: str, message: str):
    tiny.refusal = Refused(status, code, message)
    page = opened()
    page.click("[data-sample=ship]")
    says(page, "#label", "No answer")
    says(page, "#why", message)
    tiny.refusal = None
    page.click("[data-sample=cat]")
    says(page, "#label", "ship")


@system
def test_an_overloaded_server_is_asked_again_when_it_says(opened: Any, tiny: Tiny):
    tiny.refusal = Refused(503, "overloaded", "The queue is full.", 1)
    page = opened()
    page.click("[data-sample=ship]")
    says(page, "#why", "The queue is full. Asking again in 1 s.")
    tiny.refusal = None
    says(page, "#label", "ship")


@system
def test_too_little_time_is_said_and_not_tried_again(opened: Any, tiny: Tiny):
    tiny.refusal = Refused(503, "overloaded", "The cheapest point takes 2 ms, 0.1 are left.", 1)
    page = opened()
    slide(page, 0)
    page.click("[data-sample=ship]")
    says(page, "#label", "Too little time")
    says(page, "#why", "The cheapest point takes 2 ms")
    assert "Asking again" not in page.inner_text("#why")


@system
def test_what_was_late_leaves_the_exits_that_came_before(opened: Any, tiny: Tiny):
    tiny.cut = Refused(504, "late", "The answer was not ready within its deadline.")
    page = opened()
    page.click("[data-sample=ship]")
    says(page, "#why", "exit=3 answered after 14 ms")
    says(page, "#why", "not ready within its deadline. This exit had come before.")
    says(page, "#exits .chosen", "exit=3")
    assert page.locator("#exits .passed").count() == 2


@system
def test_a_server_that_is_gone_is_said_and_found_again(opened: Any, tiny: Tiny):
    page = opened()
    page.click("[data-sample=ship]")
    says(page, "#label", "ship")
    tiny.stop()
    slide(page, 110)
    says(page, "#notice", "The server does not answer.")
    tiny.start()  # on the same port
    says(page, "#why", "exit=2 answered")
    assert not page.locator("#notice").is_visible()


@system
def test_a_connection_that_breaks_is_no_dead_server(opened: Any):
    page = opened()
    page.route("**/predict?*", lambda route: route.abort("connectionreset"))
    page.click("[data-sample=ship]")
    says(page, "#why", "The server hung up.")
    assert not page.locator("#notice").is_visible()


@system
def test_the_token_is_asked_for_and_kept_in_memory_only(opened: Any, tiny: Tiny):
    tiny.token = "of-this-server"
    page = opened()
    says(page, "#token-form", "This server asks for a token.")
    assert page.evaluate("document.activeElement.id") == "token"
    page.fill("#token", "another")
    page.press("#token", "Enter")
    says(page, "#token-form", "That was not the token")
    page.fill("#token", tiny.token)
    page.press("#token", "Enter")
    says(page, "#label", "Waiting for a picture")
    page.click("[data-sample=ship]")
    says(page, "#label", "ship")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert tiny.token not in page.url + page.content()
    page.reload()
    says(page, "#token-form", "This server asks for a token.")
