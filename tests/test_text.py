"""Tables, numbers with units, guesses at what was meant."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supple.text import cut, did_you_mean, duration, first, macs, millions, quantity, say, size, some, table, width


def test_a_table_has_names_to_the_left_numbers_to_the_right_and_no_trailing_space() -> None:
    text = table(["point", "MMACs", ""], [["full", "75.1", "best"], ["exit=1,width=0.5", "9.8", ""]], left=(0, 2))
    assert text.splitlines() == [
        "point             MMACs",
        "full               75.1  best",
        "exit=1,width=0.5    9.8",
    ]


def test_a_table_that_is_too_wide_has_its_words_shortened_never_its_numbers() -> None:
    rows = [["photos/of/my/cats/last/summer/0001.png", "a very long label indeed", "12345.6"], ["b.png", "cat", "1.0"]]
    text = table(["file", "label", "MMACs"], rows, left=(0, 1), most=50)
    assert text.splitlines() == [
        "file                 label                   MMACs",
        "…st/summer/0001.png  a very long label i…  12345.6",
        "b.png                cat                       1.0",
    ]
    assert table(["file", "label", "MMACs"], rows, left=(0, 1), most=500) == table(
        ["file", "label", "MMACs"], rows, left=(0, 1)
    )
    numbers = table(["point", "MMACs"], [["exit=1", "1" * 30]], most=10)
    assert "1" * 30 in numbers


def test_what_is_cut_keeps_the_end_of_a_path_and_the_start_of_a_sentence() -> None:
    assert cut("a/b/c/deep.png", 9) == "…deep.png"
    assert cut("one word after another", 10) == "one word…"
    assert cut("short", 5) == cut("short", None) == "short"


def test_the_terminal_has_a_width_and_a_pipe_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert width() == 72
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert width() is None


def test_one_and_many_and_too_many_to_list() -> None:
    assert (some(1, "step"), some(0, "step"), some(12_000, "image")) == ("1 step", "0 steps", "12,000 images")
    assert (first("abc"), first("abcdef")) == ("a, b, c", "a, b, c, d, e, ...")
    many = [f"network{i}" for i in range(1000)]
    assert did_you_mean("zzz", many).endswith("... (1,000)")
    assert len(did_you_mean("zzz", many)) < 400


def test_a_table_without_rows_is_its_header() -> None:
    assert table(["a", "b"], []) == "a  b"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((None, "-"), (0, "0"), (999, "999"), (1000, "1 k"), (433_876, "434 k"), (4_900_000, "4.9 M")),
        *((999_499, "999 k"), (999_500, "1 M"), (999_999_999, "1 G"), (2.5e12, "2.5 T"), (-2_000_000, "-2 M")),
    ],
)
def test_counts_for_people(count: float | None, text: str) -> None:
    assert quantity(count) == text


@settings(deadline=None)
@given(st.integers(0, 10**14))
def test_counts_and_sizes_keep_three_digits_and_never_need_an_exponent(count: int) -> None:
    units = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    for text, ending in ((quantity(count), ""), (size(count), "B")):
        assert "e" not in text
        number, _, unit = text.partition(" ")
        assert float(number) * units.get(unit.removesuffix(ending), 1) == pytest.approx(count, rel=0.00501)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_340_000, "2.34 MB"), (999_999, "1 MB"), (10**12, "1 TB")],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0.0 s"), (9.94, "9.9 s"), (10, "10 s"), (59.4, "59 s"), (60, "1 min 00 s"), (119.6, "2 min 00 s")),
        *((3599.6, "1 h 00 min"), (3661, "1 h 01 min"), (90_000, "25 h 00 min")),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_millions_round_and_leave_a_dash_for_the_unknown() -> None:
    assert [millions(n) for n in (14_955_776, 1_234_567, 125_000, None)] == ["15.0", "1.23", "0.125", "-"]
    assert [macs(n) for n in (329_000, 12, None)] == ["329 kMACs", "12 MACs", "- MACs"]


def test_a_near_miss_names_one_word_and_a_far_one_lists_all() -> None:
    options = {"epochs": 1, "lr": 2, "momentum": 3}
    assert did_you_mean("epohcs", options) == 'Did you mean "epochs"?'
    assert did_you_mean("colour", options) == "Possible: epochs, lr, momentum."


def test_remarks_go_to_stderr_so_that_stdout_stays_data(capsys: pytest.CaptureFixture[str]) -> None:
    say("a remark")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "a remark\n")
