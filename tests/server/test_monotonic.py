"""Deadlines and time-outs must not move when somebody sets the clock: nothing here asks for the time of day."""

import re
from pathlib import Path

import pytest

import supple

ROOT = Path(supple.__file__).parent
FILES = sorted([*(ROOT / "server").rglob("*.py"), *(ROOT / "inference").rglob("*.py")])
WALL = re.compile(r"\btime\.(time|time_ns|localtime|gmtime)\(|\bdatetime\b|from time import .*\btime\b")
TELLS_THE_TIME = ("logs.py",)  # lines of a log have a date


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_only_the_log_knows_the_time_of_day(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if WALL.search(line)]
    assert not found or file.name in TELLS_THE_TIME
