"""Bars on a terminal, nothing elsewhere, and none that runs beside what is timed."""

import io
import threading

import pytest

from supple import api, progress
from supple.cli import main


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, list[int]]]:
    """Every bar that was made, with its total and what it was advanced by."""
    made = []
    counting = progress.counting

    def noted(total: int, text: str, *args: object, **how: object) -> object:
        steps: list[int] = []
        made.append((text, total, steps))
        context = counting(total, text, *args, **how)

        class Noted:
            def __enter__(self) -> object:
                advance = context.__enter__()
                return lambda done: (steps.append(done), advance(done))

            def __exit__(self, *error: object) -> object:
                return context.__exit__(*error)

        return Noted()

    monkeypatch.setattr(progress, "counting", noted)
    monkeypatch.setattr(api, "counting", noted)
    return made


def test_a_bar_for_timing_has_no_thread_of_its_own(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    before = threading.active_count()
    with progress.counting(4, "timing", timing=True) as on_progress:
        assert threading.active_count() == before
        on_progress(3)
        assert "75%" in shown.getvalue()
    with progress.counting(4, "reading") as on_progress:
        assert threading.active_count() == before + 1


def test_a_bar_shows_nothing_where_there_is_no_terminal(capsys):
    with progress.counting(4, "reading") as on_progress:
        on_progress(4)
    assert capsys.readouterr().err == ""


def test_bench_counts_its_rounds(bars, exits_copy, capsys):
    assert main(["bench", str(exits_copy), "--rounds", "5", "--batch", "1,2"]) == 0
    assert bars == [("timing", 10, [1] * 10)]


@pytest.mark.parametrize("verb", ["evaluate", "calibrate"])
def test_what_reads_data_counts_samples(bars, exits_copy, verb, capsys):
    assert main([verb, str(exits_copy), *(["--budget-macs", "0.9x"] if verb == "calibrate" else [])]) == 0
    ((_, total, steps),) = bars
    assert sum(steps) == total > 0
