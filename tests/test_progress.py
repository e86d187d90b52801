"""Bars on a terminal, nothing elsewhere, and none that runs beside what is timed."""

import io
import threading

import pytest

from supple import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


def test_bench_counts_its_rounds(bars, command, exits_copy):
    assert command("bench", exits_copy, "--rounds", "5", "--batch", "1,2").status == 0
    assert bars == [("timing", 10, [1] * 10)]


def test_a_bar_beside_what_is_timed_is_drawn_seldom(monkeypatch):
    drawn = []
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr(progress.Bar, "refresh", lambda self: drawn.append(self))
    with progress.counting(1000, "timing", timing=True) as on_progress:
        started = len(drawn)
        for _ in range(1000):
            on_progress(1)
        assert 1 <= len(drawn) - started < 20


@pytest.mark.parametrize("verb", ["evaluate", "calibrate"])
def test_what_reads_data_counts_samples(bars, command, exits_copy, verb):
    assert command(verb, exits_copy, *(["--budget-macs", "0.9x"] if verb == "calibrate" else [])).status == 0
    ((_, total, steps),) = bars
    assert sum(steps) == total > 0
