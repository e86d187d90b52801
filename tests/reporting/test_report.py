"""The report of a run: one file that asks for nothing, tells what is there and names what is missing."""

import json
import re
import struct
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from supple.errors import CheckpointError, SaveError
from supple.ladder import Ladder, Row
from supple.reporting import page, write_report
from supple.reporting.labels import _apart
from supple.reporting.plots import draw_ladder, ladder_panels, render, training_panels

HOSTILE = "<script>alert('x')</script>"


def rows(timed: bool = True) -> list[Row]:
    """exit=2 is dominated: exit=1 scores more and costs less."""
    facts = [("exit=1", 10, 0.654), ("exit=2", 28, 0.649), ("exit=3", 40, 0.735), ("full", 80, 0.742)]
    key: dict[str, Any] = {"batch": 1, "threads": 2, "machine": "bench-box"} if timed else {}
    return [
        Row(name, macs=macs * 10**6, params=macs * 10**5, metric="accuracy", score=score, n=100_000, **key,
            p50_ms=macs / 5 if timed else None, p95_ms=macs / 4 if timed else None, iqr_ms=0.1 if timed else None)
        for name, macs, score in facts
    ]  # fmt: skip


def epoch(number: int, selected: bool = False) -> dict[str, Any]:
    points = {"exit=1": 0.3, "full": 0.4}
    measured = {name: {"loss": 3.0 / number, "score": score + 0.01 * number} for name, score in points.items()}
    return {
        "epoch": number, "step": 100 * number, "lr": 0.1, "seconds": 30.0 * number,
        "images_per_s": 800.0, "loss": 3.2 / number,
        "metric": "accuracy", "higher_is_better": True, "train": measured, "val": measured, "selected": selected,
    }  # fmt: skip


def manifest() -> dict[str, Any]:
    return {
        "format": 1,
        "recipe": {"data": {"name": "cifar100"}, "train": {"epochs": 3, "note": HOSTILE}},
        "classes": ["cat", HOSTILE, 'a" onload="x'],
        "input_shape": [3, 32, 32],
        "points": ["exit=1", "exit=2", "exit=3", "full"],
        "files": {"model.safetensors": "ab" * 32},
        "versions": {"torch": "2.15.0"},
    }


def make_run(folder: Path, *, ladder: Any = None, metrics: str | None = None, about: Any = None) -> Path:
    folder.mkdir()
    for name, document in (("ladder.json", ladder), ("manifest.json", about)):
        if document is not None:
            (folder / name).write_text(json.dumps(document))
    if metrics is not None:
        (folder / "metrics.jsonl").write_text(metrics)
    return folder


def lines(*epochs: dict[str, Any]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in epochs)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "my <b>run"
    make_run(
        folder,
        ladder=Ladder(rows()).to_json(),
        metrics=lines(epoch(1, True), epoch(2, True), epoch(3)) + '{"epoch": 4, "st',
        about=manifest(),
    )
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def report(run: Path) -> str:
    return (run / "report.html").read_text("utf-8")


class Elements(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def table_rows(text: str) -> list[str]:
    table = text[text.index('<table class="ladder">') :]
    return re.findall(r"<tr[^>]*>.*?</tr>", table[: table.index("</table>")], flags=re.DOTALL)[1:]


def plain(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html)


def cells(row: str) -> list[str]:
    return [plain(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]


# --- the page asks for nothing and obeys nobody ---


def test_page_refers_to_nothing_outside_itself(report: str) -> None:
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", report)
    assert "http://" not in without_namespaces
    assert "https://" not in without_namespaces
    assert "@import" not in report
    assert re.findall(r"url\((?!#)", report) == []
    for tag, attributes in Elements(report).found:
        assert tag not in {"script", "link", "iframe", "object", "embed", "img", "base"}
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")


def test_markup_in_names_is_shown_not_run(report: str) -> None:
    assert HOSTILE not in report
    assert report.count("&lt;script&gt;alert") == 2  # the class and the recipe
    assert "<h1>my &lt;b&gt;run</h1>" in report
    assert not any(name.startswith("on") for _, attributes in Elements(report).found for name in attributes)


def test_markup_in_point_metric_and_machine_is_shown_not_run(tmp_path: Path) -> None:
    row = Row(HOSTILE, engine=HOSTILE, machine=HOSTILE, batch=1, macs=1, p50_ms=1.0, metric=HOSTILE, score=1.0)
    hostile = epoch(1) | {"metric": HOSTILE, "val": {HOSTILE: {"score": 1}}, "train": {HOSTILE: {"loss": 1}}}
    text = page(make_run(tmp_path / "r", ladder=Ladder([row]).to_json(), metrics=lines(hostile)))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_page_is_small_and_ids_are_unique(report: str, run: Path) -> None:
    assert (run / "report.html").stat().st_size < 2_000_000
    ids = [attributes["id"] for _, attributes in Elements(report).found if "id" in attributes]
    assert len(ids) > 20
    assert len(ids) == len(set(ids))


def test_every_reference_inside_a_picture_finds_its_target(report: str) -> None:
    ids = {attributes["id"] for _, attributes in Elements(report).found if "id" in attributes}
    references = re.findall(r'url\(#([^)]+)\)|xlink:href="#([^"]+)"', report)
    assert references
    assert {a or b for a, b in references} <= ids


def test_long_training_and_many_classes_stay_small(tmp_path: Path) -> None:
    many = manifest() | {"classes": [f"class number {i}" for i in range(22_000)]}
    folder = make_run(tmp_path / "r", metrics=lines(*(epoch(i) for i in range(1, 5001))), about=many)
    text = page(folder)
    assert len(text) < 500_000
    assert "and 21,800 more" in text


# --- what the page says ---


def test_every_point_is_in_the_table_cheapest_first(report: str) -> None:
    found = [re.match(r"[^ ]+?(?=worse|$)", cells(row)[0]) for row in table_rows(report)]
    assert [match.group() for match in found if match] == ["exit=1", "exit=2", "exit=3", "full"]
    assert cells(table_rows(report)[0])[1:] == ["10.0", "1 M", "2.00", "2.50", "65.4"]


def test_only_the_dominated_point_is_marked(report: str) -> None:
    marked = [row for row in table_rows(report) if "dominated" in row]
    assert len(marked) == 1
    assert "exit=2" in marked[0]
    assert "worse than exit=1 at higher cost" in marked[0]


def test_summary_names_best_near_and_cheapest(report: str) -> None:
    summary = plain(report[report.index('<p class="summary">') :].split("</p>")[0])
    # 73.5 is 0.7 below 74.2, at 40 of 80 M; 65.4 costs 10 of 80 M.
    assert "The highest-scoring point, full, reaches 74.2 % top-1 at 80.0 M MACs in 16 ms" in summary
    assert "exit=3 comes within one percentage point of it at 50 % of the MACs" in summary
    assert "the cheapest, exit=1, reaches 65.4 % top-1 at 12 % of the MACs" in summary


def test_summary_looks_for_low_scores_where_low_is_better(tmp_path: Path) -> None:
    counts = [Row(name, macs=m, metric="MAE", score=s, higher_is_better=False) for name, m, s in
              (("exit=1", 10, 30.0), ("exit=2", 20, 10.05), ("full", 40, 10.0))]  # fmt: skip
    text = plain(page(make_run(tmp_path / "r", ladder=Ladder(counts).to_json())))
    assert "The highest-scoring point, full, reaches MAE 10.0" in text
    assert "exit=2 comes within 1 % of it at 50 % of the MACs" in text
    assert "lower is better" in text


def test_summary_tells_fp32_where_bf16_was_scored_too(tmp_path: Path) -> None:
    """Its rows come first in the file once those of fp32 were timed."""
    short = [replace(row, precision="bf16", score=0.5) for row in rows(timed=False)]
    folder = make_run(tmp_path / "run", ladder=Ladder([*short, *rows()]).to_json(), about=manifest())
    write_report(folder)
    text = (folder / "report.html").read_text("utf-8")
    assert "The highest-scoring point, full, reaches 74.2 %" in plain(text)
    assert {cell for row in table_rows(text) for cell in cells(row)} >= {"fp32", "bf16"}


def test_scores_are_named_and_further_ones_have_columns(tmp_path: Path) -> None:
    found = [Row("full", macs=40, metric="box_map", score=0.442, extra_metrics={"mask_map": 0.3, "mse": 12.5})]
    text = plain(page(make_run(tmp_path / "r", ladder=Ladder(found).to_json())))
    assert "reaches 44.2 % box mAP" in text
    assert "box mAP %mask mAP %MSE" in text
    assert "44.230.012.5" in text


def test_facts_and_recipe_are_told(report: str) -> None:
    text = plain(report)
    for fact in ("3 × 32 × 32", "bench-box", "torch 2.15.0", "ab" * 32, "1 min 30 s", "data: {name: cifar100}"):
        assert fact in text
    assert re.search(r"best epoch</th><td>2<", report)


def test_broken_last_line_is_left_out_and_admitted(report: str) -> None:
    assert "Left out: 1 line of metrics.jsonl" in report
    assert re.search(r"epochs</th><td>3<", report)


def test_epoch_repeated_after_a_resume_counts_once(tmp_path: Path) -> None:
    text = page(make_run(tmp_path / "r", metrics=lines(epoch(1), epoch(2), epoch(2), epoch(3))))
    assert "1 min 30 s" in text


# --- what is missing is named, with its cure ---


def test_run_without_ladder_names_evaluate_and_bench(tmp_path: Path) -> None:
    text = page(make_run(tmp_path / "r", about=manifest(), metrics=lines(epoch(1))))
    assert "supple evaluate RUN" in text
    assert "supple bench RUN" in text
    assert "One checkpoint with 4 points, not scored yet." in text


def test_run_without_times_names_bench_only(tmp_path: Path) -> None:
    text = page(make_run(tmp_path / "r", ladder=Ladder(rows(timed=False)).to_json(), about=manifest()))
    assert "supple bench RUN" in text
    assert "supple evaluate RUN" not in text
    assert "Score against measured time" not in text
    assert "worse than exit=1 at higher cost" in text


def test_ladder_without_scores_still_has_its_table_but_no_curve(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", ladder=Ladder([Row("exit=1", macs=5_000_000), Row("full", macs=10**7)]).to_json())
    text = write_report(folder).read_text()
    assert len(table_rows(text)) == 2
    assert "supple evaluate RUN" in text
    assert not (folder / "curve.png").exists()


def test_run_without_metrics_or_manifest_says_so(tmp_path: Path) -> None:
    text = page(make_run(tmp_path / "r", ladder=Ladder(rows()).to_json()))
    assert "metrics.jsonl is missing" in text
    assert "manifest.json is missing" in text


def test_complete_run_misses_nothing(report: str) -> None:
    assert 'class="missing"' not in report


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match="is not a run folder") as caught:
            write_report(folder)
        assert caught.value.cure
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "[1]", '{"rows": []}', '{"points": [{"point": "full", "macs": "many"}]}'])
def test_damaged_ladder_is_refused_with_a_cure(tmp_path: Path, content: str) -> None:
    (tmp_path / "ladder.json").write_text(content)
    with pytest.raises(CheckpointError) as caught:
        page(tmp_path)
    assert "supple evaluate RUN" in caught.value.cure


# --- stopping when sure ---


def policy(**changes: Any) -> dict[str, Any]:
    """exit=2 is dominated and left out; ships stop early, cats late."""
    facts = {"n": 10, "cost": 40e6, "cost_error": 2e6, "accuracy": 0.73, "full_accuracy": 0.75, "drop_error": 0.01}
    rows = [
        ("exit=1", True, 0.87, 10e6, 0.6, None),
        ("exit=2", False, None, None, 0.0, "exit=1"),
        ("full", True, None, 85e6, 0.4, None),
    ]
    exits = [
        {"point": point, "looked_at": used, "threshold": threshold, "temperature": 1.5, "accuracy": 0.65, "cost": cost,
         "expected": share, "achieved": share, "dominated_by": better}
        for point, used, threshold, cost, share, better in rows
    ]  # fmt: skip
    return {
        "weights": "ab" * 32, "target": {"kind": "budget_macs", "value": 0.5, "relative": True, "given": "0.5x"},
        "budget": 42e6, "unit": "macs", "full_cost": 80e6, "remark": "", "measure": "max_probability",
        "points": ["exit=1", "full"], "thresholds": [0.87], "temperatures": [1.5, 1.5], "shares": [0.5, 0.5],
        "expected": facts, "achieved": facts | {"cost": 44e6}, "exits": exits,
        "classes": {"names": ["cat", HOSTILE, "ship"], "stopped": [[1, 4], [0, 0], [4, 1]]}, **changes,
    }  # fmt: skip


def with_policy(folder: Path, document: Any, **parts: Any) -> str:
    make_run(folder, about=manifest(), **parts)
    (folder / "policy.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return page(folder)


def section(text: str) -> str:
    return text[text.index("<h2>Stopping when sure</h2>") :].split("</section>")[0]


def test_a_policy_is_told_in_a_sentence_with_what_it_achieved(tmp_path: Path) -> None:
    text = plain(section(with_policy(tmp_path / "r", policy())))
    assert "target: --budget-macs 0.5x" in text
    assert "this took 55 % of the full model's MACs at an accuracy of 73.0 %, 2.0 points below the full model" in text


def test_every_exit_has_its_threshold_and_share_and_those_left_out_are_marked(tmp_path: Path) -> None:
    table = section(with_policy(tmp_path / "r", policy())).split('<table class="policy">')[1].split("</table>")[0]
    first, second, last = re.findall(r"<tr[^>]*>.*?</tr>", table, flags=re.DOTALL)[1:]
    assert cells(first) == ["exit=1", "0.870", "1.50", "10.0", "65.0", "60.0", "60.0"]
    assert 'class="dominated"' in second
    assert cells(second) == ["exit=2no better than exit=1, left out", "-", "1.50", "-", "65.0", "-", "-"]
    assert cells(last) == ["full", "the rest", "1.50", "85.0", "65.0", "40.0", "40.0"]


def test_classes_are_listed_from_early_to_late_and_those_without_images_are_not(tmp_path: Path) -> None:
    table = section(with_policy(tmp_path / "r", policy())).split('<table class="classes">')[1]
    assert table.index("ship") < table.index("cat")
    assert "alert" not in table
    assert 'aria-label="exit=1 80 %, full 20 %"' in table


def test_a_policy_in_ms_says_where_it_was_timed(tmp_path: Path) -> None:
    halves = {
        half: policy()[half] | {"cost": ms, "cost_error": 0.1} for half, ms in (("expected", 4), ("achieved", 4.2))
    }
    timed = policy(unit="ms", full_cost=8.0, machine="bench-box", threads=1, **halves)
    text = plain(section(with_policy(tmp_path / "r", timed)))
    assert "one image at a time, 1 thread, on bench-box" in text
    assert "4.20 ± 0.10" in text


def test_thousands_of_classes_are_shown_from_both_ends(tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(5000)]
    counts = [[i, 5000 - i] for i in range(5000)]
    text = section(with_policy(tmp_path / "r", policy(classes={"names": names, "stopped": counts})))
    assert len(text) < 30_000
    assert "4,976 more between" in text
    assert "class 4999<" in text
    assert "class 0<" in text


def test_markup_in_a_policy_is_shown_not_run(tmp_path: Path) -> None:
    rows = [row | {"point": HOSTILE, "dominated_by": HOSTILE} for row in policy()["exits"]]
    target = {"kind": HOSTILE, "value": 1, "relative": False, "given": HOSTILE}
    names = {"names": [HOSTILE, 'a" onload="x'], "stopped": [[1, 0], [0, 1]]}
    text = with_policy(tmp_path / "r", policy(exits=rows, target=target, classes=names, remark=HOSTILE))
    assert "<script" not in text
    assert not any(name.startswith("on") for _, attributes in Elements(text).found for name in attributes)


@pytest.mark.parametrize(
    "document",
    [
        "{",
        "[1]",
        policy(points=["exit=1"]),
        policy(exits=[{}]),
        policy(exits=3),
        policy(full_cost="much"),
        policy(full_cost=0),
        policy(achieved={}),
        policy(unit="hours"),
        policy(unit="ms"),  # without the machine
        policy(classes={"names": ["cat"], "stopped": [[1, 2, 3]]}),
        policy(target=None),
        policy(remark=None),
    ],
)
def test_a_damaged_policy_is_refused_with_a_cure(tmp_path: Path, document: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        with_policy(tmp_path / "r", document)
    assert "policy.json" in caught.value.cause
    assert "supple calibrate" in caught.value.cure


def test_a_policy_of_other_weights_is_not_shown_and_a_run_without_one_misses_nothing(tmp_path: Path, run: Path) -> None:
    text = with_policy(tmp_path / "r", policy(weights="cd" * 32))
    assert "calibrated for other weights" in section(text)
    assert "<table" not in section(text)
    assert "Stopping when sure" not in page(run)


# --- pictures ---


def png_size(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])  # type: ignore[return-value]


def test_report_also_draws_the_curve(run: Path) -> None:
    width, height = png_size((run / "curve.png").read_bytes())
    assert width > height > 400
    assert sorted(path.name for path in run.iterdir() if path.name.startswith(".")) == []


def test_drawing_twice_gives_the_same_bytes_and_one_size_for_all_ladders(run: Path, tmp_path: Path) -> None:
    once = draw_ladder(Ladder(rows(timed=False)), tmp_path / "a.png", "title").read_bytes()
    assert draw_ladder(Ladder(rows(timed=False)), tmp_path / "b.png", "title").read_bytes() == once
    other = draw_ladder(Ladder(rows(timed=False)[1:3]), tmp_path / "c.png", "another").read_bytes()
    assert png_size(other) == png_size(once)
    assert other != once
    width, height = png_size((run / "curve.png").read_bytes())  # with times: a second panel beside the first
    assert (width, height) == (2 * png_size(once)[0], png_size(once)[1])


def test_svg_keeps_text_as_text_with_units_and_every_name(tmp_path: Path) -> None:
    text = draw_ladder(Ladder(rows()), tmp_path / "a.svg", title="costs $5 or $6").read_text()
    for words in ("MACs (M)", "top-1 (%)", "ms", "exit=1", "exit=2", "exit=3", "full", "costs $5 or $6"):
        assert re.search(rf">[^<]*{re.escape(words)}[^<]*</text>", text), words


def test_axis_says_that_lower_is_better(tmp_path: Path) -> None:
    ladder = Ladder([Row("full", macs=10, metric="MAE", score=3.0, higher_is_better=False)])
    assert "MAE (lower is better)" in draw_ladder(ladder, tmp_path / "a.svg").read_text()


def test_each_timed_configuration_is_a_series_in_the_legend(tmp_path: Path) -> None:
    ladder = Ladder(rows())
    for row in rows():
        ladder.time(row.point, batch=8, threads=1, machine="bench-box", p50_ms=9.0, p95_ms=9.5)
    text = draw_ladder(ladder, tmp_path / "a.svg").read_text()
    assert "torch, batch 1, 2 threads" in text
    assert "torch, batch 8, 1 thread<" in text


def test_names_of_ten_points_do_not_overlap() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ladder = Ladder(
        Row(f"exit={i},width=0.5", macs=(10 + 4 * i) * 10**6, metric="accuracy", score=0.6 + 0.1 * i / (i + 3))
        for i in range(1, 11)
    )
    figure = Figure(figsize=(5, 3.7), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    place_names = ladder_panels(ladder)["macs"](axes)
    figure.draw_without_rendering()
    place_names()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) == 10
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_labels_pushed_apart_keep_order_distance_and_bounds() -> None:
    # 10, 10.5 and 11 spread around their mean 10.5; 30 is free and stays.
    assert _apart([10, 10.5, 11, 30], gap=5, low=0, high=40) == [5.5, 10.5, 15.5, 30]
    assert _apart([39, 40], gap=5, low=0, high=40) == [35, 40]


def test_training_is_drawn_as_scores_and_loss_side_by_side() -> None:
    drawn = render(list(training_panels([epoch(1), epoch(2)]).values()), "png")
    assert png_size(drawn)[0] > 1000


def test_training_without_validation_still_draws_the_loss() -> None:
    panels = training_panels([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": float("nan")}])
    text = render(list(panels.values()), "svg").decode()
    assert "training loss" in text
    assert "validation" not in text


def test_drawing_refuses_other_formats_and_empty_ladders(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="png or svg"):
        draw_ladder(Ladder(rows()), tmp_path / "a.gif")
    with pytest.raises(CheckpointError, match="no scores"):
        draw_ladder(Ladder([Row("full", macs=5)]), tmp_path / "a.png")
    assert training_panels([]) == {}
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match="could not be written"):
        draw_ladder(Ladder(rows()), tmp_path / "file" / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
